#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/ranges.hpp"
#include "coll/device_route.hpp"
#include "coll/device_tensors.hpp"
#include "gpu/codec_workshop.hpp"
#include "gpu/host_room.hpp"
#include "gpu/pool.hpp"

namespace accdp {

class Group;

/// Blocks of device memory and their host copies, as codecs and reductions need them.
class CodecCopies final : public DeviceTensors {
 public:
  /// Collective over the ranks of a node: the pool that all of them share, or null on all.
  using NodePool = std::function<Pool*(Context&)>;

  /// blocks, copies: refer to the same memory, one by one, and copies lie apart in the room, in the order of addresses;
  /// all outlive this, as the group does.
  CodecCopies(Group& group, std::shared_ptr<SpareWorkshop> spare, NodePool node_pool, int device, cudaStream_t stream,
              const std::vector<DeviceBlock>& blocks, const std::vector<Bytes>& copies, HostRoom& room);
  CodecCopies(const CodecCopies&) = delete;
  /// Once it is idle, or will never be.
  ~CodecCopies() override;
  bool is_idle() const noexcept;  ///< but for what is in the order of the stream, or of the pool's

  bool holds(ConstBytes host) const override { return host.empty() || on_device(host); }
  bool has(const CodecRow& codec, Datatype type) const override;
  CodecCost speed(const CodecRow& codec, Datatype type) const override;
  void fetch(const std::vector<ConstBytes>& host) override;
  std::size_t begin_encode(const std::vector<Chunk>& chunks) override;
  const std::vector<ConstBytes>& encoded(std::size_t beginning) override;
  void end_encode(std::size_t beginning) override { workshop_->end_encode(beginning); }
  void decode(const CodecRow* codec, Datatype type, ConstBytes stored, const Place& to) override;
  std::uint32_t crc32c(ConstBytes host, std::uint32_t seed) override;
  void finish() override;
  Bytes scratch(std::size_t bytes) override;
  void reduce(Bytes to, const std::vector<ConstBytes>& sources, const Reduction& how) override;
  void round(std::size_t beginning, const std::vector<Rounding>& chunks, double factor, bool replaces) override;
  std::vector<double> deviations(const std::vector<Tensor>& tensors) override;
  bool joins_node(Context& context) override;
  void reduce_on_node(Context& context, Bytes data, const std::vector<Lot>& lots, const Reduction& how) override;
  void share_on_node(Context& context, Bytes data, const std::vector<Lot>& lots) override;

  /// Copies what was written in the host to the device, in the order of the stream.
  void deliver();

 private:
  std::byte* on_device(ConstBytes host) const;  // null where it is no copy
  CodecWorkshop::Place on_device(const Place& place) const;
  void is_written(ConstBytes host);  // on the device
  CodecWorkshop& workshop();
  void lend_to_pool();
  void take_back_from_pool(ConstBytes written);

  Group& group_;
  std::shared_ptr<SpareWorkshop> spare_;
  NodePool node_pool_;
  Pool* pool_ = nullptr;
  Event order_;
  int device_;
  cudaStream_t stream_;
  const std::vector<DeviceBlock>& blocks_;
  const std::vector<Bytes>& copies_;
  HostRoom& room_;
  std::unique_ptr<CodecWorkshop> workshop_;
  std::vector<Bytes> scratch_;
  // Of the host memory: what is as on the device, and what the device has a newer version of.
  Ranges fetched_, written_;
};

}  // namespace accdp
