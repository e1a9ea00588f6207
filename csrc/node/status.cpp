#include "node/status.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "base/birthplace.hpp"
#include "base/error.hpp"
#include "base/published.hpp"

namespace accdp {
namespace {

/// Cut, where it must be, between characters of UTF-8.
template <std::size_t n>
void copy_text(char (&to)[n], const std::string& text) noexcept {
  std::size_t length = std::min(text.size(), n - 1);
  while (length > 0 && length < text.size() && (text[length] & 0xc0) == 0x80) --length;
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, n - length);
}

template <std::size_t n>
std::string text_in(const char (&from)[n]) {
  return std::string(from, strnlen(from, n));
}

}  // namespace

struct alignas(64) StatusRecord {
  struct Doing {
    Signature call;
    std::int64_t begun_ns;
    std::uint64_t is_background;
  };
  struct Waiting {
    std::int64_t since_ns, seen_ns;  // 0: no wait
    std::int32_t count, listed;
    std::int32_t is_for_any, is_partial;
    struct Peer {
      std::int32_t rank, pid;
      std::uint32_t parts;
      char host[68];
    } ranks[StatusLine::kMostShown];
    char what[96];
  };
  struct Failure {
    char text[512];
  };
  enum Use : std::uint32_t { kFree, kTaken, kShown, kLeft };

  std::atomic<Use> use;
  std::int32_t rank, size, nodes;
  std::uint64_t group;
  char name[64];
  Published<Doing> doing;
  std::atomic<std::int64_t> ended_ns;
  Published<Waiting> waiting[kWaitKinds];
  Published<Failure> failure;
};

/// As it lies in memory: bytes of zero are free records.
struct StatusPage {
  static constexpr std::uint32_t kRecords = 256;
  static constexpr char kMagic[8] = "accdp 1";

  char magic[8];
  char version[24];
  std::int32_t pid;
  std::uint32_t record_bytes;
  std::atomic<std::uint32_t> used;  // records up to the last that was ever taken
  std::atomic<std::int32_t> not_shown, blocked;
  alignas(64) StatusRecord records[kRecords];

  /// This process's; nullptr where it cannot be made. One that was forked from another makes its own.
  static StatusPage* own() noexcept;
  static StatusPage* make(int fd) noexcept;
  StatusRecord* take() noexcept;
  static GroupStatus status_of(const StatusRecord& record);
};

namespace {

/// This process's page and its descriptor; no page where none could be made. What a parent had stays: lines point to
/// it.
struct Own {
  Birthplace birthplace;
  int fd;
  StatusPage* page;
  const Own* inherited;
};
std::atomic<Own*> g_own{nullptr};

}  // namespace

