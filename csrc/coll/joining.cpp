#include "coll/joining.hpp"

#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/keep.hpp"
#include "coll/fabric.hpp"
#include "coll/notices.hpp"

namespace accdp {
namespace {

class Mapped : public Lookout {
 public:
  Mapped(Fabric& fabric, const Deadline& deadline) : Lookout(fabric, deadline) {}
  bool all() const {
    for (int rank = 0; rank < fabric_.board().local_size(); ++rank)
      if (!fabric_.board().line(rank).mapped.load(std::memory_order_acquire)) return false;
    return true;
  }

 protected:
  bool waits_for(int rank) const override {
    const Topology& t = fabric_.topology();
    return t.is_near(rank) && !fabric_.board().line(t.local_of(rank)).mapped.load(std::memory_order_acquire);
  }
  std::string what() const override { return "setting up the group"; }
};

/// Other nodes have what they need of this rank to form the group, and would wait for it in their first collective.
void tell_other_nodes(const Topology& t, Wire& wire, std::string notice) {
  constexpr std::chrono::milliseconds kLeaves{250};
  auto kept = std::make_unique<std::string>(std::move(notice));
  const ConstBytes data = std::as_bytes(std::span(*kept));
  keep_for_ever(std::move(kept));
  for (int rank = 0; rank < t.size(); ++rank) {
    if (t.is_near(rank) || wire.has_ended(rank)) continue;
    Wire::Request request = wire.isend(data, rank, Wire::kFailure);
    wire.forget(request);
  }
  int from;
  std::vector<std::byte> ignored;
  for (const auto until = Clock::now() + kLeaves; !wire.moves_by_itself() && Clock::now() < until;
       std::this_thread::yield())
    wire.take(Wire::kFailure, from, ignored);
}

}  // namespace

std::shared_ptr<Board> map_board(const Fabric& fabric, int fd, Wire* wire) {
  const Topology& t = fabric.topology();
  try {
    return std::make_shared<Board>(fd, t.local_size(), t.local_rank());
  } catch (const SystemCallError& error) {
    const std::string text = fabric.describe(t.rank()) + " could not join: " + error.what();
    try {
      if (fd >= 0) Board::fail_unmapped(fd, t.local_size(), t.local_rank(), FailureKind::kOther, text);
      if (wire) wire->worsen(Wire::kGroupFailed);
      if (wire) tell_other_nodes(t, *wire, notice_of(FailureKind::kOther, 0, text));
    } catch (const std::exception& trouble) {  // they then hear of it when this process ends, or by their deadlines
      std::fprintf(stderr, "accdp: rank %d of group %s could not tell others that it stops: %s\n", t.rank(),
                   fabric.name().c_str(), trouble.what());
    }
    throw SystemCallError("rank " + std::to_string(t.rank()) + " of " + std::to_string(t.size()) + ", group " +
                          fabric.name() + ": " + text);
  }
}

void await_mates(Fabric& fabric, double timeout_s) {
  fabric.board().ring_others(kCollective);
  Mapped mapped(fabric, Deadline(timeout_s));
  wait_until(fabric.board(), kCollective, fabric.patience(kCollective), [&] { return mapped.all(); }, mapped);
}

}  // namespace accdp
