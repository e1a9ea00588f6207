// Short operations over few nodes, in one round between them: what a leader has to tell goes along with the signature
// by which the leaders compare calls. Phases:
//   1. on the node the ranks show the leader what they have (1 step);
//   2. each leader sends its node's sum, or blocks, or the root's data, with its signature to every other leader, or to
//      the one that wants it, or to each its part, and has the result: it reduces by itself, in node order. Where data
//      go one way, so do the signatures, and who sends goes ahead. Where leaders meet at the hub, its leader reduces,
//      and sends all the result, but for parts (meeting.cpp);
//   3. the leader shows its node the result (1 step; a rank alone on its node needs none).
// Nothing reaches a caller's buffer before the signatures agree: until then it lies in the meeting places of
// fabric.hpp. Cost: one message's way, at the hub two, along a tree log2(nodes); S*(nodes-1) bytes out of each node
// that has something to tell, where each gets its part those; 2 steps, 1 with a rank per node.

#include "coll/algorithms.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

int local_leader(const Context& c) { return c.topology().local_of(c.topology().leader(c.topology().node())); }

/// The leader shows `bytes`, which fill() writes; the others take them.
template <class Fill, class Take>
void show_to_node(Context& c, std::size_t bytes, Fill fill, Take take) {
  if (c.local_size() == 1) return;
  if (c.topology().is_leader()) {
    fill(c.open(bytes));
    return c.publish();
  }
  c.open_unwritten();
  c.publish();
  c.await(local_leader(c));
  take(c.slot(local_leader(c)));
}

void copy_to(std::byte* place, ConstBytes from) { copy_lines(place, from.data(), from.size()); }

}  // namespace

void reduce_with_signatures(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const Topology& t = c.topology();
  c.note({name_of(ReduceAlgorithm::kDirect), 1, in.size()});
  const std::size_t count = in.size() / element_bytes(how.type);
  const int to_node = receiver < 0 ? -1 : t.node_of(receiver);
  const auto reduce_carried = [&](std::byte* place) {
    const void* sources[kMeetingFanOut];
    for (int node = 0; node < t.nodes(); ++node) sources[node] = c.carried(node, in.size()).data();
    reduce(place, std::span(sources, t.nodes()), count, how);
    return in.size();
  };
  if (c.local_size() > 1)
    c.write(c.open(in.size()), in, local_leader(c));
  else
    c.open_unwritten();
  Context::Cargo cargo{in.size(), -1, to_node, [&](std::byte* place) {
                         if (c.local_size() == 1) return copy_to(place, in);
                         const std::span<const void*> sources = c.sources();
                         for (int rank = 0; rank < c.local_size(); ++rank) sources[rank] = c.slot(rank);
                         reduce(place, sources, count, how.partial());
                       }};
  if (receiver < 0) cargo.answer = reduce_carried;
  c.publish_with(cargo);
  if (to_node >= 0 && to_node != t.node()) return;
  const int leader = t.leader(t.node());
  if (receiver == leader) {
    if (t.is_leader()) reduce_carried(out.data());
    return;
  }
  if (t.is_leader() && receiver < 0) {
    if (c.is_answered())
      copy_to(out.data(), c.carried(0, in.size()));
    else
      reduce_carried(out.data());
  }
  show_to_node(
      c, in.size(),
      [&](std::byte* slot) {
        if (receiver < 0)
          c.write(slot, out);
        else
          reduce_carried(slot);
      },
      [&](const std::byte* slot) {
        if (receiver < 0 || receiver == t.rank()) copy_to(out.data(), {slot, in.size()});
      });
}

void bcast_with_signatures(Context& c, Bytes data, int root) {
  const Topology& t = c.topology();
  c.note({kWithSignatures, 1, data.size()});
  if (t.rank() == root && !t.is_leader())
    c.write(c.open(data.size()), data, local_leader(c));
  else
    c.open_unwritten();
  const auto load = [&](std::byte* place) {
    copy_to(place, t.rank() == root ? ConstBytes(data) : ConstBytes(c.slot(t.local_of(root)), data.size()));
  };
  c.publish_with(
      {t.is_near(root) ? data.size() : 0, t.node_of(root), -1, load, bcasts_by_tree(data.size(), c.shape())});
  if (t.is_leader() && t.rank() != root) copy_to(data.data(), c.carried(t.node_of(root), data.size()));
  show_to_node(
      c, data.size(), [&](std::byte* slot) { c.write(slot, data); },
      [&](const std::byte* slot) {
        if (t.rank() != root) copy_to(data.data(), {slot, data.size()});
      });
}

