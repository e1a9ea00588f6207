// A group's messages, and the barrier that is made of them.
#include <thread>

#include "base/error.hpp"
#include "coll/group.hpp"

namespace accdp {

void Group::check_message(bool sends, int rank, std::int64_t tag) const {
  check_open();
  const int least = sends ? 0 : -1;
  if (tag >= 0 && rank >= least && rank < size()) return;
  const std::string what = sends ? "send: " : "recv: ";
  if (tag < 0) usage(what + "tag=" + std::to_string(tag) + ": expected 0 or more");
  usage(what + (sends ? "dst=" : "src=") + std::to_string(rank) + ": expected 0 to " + std::to_string(size() - 1) +
        (sends ? "" : ", or -1 for any"));
}

MessageHandle Group::send(ConstBytes data, int to, std::int64_t tag, double timeout_s) {
  check_message(true, to, tag);
  return post_office_.send(data, to, tag, seconds(timeout_s));
}

MessageHandle Group::receive(Bytes data, int from, std::int64_t tag, double timeout_s) {
  check_message(false, from, tag);
  return post_office_.receive(data, from, tag, seconds(timeout_s));
}

void Group::send_now(ConstBytes data, int to, std::int64_t tag, double timeout_s) {
  check_message(true, to, tag);
  if (post_office_.send_at_once(data, to, tag)) return;
  post_office_.check_not_driven_here();
  post_office_.wait(post_office_.send(data, to, tag, seconds(timeout_s), true));
}

int Group::receive_now(Bytes data, int from, std::int64_t tag, double timeout_s) {
  check_message(false, from, tag);
  if (post_office_.receive_at_once(data, from, tag)) return from;
  post_office_.check_not_driven_here();
  const MessageHandle message = post_office_.receive(data, from, tag, seconds(timeout_s), true);
  post_office_.wait(message);
  return message->peer;
}

MessageHandle Group::start_send(ConstBytes data, int to, std::int64_t tag) {
  check_message(true, to, tag);
  if (post_office_.send_at_once(data, to, tag)) return nullptr;
  return post_office_.send(data, to, tag, kUnlimited);
}

MessageHandle Group::start_receive(Bytes data, int from, std::int64_t tag) {
  check_message(false, from, tag);
  return post_office_.receive(data, from, tag, kUnlimited);
}

bool Group::wait_all(std::span<const MessageHandle> messages, double limit_s) {
  return post_office_.wait_all(messages, seconds(-1), limit_s);
}

void Group::settle(double timeout_s) {
  if (!is_inherited()) post_office_.settle(seconds(timeout_s));
}

void Group::monitored_barrier(bool wait_all_ranks, double timeout_s) {
  // Tags below 0 are no caller's. Each rank reports to rank 0 and waits for its word.
  constexpr std::int64_t kReport = -2, kRelease = -3;
  check_open();
  fabric_.throw_if_failed();
  post_office_.check_not_driven_here();
  const auto started = Clock::now();
  const double most = seconds(timeout_s);
  const Deadline deadline(most);
  // Which one it is: a rank that gave up one comes to the same again, and its first report is no report of the next.
  std::uint64_t word = 0;
  const Bytes payload = std::as_writable_bytes(std::span(&word, 1));
  const auto say = [&](int to, std::int64_t tag) {
    word = monitored_barriers_;
    post_office_.wait(post_office_.send(payload, to, tag, most));
  };
  const auto hear = [&](int from, std::int64_t tag) {
    do {
      const double left = std::max(0.0, std::chrono::duration<double>(deadline.at() - Clock::now()).count());
      post_office_.wait(post_office_.receive(payload, from, tag, left));
    } while (word != monitored_barriers_);
  };
  const std::string who = "Rank " + std::to_string(rank());
  if (rank() != 0) {
    try {
      say(0, kReport);
      hear(0, kRelease);
    } catch (const Error& error) {
      throw PeerTimeout(
          who +
          " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
          "Please check rank 0 logs for faulty rank.\n Original exception: " +
          error.what());
    }
  } else {
    std::string late;
    int missing = 0;
    for (int other = 1; other < size(); ++other) {
      try {
        hear(other, kReport);
      } catch (const PeerTimeout&) {
        fabric_.throw_if_failed();  // not this rank is late, but something else was, and the group is done
        late += (missing++ ? ", " : "") + std::to_string(other);
        if (!wait_all_ranks) break;
      }
    }
    if (!late.empty()) {
      const std::string text = std::string("[Rank 0]: ") + (missing > 1 ? "Ranks " : "Rank ") + late +
                               " failed to pass monitoredBarrier in " + std::to_string(static_cast<long>(most * 1000)) +
                               " ms";
      fabric_.fail(FailureKind::kTimeout, text);
      throw PeerTimeout("Rank 0 timed out in monitoredBarrier: " + text);
    }
    for (int other = 1; other < size(); ++other) say(other, kRelease);
  }
  ++monitored_barriers_;
  count_op(OpKind::kMonitoredBarrier, 0, Clock::now() - started);
}

}  // namespace accdp
