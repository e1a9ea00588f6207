#include "gpu/node_lots.hpp"

#include <algorithm>

#include "device/cuda_reduce.hpp"

namespace accdp {
namespace {

/// For each slot's worth of the message: write(at, bytes) fills this rank's slot; then read(at, lot) sees all slots,
/// for what of each lot is there.
template <class Write, class Read>
void in_slots(Context& c, Pool& pool, std::size_t bytes, const std::vector<DeviceTensors::Lot>& lots, Write write,
              Read read) {
  for (std::size_t at = 0; at < bytes; at += pool.slot_bytes()) {
    const std::size_t end = std::min(bytes, at + pool.slot_bytes());
    const auto each_lot = [&](auto visit) {
      for (const DeviceTensors::Lot& lot : lots) {
        const std::size_t from = std::max(at, lot.begin), to = std::min(end, lot.begin + lot.bytes);
        if (from < to) visit(DeviceTensors::Lot{from, to - from, lot.owner});
      }
    };
    std::byte* const slot = pool.open(c);
    write(slot, at, end - at, each_lot);
    pool.publish(c);
    pool.await_all(c);
    each_lot([&](const DeviceTensors::Lot& lot) { read(at, lot); });
  }
}

}  // namespace

void reduce_lots(Context& c, Pool& pool, Bytes data, const std::vector<DeviceTensors::Lot>& lots,
                 const Reduction& how) {
  in_slots(
      c, pool, data.size(), lots,
      [&](std::byte* slot, std::size_t at, std::size_t bytes, const auto&) {
        copy_async(slot, data.data() + at, bytes, pool.stream());
      },
      [&](std::size_t at, const DeviceTensors::Lot& lot) {
        if (lot.owner != c.local_rank()) return;
        std::vector<const void*> sources;
        for (int rank = 0; rank < c.local_size(); ++rank) sources.push_back(pool.slot(rank) + (lot.begin - at));
        reduce_async(data.data() + lot.begin, nullptr, sources, lot.bytes / element_bytes(how.type), how,
                     pool.stream());
      });
}

void share_lots(Context& c, Pool& pool, Bytes data, const std::vector<DeviceTensors::Lot>& lots) {
  in_slots(
      c, pool, data.size(), lots,
      [&](std::byte* slot, std::size_t at, std::size_t, const auto& each_lot) {
        each_lot([&](const DeviceTensors::Lot& lot) {
          if (lot.owner == c.local_rank())
            copy_async(slot + (lot.begin - at), data.data() + lot.begin, lot.bytes, pool.stream());
        });
      },
      [&](std::size_t at, const DeviceTensors::Lot& lot) {
        if (lot.owner != c.local_rank())
          copy_async(data.data() + lot.begin, pool.slot(lot.owner) + (lot.begin - at), lot.bytes, pool.stream());
      });
}

}  // namespace accdp