void bcast_with_signatures(Context& c, const std::vector<Bytes>& pieces, int root) {
  if (pieces.size() == 1) return bcast_with_signatures(c, pieces[0], root);
  std::vector<std::byte> packed(total_bytes(pieces));
  const auto walk = [&](auto copy_piece) {
    std::size_t at = 0;
    for (const Bytes& piece : pieces) {
      copy_piece(Bytes(packed).subspan(at, piece.size()), piece);
      at += piece.size();
    }
  };
  const bool is_root = c.topology().rank() == root;
  if (is_root) walk([](Bytes room, Bytes data) { copy(room, data); });
  bcast_with_signatures(c, Bytes(packed), root);
  if (!is_root) walk([](Bytes room, Bytes data) { copy(data, room); });
}

std::size_t bytes_of_node(const Topology& t, int node, const std::vector<Bytes>& blocks) {
  std::size_t bytes = 0;
  for (int rank : t.members(node)) bytes += blocks[rank].size();
  return bytes;
}

namespace {

/// Each leader tells a node, or all (-1), the blocks of its own, which have so many bytes together.
template <class BytesOf>
Context::Cargo cargo_of_blocks(Context& c, ConstBytes in, std::size_t bytes, int to_node, BytesOf bytes_of) {
  if (c.local_size() > 1)
    c.write(c.open(in.size()), in, local_leader(c));
  else
    c.open_unwritten();
  return {bytes, -1, to_node, [&c, in, bytes_of](std::byte* place) {
            const Topology& t = c.topology();
            for (int rank : t.neighbours()) {
              copy_to(place, rank == t.rank() ? in : ConstBytes(c.slot(t.local_of(rank)), bytes_of(rank)));
              place += bytes_of(rank);
            }
          }};
}

/// Blocks of a node's ranks that lie one after the other; where the next node's may begin.
const std::byte* take_blocks(const Topology& t, int node, const std::byte* from, const std::vector<Bytes>& outs) {
  for (int rank : t.members(node)) {
    copy_to(outs[rank].data(), {from, outs[rank].size()});
    from += outs[rank].size();
  }
  return from;
}

}  // namespace

void gather_with_signatures(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const Topology& t = c.topology();
  c.note({kWithSignatures, 1, in.size()});
  const auto bytes_of_node = [&](int node) { return in.size() * t.members(node).size(); };
  c.publish_with(cargo_of_blocks(c, in, bytes_of_node(t.node()), t.node_of(root), [&](int) { return in.size(); }));
  if (!t.is_near(root)) return;
  const auto blocks_of = [&](int node) { return c.carried(node, bytes_of_node(node)); };
  if (t.leader(t.node()) == root) {
    for (int node = 0; t.rank() == root && node < t.nodes(); ++node) take_blocks(t, node, blocks_of(node).data(), outs);
    return;
  }
  show_to_node(
      c, in.size() * t.size(),
      [&](std::byte* slot) {
        for (int node = 0; node < t.nodes(); slot += bytes_of_node(node++)) copy_to(slot, blocks_of(node));
      },
      [&](const std::byte* slot) {
        for (int node = 0; t.rank() == root && node < t.nodes(); ++node) slot = take_blocks(t, node, slot, outs);
      });
}

void allgather_with_signatures(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  c.note({kWithSignatures, 1, in.size()});
  std::vector<std::size_t> begins{0};  // of each node's blocks among all
  for (int node = 0; node < t.nodes(); ++node) begins.push_back(begins.back() + bytes_of_node(t, node, outs));
  const auto bytes_of_node = [&](int node) { return begins[node + 1] - begins[node]; };
  const auto blocks_of = [&](int node) {
    if (!c.is_answered()) return c.carried(node, bytes_of_node(node));
    return c.carried(0, begins.back()).subspan(begins[node], bytes_of_node(node));
  };
  Context::Cargo cargo =
      cargo_of_blocks(c, in, bytes_of_node(t.node()), -1, [&](int rank) { return outs[rank].size(); });
  cargo.at_hub = allgathers_at_hub(begins.back(), c.shape(), c.machine());
  if (cargo.at_hub)
    cargo.answer = [&](std::byte* place) {  // at the hub, whose own blocks come first
      for (int node = 1; node < t.nodes(); ++node) copy_to(place + begins[node], blocks_of(node));
      return begins.back();
    };
  c.publish_with(cargo);
  for (int node = 0; t.is_leader() && node < t.nodes(); ++node) take_blocks(t, node, blocks_of(node).data(), outs);
  show_to_node(
      c, begins.back(),
      [&](std::byte* slot) {
        for (int node = 0; node < t.nodes(); ++node) copy_to(slot + begins[node], blocks_of(node));
      },
      [&](const std::byte* slot) {
        for (int node = 0; node < t.nodes(); ++node) slot = take_blocks(t, node, slot, outs);
      });
}

