// On one node: the root encodes into its slot, every other rank decodes out of it.
// Cost: ceil(S/c) frames, each encoded once and decoded by all others at once.
#include <cstring>

#include "base/deadline.hpp"
#include "coll/bcast_stream.hpp"

namespace accdp {

void bcast_encoded_on_node(Context& c, const StreamPlan& plan, int root, StreamCodec& codec, bool root_takes_decoded,
                           StreamReport& report) {
  const int source = c.topology().local_of(root);
  for (std::size_t frame = 0; frame < plan.frames().size(); ++frame) {
    ConstBytes message;
    if (c.local_rank() == source) {
      const std::size_t room = frame_room(plan.frames()[frame].bytes, plan.frames()[frame].chunks);
      message = codec.encode(frame, Bytes(c.open(room), room));
      c.publish();
      if (codec.is_lossy() && root_takes_decoded) codec.decode(frame, message);
    } else {
      const auto began = Clock::now();
      c.open_unwritten();
      c.publish();
      c.await(source);
      report.node_s += seconds_since(began);
      FrameHead head;
      std::memcpy(&head, c.slot(source), sizeof head);
      message = ConstBytes(c.slot(source), std::min<std::size_t>(head.frame_bytes, c.slot_bytes()));
      codec.decode(frame, message);
    }
    report.wire_bytes += message.size();
  }
}

}  // namespace accdp