StatusPage* StatusPage::make(int fd) noexcept {
  // Sealed: nobody who has it mapped comes upon a page that is not there.
  if (fd < 0 || ftruncate(fd, sizeof(StatusPage)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* page = static_cast<StatusPage*>(memory);  // of zeros, which is its first state
  page->pid = getpid();
  page->record_bytes = sizeof(StatusRecord);
  std::strncpy(page->version, ACCDP_VERSION, sizeof page->version - 1);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(page->magic, kMagic, sizeof kMagic);
  return page;
}

/// Without a lock, which another thread may hold when this process is forked.
StatusPage* StatusPage::own() noexcept {
  Own* before = g_own.load(std::memory_order_acquire);
  if (before && !before->birthplace.is_elsewhere()) return before->page;
  int fd = try_nameless_memory(kStatusLabel, true);
  StatusPage* const made = make(fd);
  if (!made && fd >= 0) close(std::exchange(fd, -1));
  Own* own = new (std::nothrow) Own{{}, fd, made, before};
  if (own && g_own.compare_exchange_strong(before, own, std::memory_order_acq_rel)) return own->page;
  if (made) munmap(made, sizeof(StatusPage));
  if (fd >= 0) close(fd);
  delete own;
  return before ? before->page : nullptr;
}

StatusRecord* StatusPage::take() noexcept {
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    StatusRecord::Use free = StatusRecord::kFree;
    if (!records[i].use.compare_exchange_strong(free, StatusRecord::kTaken)) continue;
    std::uint32_t before = used.load();
    while (before < i + 1 && !used.compare_exchange_weak(before, i + 1)) {
    }
    return &records[i];
  }
  return nullptr;
}

StatusLine::StatusLine(std::uint64_t group, const std::string& name, int rank, int size, int nodes) noexcept
    : group_(group) {
  StatusPage* page = StatusPage::own();
  record_ = page ? page->take() : nullptr;
  is_counted_ = page && !record_;
  if (is_counted_) ++page->not_shown;
  if (!record_) return;
  record_->rank = rank;
  record_->size = size;
  record_->nodes = nodes;
  record_->group = group;
  copy_text(record_->name, name);
  record_->doing.write({});
  record_->ended_ns.store(0, std::memory_order_relaxed);
  for (auto& waiting : record_->waiting) waiting.write({});
  record_->failure.write({});
  record_->use.store(StatusRecord::kShown, std::memory_order_release);
}

StatusLine::~StatusLine() {
  if (is_shown()) record_->use.store(StatusRecord::kFree, std::memory_order_release);
  if (is_counted_ && !birthplace_.is_elsewhere()) --StatusPage::own()->not_shown;
}

/// In a process that was forked from the group's the record is still that one's.
bool StatusLine::is_shown() const noexcept { return record_ && !birthplace_.is_elsewhere(); }

void StatusLine::begin(const Signature& call, Clock::time_point now) noexcept {
  if (record_) record_->doing.write({call, nanoseconds(now), BackgroundThread::is_this()});
}

void StatusLine::end(Clock::time_point now) noexcept {
  if (record_) record_->ended_ns.store(nanoseconds(now), std::memory_order_release);
}

void StatusLine::wait(const GroupStatus::Wait& wait) noexcept {
  if (!is_shown()) return;
  StatusRecord::Waiting waiting{};
  waiting.since_ns = wait.since_ns;
  waiting.seen_ns = wait.seen_ns;
  waiting.count = wait.count;
  waiting.listed = static_cast<std::int32_t>(std::min<std::size_t>(wait.ranks.size(), kMostShown));
  waiting.is_for_any = wait.is_for_any;
  waiting.is_partial = wait.is_partial || wait.ranks.size() > kMostShown;
  copy_text(waiting.what, wait.what);
  for (int i = 0; i < waiting.listed; ++i) {
    const WaitedFor& peer = wait.ranks[i];
    waiting.ranks[i].rank = peer.rank;
    waiting.ranks[i].pid = peer.pid;
    waiting.ranks[i].parts = peer.parts;
    copy_text(waiting.ranks[i].host, peer.host);
  }
  const std::lock_guard lock(mutex_);
  record_->waiting[wait.kind].write(waiting);
}

void StatusLine::end_wait(WaitKind kind) noexcept {
  if (!is_shown()) return;
  const std::lock_guard lock(mutex_);
  record_->waiting[kind].write({});
}

void StatusLine::fail(const std::string& text) noexcept {
  if (!is_shown()) return;
  StatusRecord::Failure failure;
  copy_text(failure.text, text);
  const std::lock_guard lock(mutex_);
  record_->failure.write(failure);
}

void StatusLine::leave() noexcept {
  if (is_shown()) record_->use.store(StatusRecord::kLeft, std::memory_order_release);
}

// Here, because each module that the header were compiled into would have a variable of its own.
thread_local bool t_is_background = false;
BackgroundThread::BackgroundThread() noexcept { t_is_background = true; }
BackgroundThread::~BackgroundThread() { t_is_background = false; }
bool BackgroundThread::is_this() noexcept { return t_is_background; }

BlockedThread::BlockedThread() noexcept {
  if (StatusPage* page = StatusPage::own()) ++page->blocked;
}

BlockedThread::~BlockedThread() {
  if (birthplace_.is_elsewhere()) return;
  if (StatusPage* page = StatusPage::own()) --page->blocked;
}

namespace {

const StatusPage& page_in(std::span<const std::byte> memory) {
  const auto* page = reinterpret_cast<const StatusPage*>(memory.data());
  if (memory.size() < sizeof *page || std::memcmp(page->magic, StatusPage::kMagic, sizeof page->magic) != 0)
    throw UsageError("status: expected a page of accdp, got " + std::to_string(memory.size()) + " bytes of something");
  return *page;
}

}  // namespace

GroupStatus StatusPage::status_of(const StatusRecord& record) {
  GroupStatus status;
  status.group = record.group;
  status.name = text_in(record.name);
  status.rank = record.rank;
  status.size = record.size;
  status.nodes = record.nodes;
  status.has_left = record.use == StatusRecord::kLeft;
  if (const auto failure = record.failure.read()) status.failure = text_in(failure->text);
  const auto doing = record.doing.read();
  if (doing && doing->call.sequence > 0) {
    status.call = doing->call;
    status.begun_ns = doing->begun_ns;
    status.is_background = doing->is_background != 0;
    const std::int64_t ended = record.ended_ns.load(std::memory_order_acquire);
    status.ended_ns = ended > doing->begun_ns ? ended : 0;
  }
  for (const WaitKind kind : {kForCollective, kForMessages, kForAttended}) {
    const auto waiting = record.waiting[kind].read();
    if (!waiting || waiting->seen_ns == 0) continue;
    GroupStatus::Wait& wait = status.waits.emplace_back();
    wait.kind = kind;
    wait.is_for_any = waiting->is_for_any != 0;
    wait.is_partial = waiting->is_partial != 0;
    wait.what = text_in(waiting->what);
    wait.count = waiting->count;
    wait.since_ns = waiting->since_ns;
    wait.seen_ns = waiting->seen_ns;
    for (const auto& peer : std::span(waiting->ranks).first(std::clamp(waiting->listed, 0, StatusLine::kMostShown)))
      wait.ranks.push_back({peer.rank, peer.pid, text_in(peer.host), peer.parts});
  }
  return status;
}

StatusOfProcess read_status(std::span<const std::byte> memory) {
  const StatusPage& page = page_in(memory);
  StatusOfProcess found{.pid = page.pid};
  if (const std::string version = text_in(page.version);
      version != ACCDP_VERSION || page.record_bytes != sizeof(StatusRecord)) {
    found.trouble = "shows what it does as accdp " + version + " reads it";
    return found;
  }
  found.not_shown = page.not_shown;
  found.blocked = page.blocked;
  for (std::uint32_t i = 0; i < std::min(page.used.load(), StatusPage::kRecords); ++i) {
    const StatusRecord& record = page.records[i];
    const StatusRecord::Use use = record.use.load(std::memory_order_acquire);
    if (use != StatusRecord::kShown && use != StatusRecord::kLeft) continue;
    GroupStatus status = StatusPage::status_of(record);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (record.use.load() != StatusRecord::kFree && record.use.load() != StatusRecord::kTaken &&
        status.group == record.group)
      found.groups.push_back(std::move(status));  // else another group has its place by now
  }
  return found;
}

namespace {

/// The page at a path, if it is one, and not what a fork has left another process with.
std::optional<StatusOfProcess> status_at(const std::string& path, int pid) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat about;
  void* memory = MAP_FAILED;
  if (fstat(fd, &about) == 0 && about.st_size >= static_cast<off_t>(sizeof(StatusPage)) &&
      (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
    memory = mmap(nullptr, sizeof(StatusPage), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return std::nullopt;
  const std::unique_ptr<void, void (*)(void*)> mapping(memory, [](void* at) { munmap(at, sizeof(StatusPage)); });
  try {
    StatusOfProcess found = read_status({static_cast<const std::byte*>(memory), sizeof(StatusPage)});
    if (found.pid == pid) return found;
  } catch (const UsageError&) {  // another version's
  }
  return std::nullopt;
}

}  // namespace

std::optional<StatusOfProcess> status_of_process(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  while (const dirent* file = files ? readdir(files.get()) : nullptr) {
    char name[PATH_MAX] = {};
    if (readlink((folder + file->d_name).c_str(), name, sizeof name - 1) < 0) continue;
    if (!std::string_view(name).starts_with(std::string("/memfd:") + kStatusLabel)) continue;
    if (auto found = status_at(folder + file->d_name, pid)) return found;
  }
  return std::nullopt;
}

}  // namespace accdp
