#include "coll/fabric.hpp"

#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/settings.hpp"

namespace accdp {
namespace {

std::vector<int> nodes_of(const std::vector<Peer>& peers) {
  std::vector<int> nodes;
  for (const Peer& peer : peers) nodes.push_back(peer.node);
  return nodes;
}

std::chrono::nanoseconds microseconds(double us) { return std::chrono::nanoseconds(static_cast<std::int64_t>(us * 1e3)); }

/// Waits until every rank of the node has mapped the segment.
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

}  // namespace

Fabric::Fabric(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout,
               std::shared_ptr<Wire> wire)
    : timeout_s(timeout),
      name_(std::move(name)),
      peers_(std::move(peers)),
      topology_(rank, nodes_of(peers_)),
      board_(segment_fd, topology_.local_size(), topology_.local_rank()),
      wire_(std::move(wire)),
      patience_{microseconds(settings().spin_us), microseconds(settings().yield_us)} {
  if (topology_.nodes() > 1 && !wire_) throw UsageError("wire=None: expected a wire, because the group spans nodes");
  board_.ring_others(kCollective);
  Mapped mapped(*this, Deadline(timeout));
  wait_until(board_, kCollective, patience_, [&] { return mapped.all(); }, mapped);
  if (board_.usable_cores() < board_.local_size()) patience_.spin = patience_.spin.zero();
}

std::string Fabric::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(peers_[rank].pid) + ", host " + peers_[rank].host + ")";
}

void Fabric::fail(FailureKind kind, const std::string& text) noexcept {
  std::lock_guard lock(failure_mutex_);
  board_.fail(kind, text);
  if (!wire_ || told_others_) return;
  told_others_ = true;
  wire_->mark_broken();
  try {
    for (int rank = 0; rank < topology_.size(); ++rank) {
      if (topology_.is_near(rank)) continue;
      auto notice = std::make_unique<std::vector<std::byte>>(sizeof kind + text.size());
      std::memcpy(notice->data(), &kind, sizeof kind);
      std::memcpy(notice->data() + sizeof kind, text.data(), text.size());
      wire_->isend(*notice, rank, Wire::kFailure);
      told_.push_back(std::move(notice));
    }
  } catch (const std::exception& error) {
    // The group has failed already; that others hear of it only through their deadline changes nothing here.
    std::fprintf(stderr, "accdp: rank %d of group %s could not tell other nodes of a failure: %s\n", topology_.rank(),
                 name_.c_str(), error.what());
  }
}

void Fabric::throw_if_failed() {
  if (wire_ && !board_.has_failed()) {
    int from;
    std::vector<std::byte> notice;
    if (wire_->take(Wire::kFailure, from, notice) && notice.size() >= sizeof(FailureKind)) {
      FailureKind kind;
      std::memcpy(&kind, notice.data(), sizeof kind);
      wire_->mark_broken();
      board_.fail(kind, std::string(reinterpret_cast<const char*>(notice.data()) + sizeof kind, notice.size() - sizeof kind));
    }
  }
  if (!board_.has_failed()) return;
  auto [kind, text] = board_.failure();
  throw_failure(kind, "rank " + std::to_string(topology_.rank()) + " of " + std::to_string(topology_.size()) + ", group " +
                          name_ + ": " + text);
}

void Fabric::leave() noexcept {
  board_.mine().left.store(1, std::memory_order_release);
  board_.ring_others(kCollective);
  board_.ring_others(kPointToPoint);
}

bool Fabric::has_gone(int rank) const {
  if (!topology_.is_near(rank) || rank == topology_.rank()) return false;
  if (board_.line(topology_.local_of(rank)).left.load(std::memory_order_acquire)) return true;
  return !process_lives(peers_[rank].pid, peers_[rank].start_time);
}

std::string Fabric::how_it_went(int rank) const {
  bool left = board_.line(topology_.local_of(rank)).left.load(std::memory_order_acquire);
  return describe(rank) + (left ? " left the group" : " exited");
}

Bytes Fabric::scratch(std::size_t bytes) {
  scratch_.emplace_back(bytes);
  return scratch_.back();
}

void Fabric::release_scratch() noexcept {
  if (!scratch_.empty() && !board_.has_failed()) scratch_.clear();
}

void Lookout::look_around() {
  fabric_.throw_if_failed();
  check_interrupt();
  const auto now = Clock::now();
  const Topology& t = fabric_.topology();
  if (now >= next_census_) {
    const bool first = next_census_ == Clock::time_point{};
    next_census_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings().liveness_s));
    if (!first || deadline_.passed())
      for (int rank : t.neighbours()) {
        if (!waits_for(rank) || !fabric_.has_gone(rank)) continue;
        // It may have done its part just before it went: only believe it when a second look still misses something.
        if (suspect_ == rank) {
          fabric_.fail(FailureKind::kDied, fabric_.how_it_went(rank) + " during " + what());
          fabric_.throw_if_failed();
        }
        suspect_ = rank;
        next_census_ = now;
        return;
      }
  }
  if (now < deadline_.at()) return;
  std::string missing;
  for (int rank = 0; rank < t.size(); ++rank)
    if (waits_for(rank)) missing += (missing.empty() ? "" : ", ") + fabric_.describe(rank);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", deadline_.seconds());
  fabric_.fail(FailureKind::kTimeout, what() + " Timed out after " + seconds + " (timeout) waiting for " +
                                          (missing.empty() ? std::string("other ranks") : missing));
  fabric_.throw_if_failed();
}

}  // namespace accdp
