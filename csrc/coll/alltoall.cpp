// All-to-all, blocks of any size. On the node: each slot begins with the sizes that its rank sends, from which all know
// the number of steps and each receiver checks its own sizes before anything is written; in each step every rank hands
// every other its next piece, and writes what came in it when it has read as much of all its own blocks, which may
// therefore lie where the results go. Between nodes:
//   1. the first slot also has what goes to other nodes' ranks of short blocks (AlltoallCut);
//   2. each leader sends each other the sizes and short blocks of its node's ranks for that one's, along with the
//      signature where nodes are few;
//   3. the leader shows its node what came (1 step; a rank alone on its node needs none), and all check their sizes;
//   4. long blocks go from rank to rank, in pieces (piecewise_exchange.hpp), while the node hands round its own.
// Where even the sizes are too many for a slot they go from rank to rank.
// Cost: ceil(largest block * k / c) steps and one; every remote block once on the wire, in one message per pair of
// nodes, or of ranks.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "coll/piecewise_exchange.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

using Size = std::uint64_t;

Size read_size(const std::byte* from, std::size_t index) {
  Size size;
  std::memcpy(&size, from + index * sizeof size, sizeof size);
  return size;
}

std::byte* put(std::byte* place, ConstBytes block) {
  copy_lines(place, block.data(), block.size());
  return place + block.size();
}

/// Fails where this rank is sent something else than it expects.
void check_size(Context& c, int from, Size sends, std::size_t expected) {
  if (sends == expected) return;
  c.fail_mismatch(c.what() + ": " + c.describe(from) + " sends " + std::to_string(sends) + " bytes to " +
                  c.describe(c.topology().rank()) + ", which expects " + std::to_string(expected));
}

