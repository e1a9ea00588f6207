#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coll/allreduce_stream.hpp"
#include "coll/bcast_stream.hpp"
#include "coll/collectives.hpp"
#include "coll/plan.hpp"
#include "coll/post_office.hpp"

namespace accdp {

/// A set of ranks that communicate. All collectives are called by all ranks in the same order; one
/// thread at a time is in a collective, sends and receives go on beside it. timeout_s < 0: the group's.
/// After a failure (anything but UsageError) every later call throws the first reason.
class Group {
 public:
  Group(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout_s,
        std::shared_ptr<Wire> wire, const std::string& identity = "");
  ~Group();
  /// How a shared group ends. What a message's end calls may hold the last reference, on the group's own background
  /// thread, which the group waits for: then on another thread.
  struct End {
    void operator()(Group* group) const;
  };

  int rank() const { return fabric_.topology().rank(); }
  int size() const { return fabric_.topology().size(); }
  const std::string& name() const { return fabric_.name(); }
  std::string here() const { return fabric_.here(); }  ///< this rank and the group, for texts
  double timeout_s() const { return fabric_.timeout_s; }
  void set_timeout_s(double seconds) { fabric_.timeout_s = seconds; }
  double default_timeout_s() const { return seconds(-1); }  ///< the setting's, else the group's
  /// Whether reductions give the same bits wherever the ranks are. Equal on all ranks; at first the setting's.
  bool deterministic() const { return deterministic_; }
  void set_deterministic(bool on) { deterministic_ = on; }
  void set_notices(std::shared_ptr<Notices> notices) { fabric_.set_notices(std::move(notices)); }
  std::uint64_t sequence() const { return sequence_; }  ///< collectives begun
  /// What the last collective that ended well did on this rank.
  struct Run {
    Way way;
    std::uint64_t steps = 0;       ///< hand-overs on the node
    std::uint64_t wire_bytes = 0;  ///< to other nodes, signatures included
  };
  const Run& last_run() const { return last_run_; }
  /// Compressed broadcasts from this rank of which it heard how long they took: that is what auto learns from.
  std::uint64_t streams_timed() const { return fabric_.learned.bcasts.heard(); }
  /// What a collective of so many bytes would do: plan.hpp.
  Plan plan(OpKind op, const Operand& operand) const {
    Asked asked = fabric_.asked;
    asked.in_rank_order = deterministic_;
    return plan_of(op, operand, shape(), machine(), asked);
  }
  const Shape& shape() const { return fabric_.shape(); }
  const Machine& machine() const { return fabric_.machine; }
  const Topology& topology() const { return fabric_.topology(); }

  void barrier(double timeout_s = -1);
  /// Measures alpha and beta of wire and node (measure.hpp); from then on algorithms are chosen by them.
  void measure(double timeout_s = -1);
  // `via`: how, for the kind of memory that the buffers are in.
  void bcast(Bytes data, Datatype type, int root, double timeout_s = -1, Collectives& via = host_collectives());
  /// Broadcast of a list of tensors as one stream, compressed as the options say. A bound there lets float tensors
  /// that have no reference arrive changed.
  StreamReport bcast_stream(std::vector<Piece> pieces, int root, StreamOptions options, double timeout_s = -1);
  void allreduce(ConstBytes in, Bytes out, Datatype type, ReduceOp op, double timeout_s = -1,
                 Collectives& via = host_collectives());
  /// In place, of tensors of one datatype that lie one after the other, encoded between nodes as the options say
  /// (allreduce_stream.hpp). A bound there lets floats arrive changed.
  StreamReport allreduce_stream(std::vector<Piece> pieces, ReduceOp op, StreamOptions options,
                                std::span<float> residual = {}, double timeout_s = -1);
  void reduce(ConstBytes in, Bytes out, Datatype type, ReduceOp op, int root, double timeout_s = -1,
              Collectives& via = host_collectives());
  void allgather(ConstBytes in, const std::vector<Bytes>& outs, Datatype type, double timeout_s = -1,
                 Collectives& via = host_collectives());
  void reduce_scatter(const std::vector<ConstBytes>& ins, Bytes out, Datatype type, ReduceOp op, double timeout_s = -1,
                      Collectives& via = host_collectives());
  void gather(ConstBytes in, const std::vector<Bytes>& outs, Datatype type, int root, double timeout_s = -1,
              Collectives& via = host_collectives());
  void scatter(const std::vector<ConstBytes>& ins, Bytes out, Datatype type, int root, double timeout_s = -1,
               Collectives& via = host_collectives());
  void alltoall(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, Datatype type,
                double timeout_s = -1, Collectives& via = host_collectives());

