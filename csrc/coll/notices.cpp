#include "coll/notices.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

namespace accdp {
namespace {

constexpr std::chrono::seconds kAnswerTakes{1};  // at most; a store on another host needs some 0.1 ms

/// What the caller and the thread share; whoever is later lets go of it.
struct Answer {
  std::mutex mutex;
  std::condition_variable came;
  bool is_there = false;
  std::string text, problem;
};

}  // namespace

std::string notice_of(FailureKind kind, std::uint64_t disputed, const std::string& text) {
  const NoticeHead head{kind, disputed};
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + text;
}

template <class Call>
std::string LimitedNotices::within_limit(Call call) noexcept {
  if (!*this) return {};
  std::string problem = "no answer in time";
  try {
    auto answer = std::make_shared<Answer>();
    std::thread([answer, call, notices = notices_] {
      std::string text, trouble;
      try {
        text = call(*notices);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
      std::lock_guard lock(answer->mutex);
      answer->text = std::move(text);
      answer->problem = std::move(trouble);
      answer->is_there = true;
      answer->came.notify_one();
    }).detach();
    std::unique_lock lock(answer->mutex);
    if (answer->came.wait_for(lock, kAnswerTakes, [&] { return answer->is_there; })) {
      if (answer->problem.empty()) return answer->text;
      problem = answer->problem;
    }
  } catch (const std::exception& error) {  // no memory, or no thread
    problem = error.what();
  }
  gave_up_ = true;
  static std::atomic_flag is_told;  // of all groups of a process, whose store is one
  if (is_told.test_and_set()) return {};
  std::fprintf(
      stderr,
      "accdp: ranks of other nodes are not told of failures through torch's store any more, nor asked for them: %s\n",
      problem.substr(0, problem.find('\n')).c_str());
  return {};
}

void LimitedNotices::leave(const std::string& text) noexcept {
  within_limit([text](Notices& notices) {
    notices.leave(text);
    return std::string();
  });
}

std::string LimitedNotices::find() noexcept {
  return within_limit([](Notices& notices) { return notices.find(); });
}

}  // namespace accdp