class Alltoall {
 public:
  Alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs)
      : c_(c),
        t_(c.topology()),
        ins_(ins),
        outs_(outs),
        cut_(c.shape()),
        share_(cut_.share_bytes(t_.local_size(), c.slot_bytes())),
        leader_(t_.leader(t_.node())) {
    std::size_t longest = 0;
    for (int rank : t_.neighbours()) {
      near_bytes_ += outs[rank].size();
      if (rank != t_.rank()) longest = std::max(longest, ins[rank].size());
    }
    stride_ = stride_for(longest);
  }

  void run() {
    note();
    begin();
    if (t_.nodes() == 1) {
      take_first();
    } else if (cut_.by_leaders) {
      deliver_short();
    } else {
      compare_sizes_in_pairs();
      copy(outs_[t_.rank()], ins_[t_.rank()]);
    }
    PiecewiseExchange far = exchange_long();
    for (std::size_t done = has_first_pieces() ? share_ : 0; done < longest_near_; done += share_) {
      put_pieces(open(), done);
      c_.publish();
      c_.await_all();
      for (int rank : t_.neighbours()) slots_[t_.local_of(rank)] = c_.slot(t_.local_of(rank));
      take_pieces(done);
      far.await_round();
    }
    far.await_all();
  }

 private:
  bool is_short(std::size_t bytes) const { return bytes <= cut_.limit; }

  void note() const {
    std::size_t longest = 0;
    for (const ConstBytes& block : ins_) longest = std::max(longest, block.size());
    const bool goes_along = cut_.by_leaders && is_short(longest);
    const char* over_nodes = !goes_along ? "pairs" : cut_.with_signatures ? kWithSignatures : "leaders";
    c_.note({t_.nodes() == 1 ? "chunks" : over_nodes, 1, t_.nodes() == 1 ? longest : std::min(longest, piece_bytes())});
  }
  std::size_t piece_bytes() const { return exchange_piece_bytes(c_.shape().slot_bytes, t_.size()); }

  // ---- the first step, and pieces on the node ------------------------------------------------------------------
  /// Where a slot has the size of what its rank sends to another. Of other nodes it has none if they are too many.
  int entry(int rank) const { return cut_.by_leaders ? rank : t_.local_of(rank); }

  void begin() {
    std::byte* slot = open();
    for (int rank = 0; rank < t_.size(); ++rank) {
      if (!cut_.by_leaders && !t_.is_near(rank)) continue;
      const Size bytes = ins_[rank].size();
      std::memcpy(slot + entry(rank) * sizeof bytes, &bytes, sizeof bytes);
    }
    if (cut_.by_leaders && t_.rank() != leader_) {
      std::byte* room = slot + cut_.table_bytes(t_.local_size());
      for_others([&](int rank) {
        if (is_short(ins_[rank].size())) room = put(room, ins_[rank]);
      });
    }
    if (has_first_pieces()) put_pieces(slot, 0);
    Context::Cargo cargo{.at_hub = false};
    cargo.load_part = [this](int node, std::byte* place) { return load(node, place); };
    brings_letters_ = cut_.with_signatures && !c_.has_met();
    if (brings_letters_)
      c_.publish_with(cargo);
    else
      c_.publish();
    c_.await_all();
    for (int rank : t_.neighbours()) {
      std::size_t longest = 0;
      for (int other : t_.neighbours()) {
        const Size bytes = read_size(c_.slot(t_.local_of(rank)), entry(other));
        if (rank != other) longest = std::max<std::size_t>(longest, bytes);
        if (other == t_.rank()) check(rank, bytes);
      }
      strides_.push_back(stride_for(longest));
      longest_near_ = std::max(longest_near_, longest);
    }
    for (int rank = 0; rank < t_.local_size(); ++rank) slots_.push_back(c_.slot(rank));
  }

  /// Whether the slots of the first step have pieces. Where ranks meet again before sizes are compared, they could not
  /// be left there until then.
  bool has_first_pieces() const { return t_.nodes() == 1 || cut_.by_leaders; }

  /// All sizes agree, and signatures; this rank has published nothing since the first step.
  void take_first() {
    copy(outs_[t_.rank()], ins_[t_.rank()]);
    take_pieces(0);
  }

  void check(int from, Size sends) const { check_size(c_, from, sends, outs_[from].size()); }

  /// Pieces lie as close together as the longest block of their rank allows.
  std::size_t stride_for(std::size_t longest) const { return std::min(share_, whole_lines(longest)); }
  std::size_t piece_at(int local_rank, std::size_t stride) const {
    return cut_.table_bytes(t_.local_size()) + cut_.room_bytes + local_rank * stride;
  }
  std::byte* open() { return c_.open(piece_at(t_.local_size(), stride_)); }

  void put_pieces(std::byte* slot, std::size_t done) {
    for (int rank : t_.neighbours()) {
      const ConstBytes block = ins_[rank];
      if (rank == t_.rank() || done >= block.size()) continue;
      const int local = t_.local_of(rank);
      c_.write(slot + piece_at(local, stride_), block.subspan(done, std::min(share_, block.size() - done)), local);
    }
  }

  void take_pieces(std::size_t done) {
    for (int rank : t_.neighbours()) {
      const Bytes block = outs_[rank];
      if (rank == t_.rank() || done >= block.size()) continue;
      const int local = t_.local_of(rank);
      copy_out(block.data() + done, slots_[local] + piece_at(t_.local_rank(), strides_[local]),
               std::min(share_, block.size() - done), is_past_own_caches(near_bytes_));
    }
  }

  // ---- sizes and short blocks between nodes --------------------------------------------------------------------
  /// Of all ranks of other nodes, node by node.
  template <class Visit>
  void for_others(Visit visit) const {
    for (int node = 0; node < t_.nodes(); ++node) {
      if (node == t_.node()) continue;
      for (int rank : t_.members(node)) visit(rank);
    }
  }

  /// On the leader, node by node: the sizes of what the ranks of this one send to those of that, and the short blocks.
  std::size_t load(int node, std::byte* place) {
    if (node == t_.node()) return 0;
    if (rooms_.empty())
      for (int rank : t_.neighbours()) rooms_.push_back(c_.slot(t_.local_of(rank)) + cut_.table_bytes(t_.local_size()));
    const std::vector<int>& theirs = t_.members(node);
    std::byte* size_at = place;
    std::byte* end = place + t_.local_size() * theirs.size() * sizeof(Size);
    for (int rank : t_.neighbours())
      for (int other : theirs) {
        const std::byte*& room = rooms_[t_.local_of(rank)];
        const Size bytes = read_size(c_.slot(t_.local_of(rank)), other);
        std::memcpy(std::exchange(size_at, size_at + sizeof bytes), &bytes, sizeof bytes);
        if (!is_short(bytes)) continue;
        end = put(end, rank == t_.rank() ? ins_[other] : ConstBytes(std::exchange(room, room + bytes), bytes));
      }
    return end - place;
  }

  void deliver_short() {
    std::vector<ConstBytes> letters;  // by node
    if (t_.is_leader()) letters = brings_letters_ ? carried() : exchange_letters();
    for (int node = 0; t_.is_leader() && node < t_.nodes(); ++node)
      if (node != t_.node()) check_letter(node, letters[node]);
    if (!t_.is_leader()) {
      c_.open_unwritten();
      c_.await(t_.local_of(leader_));
      const std::byte* shown = c_.slot(t_.local_of(leader_));
      for (int node = 0; node < t_.nodes(); ++node) {
        letters.push_back({shown, node == t_.node() ? 0 : letter_bytes(node, shown)});
        shown += letters.back().size();
      }
    }
    read(letters, [&](int rank, Size bytes, const std::byte*) { check(rank, bytes); });
    take_first();  // before the next step is published, with which the slots of the first one are given back
    if (t_.local_size() > 1) {
      if (t_.is_leader()) {
        std::byte* slot = c_.open(total_bytes(letters));
        for (const ConstBytes& letter : letters) slot = put(slot, letter);
      }
      c_.publish();
    }
    read(letters, [&](int rank, Size bytes, const std::byte* block) {
      if (is_short(bytes)) put(outs_[rank].data(), {block, bytes});
    });
  }

  std::vector<ConstBytes> carried() {
    std::vector<ConstBytes> letters(t_.nodes());
    for (int node = 0; node < t_.nodes(); ++node)
      if (node != t_.node()) letters[node] = c_.carried(node);
    return letters;
  }

  std::vector<ConstBytes> exchange_letters() {
    const std::size_t each = sizeof(Size) + cut_.limit, here = t_.local_size();
    const auto most = [&](int node) { return here * t_.members(node).size() * each; };
    Bytes room = c_.letters(2 * (t_.size() - here) * here * each);
    const auto take = [&](std::size_t bytes) {
      const Bytes taken = room.first(bytes);
      room = room.subspan(bytes);
      return taken;
    };
    std::vector<Bytes> places(t_.nodes());
    std::vector<int> senders;
    Exchange exchange(c_);
    for (int step = 1; step < t_.nodes(); ++step) {
      const int node = (t_.node() + t_.nodes() - step) % t_.nodes();
      places[node] = take(most(node));
      exchange.receive_up_to({t_.leader(node), places[node]});
      senders.push_back(node);
    }
    std::vector<Bytes> sent(t_.nodes());
    for (int node = 0; node < t_.nodes(); ++node) {
      if (node == t_.node()) continue;
      const Bytes place = take(most(node));
      sent[node] = place.first(load(node, place.data()));
    }
    for (int step = 1; step < t_.nodes(); ++step) {
      const int node = (t_.node() + step) % t_.nodes();
      exchange.send_up_to({t_.leader(node), sent[node]});
    }
    exchange.await_all();
    std::vector<ConstBytes> letters(t_.nodes());
    for (std::size_t i = 0; i < senders.size(); ++i)
      letters[senders[i]] = places[senders[i]].first(exchange.received_bytes(i));
    return letters;
  }

  /// Of a letter from a node, from its sizes.
  std::size_t letter_bytes(int node, const std::byte* letter) const {
    const std::size_t sizes = t_.members(node).size() * t_.local_size();
    std::size_t bytes = sizes * sizeof(Size);
    for (std::size_t i = 0; i < sizes; ++i)
      if (const Size size = read_size(letter, i); is_short(size)) bytes += size;
    return bytes;
  }

  void check_letter(int node, ConstBytes letter) const {
    const std::size_t sizes = t_.members(node).size() * t_.local_size() * sizeof(Size);
    if (letter.size() < sizes || letter.size() != letter_bytes(node, letter.data()))
      c_.fail_mismatch(c_.what() + ": what " + c_.describe(t_.leader(node)) + " sent for its node has " +
                       std::to_string(letter.size()) + " bytes, not what its sizes say");
  }

  /// visit(rank, size, place) of what others send to this rank; a long block has no place.
  template <class Visit>
  void read(const std::vector<ConstBytes>& letters, Visit visit) const {
    for (int node = 0; node < t_.nodes(); ++node) {
      if (node == t_.node()) continue;
      const std::byte* letter = letters[node].data();
      const std::byte* block = letter + t_.members(node).size() * t_.local_size() * sizeof(Size);
      std::size_t i = 0;
      for (int rank : t_.members(node))
        for (int local = 0; local < t_.local_size(); ++local) {
          const Size bytes = read_size(letter, i++);
          if (local == t_.local_rank()) visit(rank, bytes, block);
          if (is_short(bytes)) block += bytes;
        }
    }
  }

  /// Sizes first: MPI would cut a message that does not fit, or write less than was expected.
  void compare_sizes_in_pairs() {
    c_.meet();  // ranks that do not lead must not send before signatures are compared
    const Bytes mine = c_.scratch(t_.size() * sizeof(Size)), theirs = c_.scratch(t_.size() * sizeof(Size));
    const auto number = [](Bytes of, int rank) { return of.subspan(rank * sizeof(Size), sizeof(Size)); };
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for_others([&](int rank) {
      const Size size = ins_[rank].size();
      copy(number(mine, rank), std::as_bytes(std::span(&size, 1)));
      incoming.push_back({rank, number(theirs, rank)});
      outgoing.push_back({rank, number(mine, rank)});
    });
    c_.exchange(incoming, outgoing);
    for_others([&](int rank) { check(rank, read_size(theirs.data(), rank)); });
  }

  // ---- long blocks between nodes -------------------------------------------------------------------------------
  PiecewiseExchange exchange_long() {
    const auto is_left = [&](std::size_t bytes) { return !cut_.by_leaders || !is_short(bytes); };
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (int i = 1; i < t_.size(); ++i) {  // each rank begins with another peer
      const int to = (t_.rank() + i) % t_.size(), from = (t_.rank() - i + t_.size()) % t_.size();
      if (!t_.is_near(from) && is_left(outs_[from].size())) incoming.push_back({from, outs_[from]});
      if (!t_.is_near(to) && is_left(ins_[to].size())) outgoing.push_back({to, ins_[to]});
    }
    return {c_, std::move(incoming), std::move(outgoing), piece_bytes()};
  }

  Context& c_;
  const Topology& t_;
  const std::vector<ConstBytes>& ins_;
  const std::vector<Bytes>& outs_;
  const AlltoallCut cut_;
  const std::size_t share_;
  std::size_t stride_ = 0;            // of the own pieces
  std::vector<std::size_t> strides_;  // by local rank
  const int leader_;
  std::size_t near_bytes_ = 0, longest_near_ = 0;
  bool brings_letters_ = false;
  std::vector<const std::byte*> slots_;  // by local rank: of the step whose pieces are taken next
  std::vector<const std::byte*> rooms_;  // by local rank: its next short block
};

}  // namespace

void alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  Alltoall(c, ins, outs).run();
}

void compare_sizes(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const int ranks = c.topology().size();
  std::vector<std::uint64_t> mine(ranks), theirs(ranks);
  std::vector<ConstBytes> sent;
  std::vector<Bytes> received;
  for (int rank = 0; rank < ranks; ++rank) {
    mine[rank] = ins[rank].size();
    sent.push_back(std::as_bytes(std::span(&mine[rank], 1)));
    received.push_back(std::as_writable_bytes(std::span(&theirs[rank], 1)));
  }
  alltoall(c, sent, received);
  for (int rank = 0; rank < ranks; ++rank) check_size(c, rank, theirs[rank], outs[rank].size());
}

}  // namespace accdp
