#include "coll/group.hpp"

#include <bit>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/settings.hpp"
#include "coll/apart.hpp"
#include "coll/event_log.hpp"
#include "coll/measure.hpp"
#include "coll/mpi_baselines.hpp"

namespace accdp {
namespace {

/// What all ranks must agree on where blocks may differ in size: a hash of the sizes, in rank order.
template <class Blocks>
std::uint64_t sizes_of(const Blocks& blocks) {
  Hash sizes;
  for (const auto& block : blocks) sizes.add(block.size());
  return sizes.value();
}

/// Does `work` with what it may read whatever it writes (apart.hpp). Memory of devices is taken as it is.
template <class Work>
void apart(Context& c, const Collectives& via, const std::vector<ConstBytes>& ins, std::span<const Bytes> outs,
           const MayMeet& may_meet, Work work) {
  if (&via != &host_collectives() || !is_overwritten(ins, outs, may_meet)) return work(ins);
  work(copies(ins, c.scratch(total_bytes(ins))));
}
template <class Work>
void apart(Context& c, const Collectives& via, ConstBytes in, std::span<const Bytes> outs, const MayMeet& may_meet,
           Work work) {
  if (&via != &host_collectives() || !is_overwritten({&in, 1}, outs, may_meet)) return work(in);
  work(copies({&in, 1}, c.scratch(in.size()))[0]);
}

/// The one block that a rank reads, or writes, of its own.
MayMeet own(int block_in, int block_out) {
  return [=](int in, int out) { return in == block_in && out == block_out; };
}

/// Ranks that call with other options are in another operation, even where only the root's would count.
std::uint64_t layout_of(const std::vector<Piece>& pieces, const StreamOptions& options) {
  return Hash(layout_of(pieces))
      .add({std::uint64_t{options.automatic}, std::uint64_t{options.chunk_bytes},
            options.codec ? static_cast<std::uint64_t>(options.codec->id) : std::uint64_t{0},
            static_cast<std::uint64_t>(*options.algorithm), options.label,
            std::bit_cast<std::uint64_t>(options.bound.value), std::uint64_t{options.bound.is_relative},
            std::uint64_t{options.root_takes_decoded}})
      .value();
}

/// Adds this rank's side to what ranks say who disagree: they compare hashes.
template <class Call>
void saying_own_side(Fabric& fabric, const std::vector<Piece>& pieces, const StreamOptions& options, bool in_rank_order,
                     Call call) {
  const bool was_told = fabric.has_told;
  try {
    call();
  } catch (const MismatchError& error) {
    if (was_told || fabric.board().failed_call() != fabric.call) throw;  // they disagreed before, or on a message
    throw MismatchError(std::string(error.what()) + "; this rank's has " + in_words(pieces, options) +
                        (in_rank_order ? ", deterministic" : ""));
  }
}

}  // namespace

Group::Group(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout_s,
             std::shared_ptr<Wire> wire, const std::string& identity)
    : fabric_(std::move(name), rank, std::move(peers), segment_fd, timeout_s, std::move(wire), identity),
      office_(std::make_unique<PostOffice>(fabric_)),
      deterministic_(fabric_.asked.in_rank_order) {}

Group::~Group() {
  close();
  // Its thread was not forked along: joining it, or ending what it waits on, would not return.
  if (is_inherited()) static_cast<void>(office_.release());
}

void Group::End::operator()(Group* group) const {
  if (!group->post_office_.is_attendant()) return delete group;
  std::thread([group] { delete group; }).detach();
}

void Group::usage(const std::string& text) const {
  throw UsageError("rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ": " + text);
}

void Group::check_open() const {
  if (closed_) usage("group " + name() + " is closed on this rank: expected no more calls of it");
}

void Group::check_op(Datatype type, ReduceOp op) const {
  try {
    check_reducible(type, op);
  } catch (const UsageError& error) {
    usage(error.what());
  }
}

double Group::seconds(double timeout_s) const {
  if (timeout_s >= 0) return timeout_s;
  return settings().timeout_s > 0 ? settings().timeout_s : fabric_.timeout_s.load();
}

void Group::check_root(int root) const {
  if (root < 0 || root >= size())
    usage("root=" + std::to_string(root) + ": expected 0 to " + std::to_string(size() - 1));
}

void Group::complete(StreamOptions& options) const {
  options.lacking = fabric_.lacking_codecs();
  if (!options.chunk_bytes) options.chunk_bytes = fabric_.asked.stream_chunk_bytes;
  if (!options.algorithm) options.algorithm = fabric_.asked.bcast;
}

void Group::check_codec(const StreamOptions& options) const {
  if (!options.codec) return;
  for (const CodecRow* codec : {options.codec, options.codec->stand_in}) {
    if (!codec) continue;
    const std::string name = std::string("codec=") + options.codec->name +
                             (codec == options.codec ? "" : std::string(": ") + codec->name + ", which may stand in,");
    if (const std::string reason = why_not_here(*codec); !reason.empty())
      usage(name + " does not work here: " + reason);
    for (int other = 0; other < size(); ++other)
      if (auto lack = fabric_.peer(other).lacks.find(codec->name); lack != fabric_.peer(other).lacks.end())
        usage(name + " does not work on " + fabric_.describe(other) + ": " + lack->second);
  }
  if (options.codec->lossy && !(options.bound.value > 0))
    usage(std::string("codec=") + options.codec->name + ": expected an error_bound, because it is lossy");
}

Collectives& Group::or_baseline(OpKind kind, Collectives& via) {
  const bool by_mpi =
      fabric_.asked.by_mpi || (kind == OpKind::kAllreduce && fabric_.asked.allreduce == ReduceAlgorithm::kMpi);
  if (!by_mpi || size() == 1 || &via != &host_collectives()) return via;
  if (!fabric_.wire())
    usage(std::string(name_of(kind)) + (fabric_.asked.by_mpi ? " by ACCDP_BASELINE" : " by ACCDP_ALLREDUCE") +
          "=mpi: expected a group that has MPI: one over several nodes, or with ACCDP_MPI=on");
  return mpi_collectives();
}

Collectives& Group::how(OpKind kind, Collectives& via, Datatype type, ReduceOp op) {
  if (!deterministic_) {
    Collectives& chosen = or_baseline(kind, via);
    if (&chosen == &mpi_collectives() && !fabric_.wire()->has_native(type, op))
      usage(std::string(name_of(kind)) + " by the MPI library: expected another datatype than " + name_of(type) +
            ", for which MPI has no reductions");
    return chosen;
  }
  return via.in_rank_order();
}

void Group::check_caller(const char* what) const {
  if (inside_.is_this_thread()) usage(std::string(what) + " in a signal handler, in the middle of another operation");
  fabric_.check_process();  // locks may belong to a thread that was not forked along
}

/// Another thread may be in a call, which ends by its own deadline.
std::unique_lock<std::timed_mutex> Group::await_turn(const char* what) {
  std::unique_lock lock(collective_mutex_, std::try_to_lock);
  try {
    while (!lock.owns_lock() && !lock.try_lock_for(kLongestSleep)) check_interrupt();
  } catch (const Interrupted&) {
    fabric_.fail(FailureKind::kOther, fabric_.describe(rank()) + " was interrupted before its " + what + " began");
    throw;
  }
  return lock;
}

template <class Algorithm>
void Group::collective(OpKind kind, Signature signature, std::size_t bytes, double timeout_s, Algorithm algorithm) {
  check_caller(name_of(kind));
  const std::unique_lock lock = await_turn(name_of(kind));
  check_open();
  const ThreadMark::Here here(inside_);
  fabric_.call = sequence_ + 1;
  fabric_.enter(seconds(timeout_s));
  const auto started = Clock::now();
  signature.kind = static_cast<std::uint8_t>(kind);
  signature.sequence = ++sequence_;
  // Sizes of an alltoall differ between ranks; they are compared pair by pair.
  if (kind != OpKind::kAlltoall) signature.count = bytes / element_bytes(signature.type);
  fabric_.way = {};
  fabric_.status().begin(signature, started);
  const std::uint64_t steps = step_, sent = fabric_.wire() ? fabric_.wire()->collective_bytes() : 0;
  std::optional<Context> context;  // which ends when the group knows of a failure: MPI may then still use its memory
  try {
    algorithm(context.emplace(fabric_, signature, Deadline(seconds(timeout_s), started), step_));
    if (bytes > kMostCarriedBytes) fabric_.throw_if_withdrawn();  // shorter ones leave their rank at once
  } catch (const std::exception&) {
    fabric_.status().end(Clock::now());
    std::rethrow_exception(fabric_.fail_by(std::current_exception(), Context::name_of(signature)));
  }
  const auto ended = Clock::now();
  fabric_.status().end(ended);
  count_op(kind, bytes, ended - started);
  last_run_ = {fabric_.way, step_ - steps, fabric_.wire() ? fabric_.wire()->collective_bytes() - sent : 0};
  log_collective(signature);
}

void Group::barrier(double timeout_s) {
  collective(OpKind::kBarrier, {}, 0, timeout_s, [](Context& c) { accdp::barrier(c); });
}

void Group::measure(double timeout_s) {
  collective(OpKind::kMeasure, {}, 0, timeout_s, [&](Context& c) {
    const Machine found = measure_machine(c);
    fabric_.machine = found;
    fabric_.learned.link.told(found.link.bytes_per_s, found.link.latency_s);
  });
}

void Group::bcast(Bytes data, Datatype type, int root, double timeout_s, Collectives& via) {
  check_root(root);
  Collectives& carrier = or_baseline(OpKind::kBcast, via);
  collective(OpKind::kBcast, {.root = root, .type = type, .memory = via.memory(fabric_.asked)}, data.size(), timeout_s,
             [&](Context& c) { carrier.bcast(c, data, root); });
}

StreamReport Group::bcast_stream(std::vector<Piece> pieces, int root, StreamOptions options, double timeout_s) {
  complete(options);
  const ErrorBound& bound = options.bound;
  check_root(root);
  // There each hop encodes anew, so that nodes have different values: root could not take those of all.
  if (options.root_takes_decoded && bound.value > 0 && options.algorithm == BcastAlgorithm::kP2pCompressed)
    options.algorithm = BcastAlgorithm::kBinomial;
  if (options.algorithm == BcastAlgorithm::kMpi && !fabric_.wire())
    usage("algorithm=mpi: expected a group that has MPI: one over several nodes, or with ACCDP_MPI=on");
  check_codec(options);
  std::size_t bytes = 0;
  for (Piece& piece : pieces) {
    bytes += piece.data.size();
    if (!piece.reference.empty() && piece.reference.size() != piece.data.size())
      usage("a reference of " + std::to_string(piece.reference.size()) + " bytes: expected " +
            std::to_string(piece.data.size()));
    piece.lossy =
        bound.value > 0 && is_real_float(piece.type) && piece.reference.empty() && piece.data.size() >= kSmallestLossy;
  }
  check_open();
  Signature call{.layout = layout_of(pieces, options), .root = root};
  try {
    call.check = reference_check(pieces, options.on_device);
  } catch (const std::exception&) {  // of this rank's device, while others begin
    std::rethrow_exception(fabric_.fail_by(std::current_exception(), name_of(OpKind::kBcastCompressed)));
  }
  StreamReport report;
  saying_own_side(fabric_, pieces, options, false, [&] {
    collective(OpKind::kBcastCompressed, call, bytes, timeout_s, [&](Context& c) {
      if (rank() == root) set_bounds(pieces, bound, options.on_device);
      report = accdp::bcast_stream(c, pieces, root, options);
    });
  });
  return report;
}

void Group::allreduce(ConstBytes in, Bytes out, Datatype type, ReduceOp op, double timeout_s, Collectives& via) {
  check_op(type, op);
  if (out.size() != in.size())
    usage("out has " + std::to_string(out.size()) + " bytes: expected " + std::to_string(in.size()));
  Collectives& reducing = how(OpKind::kAllreduce, via, type, op);
  collective(OpKind::kAllreduce,
             {.layout = deterministic_,
              .type = type,
              .op = static_cast<std::uint8_t>(op),
              .memory = via.memory(fabric_.asked)},
             in.size(), timeout_s, [&](Context& c) {
               apart(c, via, in, {&out, 1}, own(0, 0),
                     [&](ConstBytes from) { reducing.reduce_to(c, from, out, {type, op, size()}, -1); });
             });
}

StreamReport Group::allreduce_stream(std::vector<Piece> pieces, ReduceOp op, StreamOptions options,
                                     std::span<float> residual, double timeout_s) {
  complete(options);
  const Datatype type = pieces.empty() ? Datatype::kF32 : pieces.front().type;
  check_op(type, op);
  check_codec(options);
  if (options.bound.value > 0 && (!is_real_float(type) || (op != ReduceOp::kSum && op != ReduceOp::kAvg)))
    usage(std::string("error_bound: expected none for ") + name_of(op) + " of " + name_of(type) +
          "; sums and averages of floats may have one");
  const bool in_rank_order = deterministic_;
  if (in_rank_order && (options.bound.value > 0 || (!options.automatic && options.codec)))
    usage(
        "deterministic=True: expected neither an error_bound nor a codec but auto or none, because sums of nodes are "
        "encoded, and these depend on where the ranks are");
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (piece.type != type || piece.data.data() != pieces.front().data.data() + bytes)
      usage("tensors: expected one datatype, each beginning where the one before ends");
    bytes += piece.data.size();
  }
  if (!residual.empty() && residual.size() != bytes / element_bytes(type))
    usage("residual has " + std::to_string(residual.size()) + " elements: expected " +
          std::to_string(bytes / element_bytes(type)));
  StreamReport report;
  const Signature call{
      .layout = layout_of(pieces, options) + in_rank_order, .type = type, .op = static_cast<std::uint8_t>(op)};
  saying_own_side(fabric_, pieces, options, in_rank_order, [&] {
    collective(OpKind::kAllreduceCompressed, call, bytes, timeout_s, [&](Context& c) {
      report = accdp::allreduce_stream(c, pieces, {type, op, size()}, options, residual, in_rank_order);
    });
  });
  return report;
}

void Group::reduce(ConstBytes in, Bytes out, Datatype type, ReduceOp op, int root, double timeout_s, Collectives& via) {
  check_root(root);
  check_op(type, op);
  if (rank() == root && out.size() != in.size())
    usage("out has " + std::to_string(out.size()) + " bytes: expected " + std::to_string(in.size()));
  Collectives& reducing = how(OpKind::kReduce, via, type, op);
  collective(OpKind::kReduce,
             {.layout = deterministic_,
              .root = root,
              .type = type,
              .op = static_cast<std::uint8_t>(op),
              .memory = via.memory(fabric_.asked)},
             in.size(), timeout_s, [&](Context& c) {
               apart(c, via, in, {&out, 1}, own(0, 0),
                     [&](ConstBytes from) { reducing.reduce_to(c, from, out, {type, op, size()}, root); });
             });
}

void Group::allgather(ConstBytes in, const std::vector<Bytes>& outs, Datatype type, double timeout_s,
                      Collectives& via) {
  if (outs.size() != std::size_t(size()) || outs[rank()].size() != in.size())
    usage("outs: expected one block per rank, the own one of " + std::to_string(in.size()) + " bytes");
  Collectives& carrier = or_baseline(OpKind::kAllgather, via);
  collective(OpKind::kAllgather, {.layout = sizes_of(outs), .type = type, .memory = via.memory(fabric_.asked)},
             total_bytes(outs), timeout_s, [&](Context& c) { carrier.allgather(c, in, outs); });
}

void Group::reduce_scatter(const std::vector<ConstBytes>& ins, Bytes out, Datatype type, ReduceOp op, double timeout_s,
                           Collectives& via) {
  check_op(type, op);
  if (ins.size() != std::size_t(size()) || ins[rank()].size() != out.size())
    usage("ins: expected one block per rank, the own one of " + std::to_string(out.size()) + " bytes");
  Collectives& reducing = how(OpKind::kReduceScatter, via, type, op);
  collective(OpKind::kReduceScatter,
             {.layout = sizes_of(ins) + deterministic_,
              .type = type,
              .op = static_cast<std::uint8_t>(op),
              .memory = via.memory(fabric_.asked)},
             total_bytes(ins), timeout_s, [&](Context& c) {
               apart(c, via, ins, {&out, 1}, own(rank(), 0),
                     [&](const auto& from) { reducing.reduce_scatter(c, from, out, {type, op, size()}); });
             });
}

void Group::gather(ConstBytes in, const std::vector<Bytes>& outs, Datatype type, int root, double timeout_s,
                   Collectives& via) {
  check_root(root);
  if (rank() == root) {
    if (outs.size() != std::size_t(size())) usage("outs: expected one block per rank");
    for (const Bytes& block : outs)
      if (block.size() != in.size())
        usage("outs: a block has " + std::to_string(block.size()) + " bytes, expected " + std::to_string(in.size()));
  }
  collective(OpKind::kGather, {.root = root, .type = type, .memory = via.memory(fabric_.asked)}, in.size(), timeout_s,
             [&](Context& c) {
               apart(c, via, in, outs, own(0, root), [&](ConstBytes from) { via.gather(c, from, outs, root); });
             });
}

void Group::scatter(const std::vector<ConstBytes>& ins, Bytes out, Datatype type, int root, double timeout_s,
                    Collectives& via) {
  check_root(root);
  if (rank() == root) {
    if (ins.size() != std::size_t(size())) usage("ins: expected one block per rank");
    for (const ConstBytes& block : ins)
      if (block.size() != out.size())
        usage("ins: a block has " + std::to_string(block.size()) + " bytes, expected " + std::to_string(out.size()));
  }
  collective(OpKind::kScatter, {.root = root, .type = type, .memory = via.memory(fabric_.asked)}, out.size(), timeout_s,
             [&](Context& c) {
               apart(c, via, ins, {&out, 1}, own(root, 0), [&](const auto& from) { via.scatter(c, from, out, root); });
             });
}

void Group::alltoall(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, Datatype type,
                     double timeout_s, Collectives& via) {
  if (ins.size() != std::size_t(size()) || outs.size() != std::size_t(size()))
    usage("ins, outs: expected one block per rank each");
  if (ins[rank()].size() != outs[rank()].size())
    usage("the block to itself has " + std::to_string(ins[rank()].size()) + " bytes in, " +
          std::to_string(outs[rank()].size()) + " out");
  Collectives& carrier = or_baseline(OpKind::kAlltoall, via);
  collective(OpKind::kAlltoall, {.type = type, .memory = via.memory(fabric_.asked)}, total_bytes(ins), timeout_s,
             [&](Context& c) {
               // On the node what is written to a block has been read there before; what goes to other nodes is read
               // when it goes.
               const bool is_one_node = c.topology().nodes() == 1;
               const auto may_meet = [=, me = rank()](int in, int out) {
                 return in == out && (is_one_node || in == me);
               };
               apart(c, via, ins, outs, may_meet, [&](const auto& from) { carrier.alltoall(c, from, outs); });
               // What comes may be long where little goes.
               if (total_bytes(outs) > kMostCarriedBytes) fabric_.throw_if_withdrawn();
             });
}

void Group::abort(const std::string& reason) {
  fabric_.has_told = true;
  fabric_.fail(FailureKind::kOther, fabric_.describe(rank()) + " aborted the group: " + reason);
}

void Group::close() noexcept {
  closed_ = true;
  fabric_.leave();
}

}  // namespace accdp
