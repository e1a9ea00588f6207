#include "coll/piecewise_exchange.hpp"

#include <algorithm>
#include <utility>

#include "base/rounding.hpp"

namespace accdp {
namespace {

template <class Parcel>
Parcel piece_of(Parcel parcel, std::size_t round, std::size_t piece_bytes) {
  const std::size_t begin = std::min(round * piece_bytes, parcel.data.size());
  parcel.data = parcel.data.subspan(begin, std::min(piece_bytes, parcel.data.size() - begin));
  return parcel;
}

}  // namespace

std::size_t exchange_piece_bytes(std::size_t slot_bytes, std::size_t peers) {
  constexpr std::size_t kLeast = 16 << 10;  // shorter ones cost more than they gain
  return std::max(round_down(slot_bytes / std::max<std::size_t>(peers, 1), kLine), std::min(slot_bytes, kLeast));
}

PiecewiseExchange::PiecewiseExchange(Context& context, std::vector<Incoming> incoming, std::vector<Outgoing> outgoing,
                                     std::size_t piece_bytes)
    : exchange_(context), incoming_(std::move(incoming)), outgoing_(std::move(outgoing)), piece_bytes_(piece_bytes) {
  std::size_t longest = 0;
  for (const Incoming& parcel : incoming_) longest = std::max(longest, parcel.data.size());
  for (const Outgoing& parcel : outgoing_) longest = std::max(longest, parcel.data.size());
  rounds_ = ceil_div(longest, piece_bytes);
  while (ends_.size() < std::min(rounds_, kAhead)) begin_round();
}

void PiecewiseExchange::begin_round() {
  const std::size_t round = ends_.size();
  for (const Incoming& parcel : incoming_) exchange_.receive(piece_of(parcel, round, piece_bytes_));
  for (const Outgoing& parcel : outgoing_) exchange_.send(piece_of(parcel, round, piece_bytes_));
  ends_.push_back(exchange_.begun());
}

void PiecewiseExchange::await_round() {
  if (done_ == rounds_) return;
  exchange_.await_first(ends_[done_++]);
  if (ends_.size() < rounds_) begin_round();
}

void PiecewiseExchange::await_all() {
  while (done_ < rounds_) await_round();
}

}  // namespace accdp
