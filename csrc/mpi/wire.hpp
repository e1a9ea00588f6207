#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace accdp {

/// Messages between the nodes of one group. The one implementation is over MPI and lives in the
/// module that links it; nothing else sees MPI. Ranks are the group's. No call blocks.
class Wire {
 public:
  /// Long messages have tags from kData on, by their number: one that its sender gave up after the receiver
  /// had made room for it must not take the bytes of the next.
  enum Tag : int {
    kCollective = 1,
    kMail = 2,
    kFailure = 3,
    kFarewell = 4,
    kReceipt = 5,
    kResult = 6,
    kRollCall = 7,
    kData = 16
  };
  static constexpr std::uint64_t kDataTags = 16384;
  static Tag data_tag(std::uint64_t id) { return static_cast<Tag>(kData + static_cast<int>(id % kDataTags)); }
  /// What MPI libraries send over TCP without asking the receiver first, in MPICH with UCX and in Open MPI, whose own
  /// heads count towards 64 KiB. Of longer messages each byte takes more time of MPI's thread, too.
  static constexpr std::size_t kAtOnceBytes = 60 << 10;
  /// How a message goes. Both ends say the same. No piece is longer than kAtOnceBytes.
  enum class Form {
    kWhole,   ///< of exactly the length that the receiver says
    kPieces,  ///< the same, in pieces
    kUpTo,    ///< in pieces, of any length that the receiver has room for
  };
  static constexpr int kEverybody = std::numeric_limits<int>::max();  ///< of one of the library's own collectives
  struct Request {
    std::uint64_t raw = 0;  ///< the library's handle; in pieces: of the first that is not complete
    std::size_t bytes = 0;  ///< of the message, once it is complete
    int peer = -1;          ///< or kEverybody
    bool pending = false;
    bool is_receive = false;
    Form form = Form::kWhole;
    std::vector<std::uint64_t> further = {};  ///< handles of further pieces, the last one first
    Bytes room = {};                          ///< of a receive of kUpTo: for what has not come yet
    int rest_tag = 0;                         ///< of its pieces but the first
    bool is_lost = false;                     ///< to a rank that has ended: never complete
    bool is_cancelled = false;                ///< a receive of which a part had come
    int refusal = 0;                          ///< why a send of one of the library's own collectives has not left
  };

  virtual ~Wire() = default;
  std::uint64_t collective_bytes() const { return collective_bytes_; }  ///< that this rank sent in collectives
  /// What is sent to a rank that has ended, or ends meanwhile, is on its way for ever, or gone. Throws PeerDied where a
  /// rank cannot be reached without being known to have ended, once after a wait of 2 s.
  virtual Request isend(ConstBytes data, int to, Tag tag, Form form = Form::kWhole) = 0;
  virtual Request irecv(Bytes data, int from, Tag tag, Form form = Form::kWhole) = 0;
  /// One of the MPI library's own collectives over all ranks of the group; for comparison. The fields that the kind has
  /// a use for, until it is complete.
  struct NativeCall {
    enum Kind { kBcast, kAllreduce, kReduce, kReduceScatter, kAllgather, kAlltoall } kind;
    ConstBytes in = {};  ///< of allreduce, reduce and allgather also where `out` is: in place
    Bytes out = {};
    int root = -1;
    Datatype type = Datatype::kBytes;  ///< of a reduction; everything else is bytes
    ReduceOp op = ReduceOp::kSum;      ///< kAvg: the sum, which the caller divides
    std::span<const int> in_counts = {}, in_offsets = {}, out_counts = {}, out_offsets = {};  ///< of ranks' blocks
  };
  virtual Request start(const NativeCall& call) = 0;
  /// Whether the MPI library has the reduction.
  virtual bool has_native(Datatype type, ReduceOp op) const = 0;
  /// Whether messages may lie in memory of a CUDA device, as far as the MPI library tells.
  virtual bool takes_device_memory() const { return false; }
  /// Whether what was sent arrives without any further call here.
  virtual bool moves_by_itself() const noexcept { return false; }
  /// True once it is complete. Throws MismatchError when a message of another size came.
  virtual bool test(Request& request) = 0;
  /// The same of several, for which MPI works once, not once for each.
  virtual void test_some(std::span<Request> requests) {
    for (Request& request : requests) test(request);
  }
  /// Takes one whole message of unknown size and sender, if there is one.
  virtual bool take(Tag tag, int& from, std::vector<std::byte>& message) = 0;
  /// Lets go of a request for which nobody waits. Its buffer must stay valid (the caller leaks it).
  virtual void forget(Request& request) noexcept = 0;
  /// Takes a receive back of which nothing has come, at once.
  virtual void cancel(Request&) noexcept {}
  /// Lets go of a request of a group that has failed, of a buffer that goes back to its owner: what has begun to leave
  /// or to come is seen to its end where that is soon. Of what has not ended then MPI may read the buffer later; that
  /// it may write to it makes it kUnsafe. (Messages of kUpTo come to buffers that stay valid.)
  virtual void abandon(Request& request) noexcept { forget(request); }
  /// This rank sends nothing more, and so many others have sent a farewell, or will. Once all have come and the wire is
  /// destroyed its communicator is given back. Without this call it lasts as long as MPI.
  virtual void retire(int farewells) noexcept = 0;
  /// How MPI is in this process, over all groups; it only gets worse. Once a group has failed nothing is
  /// finalised, because that would wait for ranks that are gone. Once a rank may be dead nobody is told
  /// anything any more: a send to the dead may crash in MPICH over UCX, and blocks over OFI. Unsafe it is not used at
  /// all.
  enum Health { kWell, kGroupFailed, kRanksMayBeDead, kUnsafe };
  static constexpr const char* kUnsafeMeans =
      "MPI is not used any more in this process: a rank of a group that failed has stood still in the middle of a "
      "message, the rest of which MPI would write to memory that was given back";
  virtual void worsen(Health health) noexcept = 0;
  /// Whether that rank's process has ended, as far as is known; where a death ends the job nobody asks.
  virtual bool has_ended(int) const noexcept { return false; }
  virtual bool can_tell_end_of(int) const noexcept { return false; }  ///< whether has_ended() would be known of it
  /// Whether a death ends the whole job: then a rank that does not come in time is only late, and can be told so.
  virtual bool late_ranks_live() const noexcept = 0;
  virtual Health health() const noexcept = 0;

 protected:
  /// To be called by isend(). One thread at a time is in a collective.
  void count(std::size_t bytes, Tag tag) {
    if (tag == kCollective || tag == kResult) collective_bytes_ += bytes;
  }

 private:
  std::uint64_t collective_bytes_ = 0;
};

}  // namespace accdp
