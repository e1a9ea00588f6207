#include "coll/algorithms.hpp"
#include "coll/bcast_stream.hpp"

namespace accdp {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

void bcast_p2p_compressed(Context& c, const std::vector<Piece>& pieces, const StreamPlan& plan, int root,
                          const StreamOptions& options, const Journey& journey, StreamReport& report) {
  const Topology& t = c.topology();
  const int root_node = t.node_of(root), nodes = t.nodes(), place = (t.node() - root_node + nodes) % nodes;
  const int leader = t.leader(t.node(), root);
  std::vector<std::vector<std::byte>> old;  // references of a leader that passes tensors on: it may decode into them
  const std::size_t frames = plan.frames().size();
  if (leader == t.rank()) {
    const Hop hop = bcast_schedule(BcastAlgorithm::kP2pCompressed, nodes, place, frames).front();
    auto leader_at = [&](int other) { return t.leader((other + root_node) % nodes, root); };
    const Bytes memory = c.scratch(frames * plan.room());
    auto room = [&](std::size_t frame) { return memory.subspan(frame * plan.room(), plan.room()); };
    std::vector<Wire::Request> requests;
    if (hop.from >= 0 && !hop.to.empty())
      for (const Piece& piece : pieces) {
        if (options.far && !piece.reference.empty()) options.far->fetch({piece.reference});
        old.emplace_back(piece.reference.begin(), piece.reference.end());
      }
    try {
      if (hop.from >= 0) {
        const auto began = Clock::now();
        for (std::size_t i = 0; i < frames; ++i)
          requests.push_back(c.irecv({leader_at(hop.from), room(i)}, Wire::Form::kUpTo));
        for (Wire::Request& request : requests) c.wait(request);
        report.wire_s += Seconds(Clock::now() - began).count();
        StreamCodec codec(OpKind::kBcastCompressed, pieces, plan, options, c.signature().sequence, c.signature().check,
                          report);
        for (std::size_t i = 0; i < frames; ++i) codec.decode(i, room(i).first(requests[i].bytes));
        codec.finish_report();
        for (const Wire::Request& request : requests) report.wire_bytes += request.bytes;
      }
      // Each sender encodes what it has, as messages of their own: errors add up from hop to hop.
      std::vector<Piece> mine = pieces;
      for (std::size_t i = 0; i < old.size(); ++i) mine[i].reference = old[i];
      if (hop.from >= 0) set_bounds(mine, options.bound, options.far);
      StreamCodec own(OpKind::kBcastCompressed, mine, plan, options, c.signature().sequence, c.signature().check,
                      report);
      if (!hop.to.empty()) own.choose(0, journey);
      for (int child : hop.to) {
        requests.clear();
        std::vector<ConstBytes> messages;
        for (std::size_t i = 0; i < frames; ++i) messages.push_back(own.encode(i, room(i)));
        const auto began = Clock::now();
        for (const ConstBytes& message : messages)
          requests.push_back(c.isend({leader_at(child), message}, Wire::Form::kUpTo));
        for (Wire::Request& request : requests) c.wait(request);
        report.wire_s += Seconds(Clock::now() - began).count();
        if (hop.from < 0 && child == hop.to.front())
          for (const ConstBytes& message : messages) report.wire_bytes += message.size();
      }
      own.finish_report();
    } catch (...) {
      for (Wire::Request& request : requests) c.abandon(request);
      throw;
    }
  }
  std::vector<Bytes> spans;
  for (const Piece& piece : pieces) spans.push_back(piece.data);
  bcast_on_node(c, spans, t.local_of(leader));
}

}  // namespace accdp