void scatter_with_signatures(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const Topology& t = c.topology();
  const std::size_t block = out.size();
  c.note({kWithSignatures, 1, block});
  if (t.rank() == root && !t.is_leader()) {
    std::byte* slot = c.open(t.size() * block);
    for (int rank = 0; rank < t.size(); ++rank) c.write(slot + rank * block, ins[rank], local_leader(c));
  } else {
    c.open_unwritten();
  }
  Context::Cargo cargo{.from_node = t.node_of(root)};
  cargo.load_part = [&](int node, std::byte* place) {
    const std::byte* slot = t.rank() == root ? nullptr : c.slot(t.local_of(root));
    for (int rank : t.members(node)) {
      copy_to(place, slot ? ConstBytes(slot + rank * block, block) : ins[rank]);
      place += block;
    }
    return block * t.members(node).size();
  };
  c.publish_with(cargo);
  const auto mine = [&](const std::byte* blocks) { copy_to(out.data(), {blocks + t.local_rank() * block, block}); };
  const auto part = [&] { return c.carried(t.node_of(root), block * c.local_size()); };
  if (t.is_leader()) mine(part().data());
  show_to_node(c, block * c.local_size(), [&](std::byte* slot) { c.write(slot, part()); }, mine);
}

void reduce_scatter_with_signatures(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  const Topology& t = c.topology();
  c.note({kWithSignatures, 1, out.size()});
  const auto bytes_of = [&](const std::vector<int>& ranks) {
    std::size_t bytes = 0;
    for (int rank : ranks) bytes += ins[rank].size();
    return bytes;
  };
  const auto put_all = [&](std::byte* place, const std::vector<int>& ranks) {
    for (int rank : ranks) {
      copy_to(place, ins[rank]);
      place += ins[rank].size();
    }
  };
  if (c.local_size() > 1) {
    std::byte* slot = c.open(total_bytes(ins));
    for (int node = 0; node < t.nodes(); slot += bytes_of(t.members(node++))) put_all(slot, t.members(node));
  } else {
    c.open_unwritten();
  }
  const std::size_t element = element_bytes(how.type), shown = bytes_of(t.neighbours());
  Context::Cargo cargo{.at_hub = false};
  cargo.load_part = [&, at = std::size_t{0}](int node, std::byte* place) mutable {
    const std::size_t bytes = bytes_of(t.members(node));
    if (c.local_size() == 1) {
      put_all(place, t.members(node));
    } else {
      const std::span<const void*> sources = c.sources();
      for (int rank = 0; rank < c.local_size(); ++rank) sources[rank] = c.slot(rank) + at;
      reduce(place, sources, bytes / element, how.partial());
    }
    at += bytes;
    return bytes;
  };
  c.publish_with(cargo);
  const auto reduce_carried = [&](std::byte* place) {
    const void* sources[kMeetingFanOut];
    for (int node = 0; node < t.nodes(); ++node) sources[node] = c.carried(node, shown).data();
    reduce(place, std::span(sources, t.nodes()), shown / element, how);
  };
  if (c.local_size() == 1) return reduce_carried(out.data());
  const auto mine = [&](const std::byte* blocks) {
    for (int rank : t.neighbours()) {
      if (rank == t.rank()) return copy_to(out.data(), {blocks, out.size()});
      blocks += ins[rank].size();
    }
  };
  show_to_node(
      c, shown,
      [&](std::byte* slot) {
        reduce_carried(slot);
        mine(slot);
      },
      mine);
}

}  // namespace accdp