  static constexpr double kUnlimited = 1e12;  ///< seconds
  /// Tags are >= 0. from = -1: any rank.
  MessageHandle send(ConstBytes data, int to, std::int64_t tag, double timeout_s = -1);
  MessageHandle receive(Bytes data, int from, std::int64_t tag, double timeout_s = -1);
  /// The same, from begin to end; what is short and at hand goes without being written down first.
  void send_now(ConstBytes data, int to, std::int64_t tag, double timeout_s = -1);
  int receive_now(Bytes data, int from, std::int64_t tag, double timeout_s = -1);  ///< the rank that sent
  PostOffice& post_office() { return post_office_; }
  /// Messages whose time-out counts from when they are waited for. Where a short one can leave at once it does, and
  /// there is none: nullptr.
  MessageHandle start_send(ConstBytes data, int to, std::int64_t tag);
  MessageHandle start_receive(Bytes data, int from, std::int64_t tag);
  /// limit_s < 0: as long as the group's operations may take. Whether all are done; throws no message's error.
  bool wait_all(std::span<const MessageHandle> messages, double limit_s = -1);
  /// Before close(): PostOffice::settle().
  void settle(double timeout_s = -1);
  /// Why long messages are not copied straight out of their senders' memory on this node; "" where they are.
  std::string why_no_single_copy() const { return fabric_.why_no_single_copy(); }

  /// A barrier that names the ranks that did not come: rank 0 the first, or all of them.
  void monitored_barrier(bool wait_all_ranks, double timeout_s = -1);

  void throw_if_failed() { fabric_.throw_if_failed(); }
  /// Whether a rank's process has ended, as far as is known here. Of any thread, as the next two.
  bool has_ended(int rank) const { return fabric_.has_ended(rank); }
  /// Whether what others have yet to do for this rank may never come: the group has failed, or a rank of the node died.
  bool may_miss_ranks() const { return fabric_.board().has_failed() || fabric_.first_lost() >= 0; }
  /// Throws where that is so. During what: for the text.
  void throw_if_lost(const std::string& what) { fabric_.throw_if_lost(what); }
  /// Whether a thread is in a collective.
  bool is_busy() const { return !std::unique_lock(collective_mutex_, std::try_to_lock).owns_lock(); }
  bool has_wire() { return fabric_.wire() != nullptr; }         ///< whether some of its messages are MPI's
  bool is_inherited() const { return fabric_.is_inherited(); }  ///< by a process that is no rank of it
  void check_process() const { fabric_.check_process(); }       ///< throws where it is
  /// Throws where this thread cannot wait for an operation: there, or in a signal handler in the middle of one.
  void check_caller(const char* what) const;
  /// Fails the group on every rank that can be reached; wakes all waiters.
  void abort(const std::string& reason);
  /// Leaves in order. Ranks that still need this one are told so. Calls after it are UsageErrors.
  void close() noexcept;

 private:
  [[noreturn]] void usage(const std::string& text) const;
  double seconds(double timeout_s) const;
  void check_open() const;
  void check_op(Datatype type, ReduceOp op) const;
  void check_root(int root) const;
  void check_message(bool sends, int rank, std::int64_t tag) const;
  void check_codec(const StreamOptions& options) const;
  void complete(StreamOptions& options) const;  ///< with what the caller left to the group
  /// The algorithms to reduce with: those that keep the order of ranks where that is asked for.
  Collectives& how(OpKind kind, Collectives& via, Datatype type, ReduceOp op);
  /// The MPI library's own, where the settings ask for them; else `via`.
  Collectives& or_baseline(OpKind kind, Collectives& via);
  std::unique_lock<std::timed_mutex> await_turn(const char* what);
  template <class Algorithm>
  void collective(OpKind kind, Signature signature, std::size_t bytes, double timeout_s, Algorithm algorithm);

  Fabric fabric_;
  std::unique_ptr<PostOffice> office_;
  PostOffice& post_office_ = *office_;
  std::atomic<bool> deterministic_;
  std::atomic<bool> closed_{false};
  std::uint64_t monitored_barriers_ = 0;  ///< passed
  mutable std::timed_mutex collective_mutex_;
  ThreadMark inside_;  ///< who holds it
  std::uint64_t sequence_ = 0;
  std::uint64_t step_ = 0;
  Run last_run_;
};

}  // namespace accdp
