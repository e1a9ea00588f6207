#include "coll/algorithms.hpp"
#include "coll/bcast_stream.hpp"

namespace accdp {
namespace {

void receive_and_decode(Context& c, int from, const std::vector<Bytes>& rooms, const std::vector<Piece>& pieces,
                        const StreamPlan& plan, const StreamOptions& options, StreamReport& report) {
  const auto began = Clock::now();
  Exchange messages(c);
  for (const Bytes& room : rooms) messages.receive_up_to({from, room});
  messages.await_all();
  report.wire_s += seconds_since(began);
  StreamCodec codec(c.signature(), pieces, plan, options, report);
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    codec.decode(i, rooms[i].first(messages.received_bytes(i)));
    report.wire_bytes += messages.received_bytes(i);
  }
  codec.finish_report();
}

/// Returns how many bytes went out.
std::size_t encode_and_send(Context& c, int to, const std::vector<Bytes>& rooms, StreamCodec& codec,
                            StreamReport& report) {
  std::vector<ConstBytes> frames;
  for (std::size_t i = 0; i < rooms.size(); ++i) frames.push_back(codec.encode(i, rooms[i]));
  const auto began = Clock::now();
  Exchange messages(c);
  for (const ConstBytes& frame : frames) messages.send_up_to({to, frame});
  messages.await_all();
  report.wire_s += seconds_since(began);
  return total_bytes(frames);
}

}  // namespace

void bcast_p2p_compressed(Context& c, const std::vector<Piece>& pieces, const StreamPlan& plan, int root,
                          const StreamOptions& options, const Journey& journey, StreamReport& report) {
  const Topology& t = c.topology();
  const int root_node = t.node_of(root), nodes = t.nodes(), place = (t.node() - root_node + nodes) % nodes;
  const int leader = t.leader(t.node(), root);
  if (leader == t.rank()) {
    const std::size_t frames = plan.frames().size();
    const Hop hop = bcast_schedule(BcastAlgorithm::kP2pCompressed, nodes, place, frames).front();
    const auto leader_at = [&](int other) { return t.leader((other + root_node) % nodes, root); };
    const Bytes memory = c.scratch(frames * plan.room());
    std::vector<Bytes> rooms;
    for (std::size_t i = 0; i < frames; ++i) rooms.push_back(memory.subspan(i * plan.room(), plan.room()));
    // Each sender encodes what it has, as messages of their own: errors add up from hop to hop.
    std::vector<Piece> mine = pieces;
    std::vector<std::vector<std::byte>> old;  // references of who passes tensors on: it may decode into them
    if (hop.from >= 0) {
      if (!hop.to.empty())
        for (Piece& piece : mine) {
          if (options.on_device && !piece.reference.empty()) options.on_device->fetch({piece.reference});
          piece.reference = old.emplace_back(piece.reference.begin(), piece.reference.end());
        }
      receive_and_decode(c, leader_at(hop.from), rooms, pieces, plan, options, report);
      set_bounds(mine, options.bound, options.on_device);
    }
    StreamCodec codec(c.signature(), mine, plan, options, report);
    if (!hop.to.empty()) codec.choose(0, journey);
    for (int child : hop.to) {
      const std::size_t sent = encode_and_send(c, leader_at(child), rooms, codec, report);
      if (hop.from < 0 && child == hop.to.front()) report.wire_bytes += sent;
    }
    codec.finish_report();
  }
  bcast_on_node(c, spans_of(pieces), t.local_of(leader));
}

}  // namespace accdp
