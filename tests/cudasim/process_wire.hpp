#pragma once
// Groups over several nodes in processes: unlike threads (ranks.hpp), they can open each other's device memory.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
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
  explicit ProcessWire(std::vector<int> sockets) : links_(sockets.size()) {
    for (std::size_t rank = 0; rank < sockets.size(); ++rank) links_[rank].socket = sockets[rank];
  }

  Request isend(accdp::ConstBytes data, int to, Tag tag, Form form = Form::kWhole) override {
    std::lock_guard lock(mutex_);
    links_[to].leaving.push_back({++last_, {tag, data.size()}, data, 0});
    count(data.size(), tag);
    progress();
    return {last_, data.size(), to, true, false, form};
  }

  Request irecv(accdp::Bytes data, int from, Tag tag, Form form = Form::kWhole) override {
    std::lock_guard lock(mutex_);
    posted_[{from, tag}].push_back({++last_, data});
    return {last_, data.size(), from, true, true, form};
  }

  Request start(const NativeCall&) override { throw accdp::UsageError("a test's wire has no collectives of its own"); }
  bool has_native(accdp::Datatype, accdp::ReduceOp) const override { return false; }

  bool test(Request& request) override {
    if (!request.pending) return true;
    std::lock_guard lock(mutex_);
    progress();
    const auto found = done_.find(request.raw);
    if (found == done_.end()) return false;
    const std::size_t bytes = found->second;
    done_.erase(found);
    request.pending = false;
    if (request.is_receive && request.form != Form::kUpTo && bytes != request.bytes)
      throw accdp::MismatchError("rank " + std::to_string(request.peer) + " sent " + std::to_string(bytes) +
                                 " bytes, expected " + std::to_string(request.bytes));
    request.bytes = bytes;
    return true;
  }

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override {
    std::lock_guard lock(mutex_);
    progress();
    for (auto& [route, messages] : arrived_) {
      if (route.second != tag || messages.empty()) continue;
      from = route.first;
      message = std::move(messages.front());
      messages.pop_front();
      return true;
    }
    return false;
  }

  void forget(Request& request) noexcept override {
    if (!request.pending) return;
    request.pending = false;
    std::lock_guard lock(mutex_);
    for (auto& [route, receives] : posted_)
      std::erase_if(receives, [&](const Posted& one) { return one.id == request.raw; });
  }

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

  void progress() {
    for (int rank = 0; rank < static_cast<int>(links_.size()); ++rank) {
      Link& link = links_[rank];
      if (link.socket < 0) continue;
      while (!link.leaving.empty() && write(link, link.leaving.front())) {
        done_[link.leaving.front().id] = link.leaving.front().head.bytes;
        link.leaving.pop_front();
      }
      while (read(link)) {
        arrived_[{rank, link.head.tag}].push_back(std::exchange(link.coming, {}));
        link.read = 0;
      }
    }
    for (auto& [route, receives] : posted_) match(receives, arrived_[route]);
  }

  static bool write(Link& link, Leaving& message) {
    while (message.written < sizeof(Head) + message.head.bytes) {
      const std::size_t at = message.written;
      const std::byte* from = at < sizeof(Head) ? reinterpret_cast<const std::byte*>(&message.head) + at
                                                : message.data.data() + (at - sizeof(Head));
      const std::size_t most = at < sizeof(Head) ? sizeof(Head) - at : message.head.bytes - (at - sizeof(Head));
      const ssize_t n = send(link.socket, from, most, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) return false;  // full, or the other end has gone
      message.written += n;
    }
    return true;
  }

  static bool read(Link& link) {
    while (link.read < sizeof(Head) || link.read < sizeof(Head) + link.head.bytes) {
      const std::size_t at = link.read;
      std::byte* to =
          at < sizeof(Head) ? reinterpret_cast<std::byte*>(&link.head) + at : link.coming.data() + (at - sizeof(Head));
      const std::size_t most = at < sizeof(Head) ? sizeof(Head) - at : link.head.bytes - (at - sizeof(Head));
      const ssize_t n = recv(link.socket, to, most, MSG_DONTWAIT);
      if (n <= 0) return false;
      link.read += n;
      if (link.read == sizeof(Head)) link.coming.resize(link.head.bytes);
    }
    return true;
  }

  void match(std::deque<Posted>& receives, std::deque<std::vector<std::byte>>& messages) {
    for (; !receives.empty() && !messages.empty(); receives.pop_front(), messages.pop_front()) {
      const std::size_t fits = std::min(receives.front().data.size(), messages.front().size());
      if (fits) std::memcpy(receives.front().data.data(), messages.front().data(), fits);
      done_[receives.front().id] = messages.front().size();
    }
  }

  std::mutex mutex_;
  std::vector<Link> links_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::size_t> done_;  // bytes
  std::map<Route, std::deque<Posted>> posted_;
  std::map<Route, std::deque<std::vector<std::byte>>> arrived_;
  std::atomic<Health> health_{kWell};
};

/// Runs `body` in processes that form one group over several nodes: nodes[r] is rank r's. True if all ended well.
template <class AnyWire = ProcessWire>
bool run_processes_on_nodes(const std::vector<int>& nodes, const Body& body) {
  const int size = static_cast<int>(nodes.size());
  struct Meeting {
    std::atomic<int> arrived{0};
    std::atomic<int> pids[16];
  };
  Shared<Meeting> meeting;
  std::map<int, int> members;
  for (int node : nodes) ++members[node];
  std::map<int, Segment> segments;
  for (auto [node, ranks] : members)
    if (ranks > 1) segments.try_emplace(node, ranks);
  std::vector<std::vector<int>> sockets(size, std::vector<int>(size, -1));
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < a; ++b) {
      int ends[2];
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  const bool good = fork_ranks(size, [&](int rank) {
    meeting->pids[rank] = getpid();
    meeting->arrived++;
    while (meeting->arrived < size) usleep(100);
    std::vector<accdp::Peer> peers;
    for (int r = 0; r < size; ++r) peers.push_back({"host" + std::to_string(nodes[r]), meeting->pids[r], 0, nodes[r]});
    const auto segment = segments.find(nodes[rank]);
    const int fd = segment == segments.end() ? -1 : segment->second.fd();
    accdp::Group group("test", rank, peers, fd, 30, std::make_shared<AnyWire>(sockets[rank]));
    body(group);
  });
  for (const std::vector<int>& row : sockets)
    for (int socket : row)
      if (socket >= 0) close(socket);
  return good;
}
