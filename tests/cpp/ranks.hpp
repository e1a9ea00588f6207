#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "coll/group.hpp"
#include "thread_wire.hpp"

/// The memory that the ranks of one node share.
class Segment {
 public:
  explicit Segment(int ranks) : fd_(accdp::nameless_memory("accdp-test")) {
    CHECK(ftruncate(fd_, static_cast<off_t>(accdp::Board::segment_bytes(ranks))) == 0);
  }
  Segment(const Segment&) = delete;
  ~Segment() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// Memory that is shared with the processes forked after it was made.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    value_ = new (memory) T();
  }
  Shared(const Shared&) = delete;
  ~Shared() { munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

/// Runs `body` in `size` child processes; true if all of them ended well.
bool fork_ranks(int size, const std::function<void(int rank)>& body);

using Body = std::function<void(accdp::Group&)>;

/// Runs `body` in processes that form one group on one node, whose memory is `segment`; true if all ended well.
bool run_ranks(int size, const Body& body, const Segment& segment);
bool run_ranks(int size, const Body& body);

/// The same with ranks whose memory nobody may read, as where the system forbids it.
bool run_closed_ranks(int size, const Body& body);

/// Of a node that is a container: of its machine's cores less than one is its own, so that leaders meet at the hub.
constexpr double kSharedCores = 0.5, kOwnCores = std::numeric_limits<double>::infinity();

/// Runs `body` in threads that form one group over several nodes: nodes[r] is rank r's. An exception ends the test.
void run_nodes(const std::vector<int>& nodes, const Body& body, double cores = kOwnCores,
               const std::shared_ptr<Mail>& mail = std::make_shared<Mail>());
