#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace accdp {

/// Messages between the nodes of one group. The one implementation is over MPI and lives in the
/// module that links it; nothing else sees MPI. Ranks are the group's. No call blocks.
class Wire {
 public:
  enum Tag { kCollective = 1, kMail = 2, kData = 3, kFailure = 4, kFarewell = 5 };
  struct Request {
    std::uint64_t raw = 0;           ///< the library's handle
    std::size_t expected_bytes = 0;  ///< of a receive
    int peer = -1;
    bool pending = false;
    bool is_receive = false;
  };

  virtual ~Wire() = default;
  virtual Request isend(ConstBytes data, int to, Tag tag) = 0;
  virtual Request irecv(Bytes data, int from, Tag tag) = 0;
  /// True once it is complete. Throws MismatchError when a message of another size came.
  virtual bool test(Request& request) = 0;
  /// Takes one whole message of unknown size and sender, if there is one.
  virtual bool take(Tag tag, int& from, std::vector<std::byte>& message) = 0;
  /// Lets go of a request whose peer will not answer. Its buffer must stay valid (the caller leaks it).
  virtual void abandon(Request& request) noexcept = 0;
  /// After a failure: MPI is not finalised any more, because that would wait for the dead.
  virtual void mark_broken() noexcept = 0;
  virtual bool is_broken() const noexcept = 0;
};

}  // namespace accdp
