// How messages end that do not end by themselves: late ones, those of a group that has failed, and what is open when a
// group is left.
#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.hpp"
#include "base/keep.hpp"
#include "coll/post_office.hpp"

namespace accdp {
namespace {

// Messages that have come, but that nobody has looked at yet, find their receives.
constexpr std::chrono::milliseconds kToLookThrough{10};

}  // namespace

std::string PostOffice::describe(const Message& m) {
  std::string text = std::string(m.is_send ? "send" : "recv") + " of " + std::to_string(m.bytes) + " bytes";
  if (m.tag >= 0) text += ", tag " + std::to_string(m.tag);
  return text;
}

std::string PostOffice::says_late(const Message& m, double seconds) const {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return describe(m) + " Timed out after " + text + " (timeout) waiting for " +
         (m.peer < 0 ? "any rank" : fabric_.describe(m.peer));
}

/// Messages whose deadline has passed. A receive that nobody answered is only given up; else the group fails: a peer
/// counts on the message, or holds the request of a send that a retry would be mistaken for.
void PostOffice::expire() {
  const auto now = Clock::now();
  std::map<int, std::string> whereabouts;                  // of ranks that were waited for in vain
  for (auto next = open_.begin(); next != open_.end();) {  // there may be very many
    const auto here = next++;
    if (now < (*here)->deadline.at()) continue;
    const MessageHandle m = *here;  // which finish() takes out
    if (m->peer >= 0 && !whereabouts.contains(m->peer) && whereabouts.size() < Fabric::kMostSoughtOut)
      whereabouts[m->peer] = fabric_.whereabouts(m->peer);
    const std::string text = says_late(*m, m->deadline.seconds()) + (m->peer < 0 ? "" : whereabouts[m->peer]);
    if (m->matched || m->is_send)  // all ranks hear of it, who may be those that are waited for
      return fabric_.fail(FailureKind::kTimeout, fabric_.describe(fabric_.topology().rank()) + ": " + text);
    receives_.remove(m->tag, m->peer, m);
    m->is_alone = true;
    finish(m, std::make_exception_ptr(PeerTimeout(fabric_.here() + ": " + text)));
  }
}

/// An interrupt is for the caller that it came to, on whose thread the host language keeps it, and is returned; the
/// messages hear that the group has failed.
std::exception_ptr PostOffice::give_up(std::exception_ptr error) {
  std::exception_ptr interrupt;
  const Message* const failed = std::exchange(at_hand_, nullptr);
  error = fabric_.fail_by(error, failed ? describe(*failed) : open_.empty() ? "send/recv" : describe(*open_.front()));
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    interrupt = error;
    try {
      fabric_.throw_if_failed();
    } catch (const Error&) {
      error = std::current_exception();
    }
  } catch (const std::exception&) {  // for the messages
  }
  std::set<int> receivers;
  for (const Parcel& parcel : parcels_)
    if (parcel.message && parcel.message->is_send) receivers.insert(parcel.message->peer);
  fabric_.withdraw(receivers);
  for (Parcel& parcel : parcels_) fabric_.wire()->abandon(parcel.request);
  for (const MessageHandle& m : std::list<MessageHandle>(open_)) finish(m, error);
  receives_.clear();
  for (Route& route : routes_) route = {};
  keep_for_ever(std::exchange(parcels_, {}));  // MPI may still read the letters among them
  return interrupt;
}

void PostOffice::settle(double timeout_s) {
  std::exception_ptr first;
  const bool was_told = fabric_.has_told.exchange(true);
  {
    std::unique_lock lock = enter();
    if (fabric_.board().has_failed()) end_failed(lock);
    drive_or_wait(lock, {}, [&] { return receives_.empty(); }, Clock::now() + kToLookThrough);
  }
  while (true) {
    std::vector<MessageHandle> due;
    {
      const std::unique_lock lock = enter();
      for (const MessageHandle& m : open_)
        if (m->is_send || m->matched) due.push_back(m);
    }
    if (due.empty()) break;
    wait_all(due, timeout_s);
    for (const MessageHandle& m : due)
      if (m->error && !first) first = m->error;
  }
  std::unique_lock lock = enter();
  std::vector<MessageHandle> given_up;
  std::ranges::copy_if(open_, std::back_inserter(given_up), [](const auto& m) { return !m->is_send && !m->matched; });
  std::string texts;
  for (const MessageHandle& m : given_up)
    texts +=
        (texts.empty() ? "" : ", ") + describe(*m) + " from " + (m->peer < 0 ? "any rank" : fabric_.describe(m->peer));
  const UsageError error(fabric_.here() + ": closed with open receives: expected wait() for each before, got " + texts);
  for (const MessageHandle& m : given_up) {
    m->is_alone = true;
    finish(m, std::make_exception_ptr(error));
  }
  receives_.clear();
  run_callbacks(lock);
  if (!first && !was_told) first = lost_;  // whose work nobody has asked
  if (first) std::rethrow_exception(first);
  if (!texts.empty()) throw error;
}

/// Of a group that has failed: whoever waits for a message is told.
void PostOffice::end_failed(std::unique_lock<std::mutex>& lock) {
  if (open_.empty()) return;
  try {
    const Fabric::ForMessages their_error;
    fabric_.throw_if_failed();
  } catch (...) {
    give_up(std::current_exception());
  }
  run_callbacks(lock);
}

void PostOffice::hear(const Message& m) {
  if (!m.is_alone) fabric_.has_told = true;
}

PostOffice::~PostOffice() {
  retire();
  // MPI may still read them: all of a group that has failed, else letters without a message, for which nobody waits.
  if (!parcels_.empty()) keep_for_ever(std::move(parcels_));
}

}  // namespace accdp
