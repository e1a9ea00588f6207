#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "device/cuda.hpp"
#include "gpu/host_room.hpp"

namespace accdp {

/// Host memory that data of a device passes through on its way to and from an algorithm on host memory.
class Staging {
 public:
  using Step = std::function<void(ConstBytes in, Bytes out)>;

  /// Runs `algorithm` for consecutive chunks, in the host: the first argument is a copy of a chunk of `in`, the second
  /// is where the chunk of `out` comes from. Where two chunks can be pinned, the next is on its way to the host and the
  /// one before on its way back while one is in the algorithm. Either may be empty; where neither is, both have the
  /// same size, and a chunk of both is the same memory.
  void in_chunks(ConstBytes in, Bytes out, std::size_t chunk_bytes, cudaStream_t stream, const Step& algorithm);

  /// Host copies of `ins`, and host memory for `outs`, whose contents go to the device in deliver().
  void fetch(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, cudaStream_t stream);
  const std::vector<ConstBytes>& ins() const { return ins_; }
  const std::vector<Bytes>& outs() const { return outs_; }
  void deliver(const std::vector<Bytes>& outs, cudaStream_t stream);

  /// After a failure of either.
  void leave_to_wire() { std::exchange(room_, {}).leave_to_wire(); }

 private:
  HostRoom room_;
  std::vector<ConstBytes> ins_;
  std::vector<Bytes> outs_;
};

}  // namespace accdp
