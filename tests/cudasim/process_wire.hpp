#pragma once
// Groups over several nodes in processes: unlike threads (ranks.hpp), they can open each other's device memory.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "ranks.hpp"

/// Messages between the processes of a test, over a socket for each two of them. Like MPI it moves nothing by itself,
/// and a send is done when its bytes have left its buffer.
class ProcessWire : public accdp::Wire {
 public:
  /// sockets[r]: to rank r; unused for this one.
  explicit ProcessWire(const std::vector<int>& sockets);

  Request isend(accdp::ConstBytes data, int to, Tag tag, Form form = Form::kWhole) override;
  Request irecv(accdp::Bytes data, int from, Tag tag, Form form = Form::kWhole) override;
  Request start(const NativeCall&) override { throw accdp::UsageError("a test's wire has no collectives of its own"); }
  bool has_native(accdp::Datatype, accdp::ReduceOp) const override { return false; }
  bool test(Request& request) override;
  bool take(Tag tag, int& from, std::vector<std::byte>& message) override;
  void forget(Request& request) noexcept override;
  void retire(int) noexcept override {}
  void worsen(Health health) noexcept override { health_ = std::max<Health>(health_, health); }
  bool late_ranks_live() const noexcept override { return true; }
  Health health() const noexcept override { return health_; }

 private:
  struct Head {
    int tag;
    std::size_t bytes;
  };
  struct Leaving {
    std::uint64_t id;
    Head head;
    accdp::ConstBytes data;
    std::size_t written;  // head included
  };
  struct Posted {
    std::uint64_t id;
    accdp::Bytes data;
  };
  struct Link {
    int socket = -1;
    std::deque<Leaving> leaving;
    Head head{};
    std::size_t read = 0;  // of the message that is coming, head included
    std::vector<std::byte> coming;
  };
  using Route = std::pair<int, int>;  // from, tag

  void progress();
  static bool write(Link& link, Leaving& message);
  static bool read(Link& link);
  void match(std::deque<Posted>& receives, std::deque<std::vector<std::byte>>& messages);

  std::mutex mutex_;
  std::vector<Link> links_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::size_t> done_;  // bytes
  std::map<Route, std::deque<Posted>> posted_;
  std::map<Route, std::deque<std::vector<std::byte>>> arrived_;
  std::atomic<Health> health_{kWell};
};

using MakeWire = std::function<std::shared_ptr<accdp::Wire>(const std::vector<int>& sockets)>;
template <class Kind>
std::shared_ptr<accdp::Wire> wire_of(const std::vector<int>& sockets) {
  return std::make_shared<Kind>(sockets);
}

/// Runs `body` in processes that form one group over several nodes: nodes[r] is rank r's. True if all ended well.
bool run_processes_on_nodes(const std::vector<int>& nodes, const Body& body,
                            const MakeWire& make = wire_of<ProcessWire>);
