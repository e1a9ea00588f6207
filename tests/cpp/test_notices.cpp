// Notices whose keeper does not answer, or fails: a rank waits a moment once, and then does without.
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "base/deadline.hpp"
#include "check.hpp"
#include "coll/notices.hpp"

using namespace accdp;

namespace {

/// Answers nobody before it is told to. It goes with the last thread that waits for an answer.
class Silent : public Notices {
 public:
  void leave(const std::string&) override { wait(); }
  std::string find() override {
    wait();
    return "too late";
  }
  void answer() {
    std::lock_guard lock(mutex_);
    answers_ = true;
    changed_.notify_all();
  }
  int asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.wait(lock, [&] { return answers_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answers_ = false;
  int asked_ = 0;
};

struct Kept : Notices {
  void leave(const std::string& left) override { text = left; }
  std::string find() override { return text; }
  std::string text;
};

struct Gone : Notices {
  void leave(const std::string&) override { throw std::runtime_error("Broken pipe\nframe #0"); }
  std::string find() override { throw std::runtime_error("Broken pipe\nframe #0"); }
};

void test_what_was_left_is_found() {
  LimitedNotices notices;
  CHECK(!notices);
  notices.set(std::make_shared<Kept>());
  CHECK(notices.find().empty());
  notices.leave("rank 3 died");
  CHECK(notices.find() == "rank 3 died");
  CHECK(notices);
}

template <class Call>
void test_no_answer(Call call) {
  const auto silent = std::make_shared<Silent>();
  LimitedNotices notices;
  notices.set(silent);
  const auto began = Clock::now();
  call(notices);  // returns although nobody answers
  const auto waited = Clock::now() - began;
  CHECK(waited >= std::chrono::milliseconds(990) && waited < std::chrono::seconds(20));
  CHECK(!notices);
  CHECK(notices.find().empty());
  notices.leave("not asked");
  CHECK(silent->asked() <= 1);  // it is not asked again
  silent->answer();
}

void test_a_keeper_that_fails() {
  LimitedNotices notices;
  notices.set(std::make_shared<Gone>());
  CHECK(notices.find().empty());
  CHECK(!notices);
}

}  // namespace

int main() {
  test_what_was_left_is_found();
  test_no_answer([](LimitedNotices& notices) { CHECK(notices.find().empty()); });
  test_no_answer([](LimitedNotices& notices) { notices.leave("rank 1 died"); });
  test_a_keeper_that_fails();
}
