#include "process_wire.hpp"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

ProcessWire::ProcessWire(const std::vector<int>& sockets) : links_(sockets.size()) {
  for (std::size_t rank = 0; rank < sockets.size(); ++rank) links_[rank].socket = sockets[rank];
}

accdp::Wire::Request ProcessWire::isend(accdp::ConstBytes data, int to, Tag tag, Form form) {
  std::lock_guard lock(mutex_);
  links_[to].leaving.push_back({++last_, {tag, data.size()}, data, 0});
  count(data.size(), tag);
  progress();
  return {last_, data.size(), to, true, false, form};
}

accdp::Wire::Request ProcessWire::irecv(accdp::Bytes data, int from, Tag tag, Form form) {
  std::lock_guard lock(mutex_);
  posted_[{from, tag}].push_back({++last_, data});
  return {last_, data.size(), from, true, true, form};
}

bool ProcessWire::test(Request& request) {
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

bool ProcessWire::take(Tag tag, int& from, std::vector<std::byte>& message) {
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

void ProcessWire::forget(Request& request) noexcept {
  if (!request.pending) return;
  request.pending = false;
  std::lock_guard lock(mutex_);
  for (auto& [route, receives] : posted_)
    std::erase_if(receives, [&](const Posted& one) { return one.id == request.raw; });
}

void ProcessWire::progress() {
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

bool ProcessWire::write(Link& link, Leaving& message) {
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

bool ProcessWire::read(Link& link) {
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

void ProcessWire::match(std::deque<Posted>& receives, std::deque<std::vector<std::byte>>& messages) {
  for (; !receives.empty() && !messages.empty(); receives.pop_front(), messages.pop_front()) {
    const std::size_t fits = std::min(receives.front().data.size(), messages.front().size());
    if (fits) std::memcpy(receives.front().data.data(), messages.front().data(), fits);
    done_[receives.front().id] = messages.front().size();
  }
}

bool run_processes_on_nodes(const std::vector<int>& nodes, const Body& body, const MakeWire& make) {
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
    accdp::Group group("test", rank, peers, fd, 30, make(sockets[rank]));
    body(group);
  });
  for (const std::vector<int>& row : sockets)
    for (int socket : row)
      if (socket >= 0) close(socket);
  return good;
}
