#include "ranks.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#if defined(__SANITIZE_THREAD__)
#include "one_mapping.hpp"
#endif

bool fork_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    try {
      body(rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, error.what());
      std::_Exit(1);
    }
    std::exit(0);  // with the leak check of the sanitizer
  }
  bool good = true;
  for (pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

bool run_ranks(int size, const Body& body, const Segment& segment) {
  struct Meeting {
    std::atomic<int> arrived{0};
    std::atomic<int> pids[16];
  };
  Shared<Meeting> meeting;
  return fork_ranks(size, [&](int rank) {
    meeting->pids[rank] = getpid();
    meeting->arrived++;
    while (meeting->arrived < size) usleep(100);
    std::vector<accdp::Peer> peers;
    for (int r = 0; r < size; ++r) peers.push_back({"host", meeting->pids[r], 0, 0});
    accdp::Group group("test", rank, peers, size > 1 ? segment.fd() : -1, 30, nullptr);
    body(group);
  });
}

bool run_ranks(int size, const Body& body) { return run_ranks(size, body, Segment(size)); }

bool run_closed_ranks(int size, const Body& body) {
  return fork_ranks(1, [&](int) {
    if (geteuid() == 0) CHECK(setuid(65534) == 0);  // root may read everything
    CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
    const bool good = run_ranks(size, [&](accdp::Group& group) {
      body(group);
      std::_Exit(0);  // the sanitizer's leak check wants to read its own memory
    });
    std::_Exit(good ? 0 : 1);
  });
}

void run_nodes(const std::vector<int>& nodes, const Body& body, double cores, const std::shared_ptr<Mail>& mail) {
  const int size = static_cast<int>(nodes.size());
  std::map<int, int> members;
  for (int node : nodes) ++members[node];
  std::map<int, Segment> segments;
  for (auto [node, ranks] : members)
    if (ranks > 1) segments.try_emplace(node, ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::vector<accdp::Peer> peers;
        for (int node : nodes) peers.push_back({"host" + std::to_string(node), getpid(), 0, node, cores});
        const auto segment = segments.find(nodes[rank]);
        const int fd = segment == segments.end() ? -1 : segment->second.fd();
        accdp::Group group("test", rank, peers, fd, 30, std::make_shared<ThreadWire>(mail, rank, size));
        body(group);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, error.what());
        std::_Exit(1);
      }
    });
  for (std::thread& thread : threads) thread.join();
}
