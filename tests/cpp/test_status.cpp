// The page on which a process shows what it does in its groups.
#include "node/status.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/published.hpp"
#include "check.hpp"
#include "coll/call.hpp"

using namespace accdp;

namespace {

/// What another process would read of a page of this one's descriptors; in the order of their numbers.
std::vector<StatusOfProcess> pages() {
  std::vector<StatusOfProcess> found;
  for (int fd = 0; fd < 256; ++fd) {
    char name[256] = {};
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name - 1) < 0) continue;
    if (!std::strstr(name, kStatusLabel)) continue;
    struct stat about;
    CHECK(fstat(fd, &about) == 0);
    void* memory = mmap(nullptr, about.st_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    found.push_back(read_status({static_cast<std::byte*>(memory), std::size_t(about.st_size)}));
    munmap(memory, about.st_size);
  }
  return found;
}

std::vector<GroupStatus> groups() {
  const auto found = pages();
  CHECK(found.size() == 1 && found[0].pid == getpid());
  return found[0].groups;
}

void is_whole() {
  struct Pair {
    std::uint64_t number, words[20];
  };
  Published<Pair> published;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      Pair pair{i, {}};
      for (auto& word : pair.words) word = i;
      published.write(pair);
    }
  });
  std::uint64_t last = 0;
  for (int news = 0; news < 1000;) {
    const auto pair = published.read();
    if (!pair) continue;
    CHECK(pair->number >= last);
    news += pair->number > last;
    for (const auto word : pair->words) CHECK(word == pair->number);
    last = pair->number;
  }
  stop = true;
  writer.join();
  CHECK(published.read()->number >= last);
}

