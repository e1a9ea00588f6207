#include "coll/joining.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/keep.hpp"
#include "coll/fabric.hpp"
#include "coll/notices.hpp"
#include "node/process.hpp"

namespace accdp {
namespace {

Arrival arrival_of(const Board& board, int local_rank) {
  return board.line(local_rank).arrival.load(std::memory_order_acquire);
}

class Mapped : public Lookout {
 public:
  Mapped(Fabric& fabric, const Deadline& deadline) : Lookout(fabric, deadline) {}
  bool all() const {
    for (int rank = 0; rank < fabric_.board().local_size(); ++rank)
      if (arrival_of(fabric_.board(), rank) != Arrival::kMapped) return false;
    return true;
  }

 protected:
  bool waits_for(int rank) const override {
    const Topology& t = fabric_.topology();
    return t.is_near(rank) && arrival_of(fabric_.board(), t.local_of(rank)) != Arrival::kMapped;
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
    try {
      Wire::Request request = wire.isend(data, rank, Wire::kFailure);
      wire.forget(request);
    } catch (const PeerDied&) {  // the others are to hear of it all the same
    }
  }
  int from;
  std::vector<std::byte> ignored;
  for (Looks looks(kLeaves); !wire.moves_by_itself() && looks.go_on(); std::this_thread::yield())
    wire.take(Wire::kFailure, from, ignored);
}

/// Of a board on which a failure has been told. Its memory has no name: the node's other ranks open it by way of the
/// leader, and could not read why the group failed if that closed it before they came.
void await_readers(const Fabric& fabric, const Board& board) {
  constexpr std::chrono::seconds kComes{3};
  const Topology& t = fabric.topology();
  if (t.local_rank() != 0) return;
  const auto is_awaited = [&](int rank) {
    const Peer& peer = fabric.peer(rank);
    return arrival_of(board, t.local_of(rank)) == Arrival::kNone && process_lives(peer.pid, peer.start_time);
  };
  const auto until = Clock::now() + kComes;
  while (std::ranges::any_of(t.neighbours(), is_awaited) && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

std::shared_ptr<Board> map_board(const Fabric& fabric, int fd, Wire* wire) {
  const Topology& t = fabric.topology();
  try {
    return std::make_shared<Board>(fd, t.local_size(), t.local_rank());
  } catch (const SystemCallError& error) {
    const std::string text = fabric.describe(t.rank()) + " could not join: " + error.what();
    try {
      std::unique_ptr<Board> beginning;
      if (fd >= 0) {
        beginning = Board::beginning(fd, t.local_size(), t.local_rank());
        beginning->fail(FailureKind::kOther, text);
        beginning->mine().arrival.store(Arrival::kTurnedAway, std::memory_order_release);
      }
      if (wire) wire->worsen(Wire::kGroupFailed);
      if (wire) tell_other_nodes(t, *wire, notice_of(FailureKind::kOther, 0, text));
      if (beginning) await_readers(fabric, *beginning);
    } catch (const std::exception& trouble) {  // they then hear of it when this process ends, or by their deadlines
      std::fprintf(stderr, "accdp: rank %d of group %s could not tell others that it stops: %s\n", t.rank(),
                   fabric.name().c_str(), trouble.what());
    }
    throw SystemCallError(fabric.here() + ": " + text);
  }
}

void await_mates(Fabric& fabric, double timeout_s) {
  fabric.board().ring_others(kCollective);
  Mapped mapped(fabric, Deadline(timeout_s));
  try {
    wait_until(fabric.board(), kCollective, fabric.patience(kCollective), [&] { return mapped.all(); }, mapped);
  } catch (const Interrupted&) {
    fabric.fail(FailureKind::kOther,
                fabric.describe(fabric.topology().rank()) + " was interrupted while the group was formed");
    throw;
  } catch (...) {
    if (fabric.board().has_failed() && fabric.board().failure().first != FailureKind::kTimeout)
      await_readers(fabric, fabric.board());
    throw;
  }
}

}  // namespace accdp