void shows() {
  StatusLine line(0xabcdef, "tp", 2, 8, 4);
  GroupStatus group = groups().at(0);
  CHECK(group.group == 0xabcdef && group.name == "tp" && group.rank == 2 && group.size == 8 && group.nodes == 4);
  CHECK(group.call.sequence == 0 && group.waits.empty() && group.failure.empty() && !group.has_left);

  const auto now = Clock::now();
  const Signature call{.sequence = 17,
                       .count = 4,
                       .kind = std::uint8_t(OpKind::kAllreduce),
                       .type = Datatype::kF32,
                       .op = std::uint8_t(ReduceOp::kSum)};
  line.begin(call, now);
  group = groups().at(0);
  CHECK(group.call == call && describe(group.call) == "allreduce (sum) of 4 float32" && group.ended_ns == 0);
  CHECK(group.begun_ns == nanoseconds(now));
  line.end(now + std::chrono::seconds(1));
  CHECK(groups().at(0).ended_ns == nanoseconds(now) + 1'000'000'000);
  Signature next = call;
  next.sequence = 18;
  line.begin(next, now + std::chrono::seconds(2));  // the end of the one before is not its own
  CHECK(groups().at(0).call.sequence == 18 && groups().at(0).ended_ns == 0);

  line.wait({kForAttended, true, false, "recv of 4 bytes, tag 7", {{3, 4243, std::string(100, 'h'), 9}}, 1, 5, 6});
  line.wait({kForMessages, false, false, "send of 8 bytes, tag 1", {{5, 1, "c"}}, 1, 3, 4});
  line.wait({kForCollective, false, true, "allreduce #18", {{0, 1, "a"}, {1, 2, "b"}}, 7, 8, 9});
  group = groups().at(0);
  CHECK(group.waits.size() == 3);
  const GroupStatus::Wait &collective = group.waits[0], &message = group.waits[2];
  CHECK(group.waits[1].kind == kForMessages && group.waits[1].what == "send of 8 bytes, tag 1");
  CHECK(collective.kind == kForCollective && collective.what == "allreduce #18");
  CHECK(collective.count == 7 && collective.ranks[0].rank == 0 && collective.ranks[1].host == "b");
  CHECK(collective.since_ns == 8 && collective.seen_ns == 9);
  CHECK(message.kind == kForAttended && message.what == "recv of 4 bytes, tag 7");
  CHECK(message.ranks.size() == 1 && message.ranks[0].pid == 4243 && message.ranks[0].host == std::string(67, 'h'));
  CHECK(message.is_for_any && !collective.is_for_any && !message.is_partial && collective.is_partial);
  CHECK(message.ranks[0].parts == (kSends | kAwaitsReceive));
  line.end_wait(kForCollective);
  line.end_wait(kForAttended);
  CHECK(groups().at(0).waits.size() == 1 && groups().at(0).waits[0].kind == kForMessages);

  line.fail(std::string(1000, 'x'));
  CHECK(groups().at(0).failure == std::string(511, 'x'));
  std::string cut;
  for (int i = 0; i < 400; ++i) cut += "\u65e5";  // three bytes each
  line.fail(cut);
  CHECK(groups().at(0).failure == cut.substr(0, 510));
  line.leave();
  CHECK(groups().at(0).has_left);
}

void gives_places_back() {
  CHECK(groups().empty());
  std::deque<StatusLine> lines;
  for (int i = 0; i < 257; ++i) lines.emplace_back(i, "g", i, 1000, 1);
  CHECK(groups().size() == 256 && pages()[0].not_shown == 1);
  Signature call{.sequence = 1};
  lines.back().begin(call, Clock::now());  // which has no place
  lines.back().end(Clock::now());
  lines.back().fail("nowhere");
  lines.pop_front();
  lines.emplace_back(1000, "late", 999, 1000, 1);
  CHECK(groups().size() == 256 && groups()[0].name == "late");
  lines.clear();
  CHECK(groups().empty() && pages()[0].not_shown == 0);
}

/// What a thread waits for that others do, and what those do.
void tells_threads_apart() {
  StatusLine line(1, "g", 0, 2, 1);
  Signature call{.sequence = 1};
  line.begin(call, Clock::now());
  CHECK(!groups().at(0).is_background && pages()[0].blocked == 0);
  std::thread([&] {
    const BackgroundThread here;
    line.begin(call, Clock::now());
  }).join();
  const BlockedThread one, another;
  CHECK(groups().at(0).is_background && pages()[0].blocked == 2);
}

/// As another process would, by its pid.
void is_found() {
  StatusLine line(77, "g", 0, 2, 1);
  const auto found = status_of_process(getpid());
  CHECK(found && found->pid == getpid() && found->groups.at(0).group == 77);
  CHECK(!status_of_process(1 << 22));
}

/// A process that was forked from a rank has its page, and may not write there; what it joins itself it shows on its
/// own one.
void is_the_process_s_own() {
  auto line = std::make_unique<StatusLine>(1, "parents", 0, 2, 1);
  const pid_t child = fork();
  if (child == 0) {
    line->fail("in the child");
    line->leave();
    line.reset();
    CHECK(pages().size() == 1 && pages()[0].pid == getppid());
    StatusLine own(2, "child's", 1, 2, 1);
    const auto found = pages();
    CHECK(found.size() == 2);
    for (const StatusOfProcess& page : found)
      CHECK(page.groups.size() == 1 && page.groups[0].name == (page.pid == getpid() ? "child's" : "parents"));
    std::_Exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  const GroupStatus group = groups().at(0);
  CHECK(group.failure.empty() && !group.has_left);
}

void refuses_others() {
  alignas(64) static std::byte nothing[1 << 20] = {};
  CHECK_THROWS(read_status(nothing), UsageError, "expected a page of accdp");
  CHECK_THROWS(read_status(std::span(nothing).first(100)), UsageError, "got 100 bytes");
  std::memcpy(nothing, "accdp 1\0000.0.9", 14);
  CHECK(read_status(nothing).trouble == "shows what it does as accdp 0.0.9 reads it");
}

}  // namespace

int main() {
  is_whole();
  shows();
  gives_places_back();
  tells_threads_apart();
  is_found();
  is_the_process_s_own();
  refuses_others();
}
