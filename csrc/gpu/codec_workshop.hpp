#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "codec/cuda_codec.hpp"
#include "codec/cuda_transforms.hpp"
#include "device/cuda.hpp"
#include "device/reduce.hpp"
#include "gpu/host_room.hpp"

namespace accdp {

/// The memory and streams with which the chunks of one operation are encoded, decoded and reduced; kept for the next
/// one. All memory that calls name is of the device; work on it is done in the order of the calls.
class CodecWorkshop {
 public:
  CodecWorkshop();
  ~CodecWorkshop();
  CodecWorkshop(const CodecWorkshop&) = delete;

  /// Work from now on begins after what the stream holds now.
  void begin_after(cudaStream_t stream);
  /// The same in the middle of an operation.
  void follow(cudaStream_t stream);
  /// What the stream gets from now on begins after all work.
  void end_before(cudaStream_t stream);

  /// Memory of a chunk, one of several, and what it is a difference to, or null.
  struct Span {
    std::byte* data;
    const std::byte* reference;
    std::size_t bytes;
  };
  struct Place {
    std::vector<Span> spans;
    Datatype type;
    /// Whether the chunk lies there as it is encoded: in one, and not as a difference.
    bool is_direct() const { return spans.size() == 1 && !spans[0].reference; }
    std::size_t bytes() const;
  };
  struct Job {
    Place place;
    const CodecRow* codec;
    Encoding how;
  };
  /// As DeviceTensors's.
  std::size_t begin_encode(const std::vector<Job>& jobs);
  const std::vector<ConstBytes>& encoded(std::size_t beginning);
  void end_encode(std::size_t beginning) { beginnings_[beginning]->is_taken = false; }
  /// Many chunks are decoded at once; finish(), and what needs them, begins what is left.
  void decode(const CodecRow* codec, Datatype type, ConstBytes stored, const Place& to);
  void finish();
  bool is_idle() const noexcept;  ///< the device has done all of it

  std::byte* scratch(std::size_t bytes);  ///< until the next begin_after()
  void reduce(std::byte* to, const std::vector<const void*>& sources, std::size_t count, const Reduction& how);
  struct Rounding {
    std::size_t chunk;
    std::byte* tensor;
    float* residual;  ///< or null
  };
  void round(std::size_t beginning, const std::vector<Rounding>& chunks, double factor, bool replaces);
  struct Tensor {
    const std::byte* data;
    std::size_t bytes;
    Datatype type;
  };
  std::vector<double> deviations(const std::vector<Tensor>& tensors);
  std::uint32_t crc32c(ConstBytes data, std::uint32_t seed);
  /// To a room, after all work so far; waits.
  void fetch(std::span<const Transfer> transfers, HostRoom& room);

 private:
  /// Chunks that are encoded together.
  struct Beginning {
    bool is_taken = false, is_under_way = false;
    std::vector<Job> jobs;
    DeviceBuffer plain, on_device, device_sizes;  // put together, encoded
    PinnedBuffer on_host, host_sizes;
    Event ready;
    std::vector<std::size_t> places;  // of the encoded chunks in both buffers
    std::vector<ConstBytes> encoded;
  };
  /// A chunk on its way to the device that does not stay where it is decoded, or was not encoded.
  struct Parcel {
    Place to;
    const std::byte* from;  // null: of its place in `plain`
    std::size_t place;
  };
  /// One of two batches of chunks that are decoded together.
  struct Batch {
    DeviceBuffer on_device, plain;
    PinnedBuffer on_host;
    Event ready;
    bool is_under_way = false;
    std::vector<DeviceChunk> chunks;                 // alike, and not decoded yet
    std::vector<std::optional<std::size_t>> places;  // of each in `plain`, where it does not stay there
    std::vector<Parcel> parcels;
    std::size_t used = 0, plain_used = 0;  // bytes
    void clear();
  };
  std::size_t free_beginning();
  Batch& batch() { return batches_[decoded_ % 2]; }
  std::size_t take_room(std::size_t bytes);
  void decode_batch();
  void place(const std::byte* plain, const Place& to);
  template <class Buffer>
  void make_room(Buffer& buffer, std::size_t bytes);
  void make_codec(std::size_t chunks, std::size_t chunk_bytes);
  std::uint32_t* damaged() const { return reinterpret_cast<std::uint32_t*>(device_damaged_.data()); }

  Stream kernels_, copies_;
  Event order_;
  DeviceBuffer device_damaged_;  // whether a decoded chunk was
  PinnedBuffer host_damaged_;
  std::vector<std::unique_ptr<Beginning>> beginnings_;
  Batch batches_[2];
  std::size_t decoded_ = 0;
  const CodecRow* batch_codec_ = nullptr;
  Datatype batch_type_ = Datatype::kBytes;
  DeviceBuffer rounded_, device_results_;
  PinnedBuffer host_results_;
  std::vector<DeviceBuffer> scratch_;
  std::size_t scratch_used_ = 0;
  std::unique_ptr<DeviceCodec> codec_;
};

/// A workshop that one operation leaves for the next.
class SpareWorkshop {
 public:
  /// Loads what workshops launch onto the current device, once: before an operation, whose kernels would else wait for
  /// those of a training step when they are first launched.
  void load_kernels(int device);
  std::unique_ptr<CodecWorkshop> take();
  void put(std::unique_ptr<CodecWorkshop> workshop);

 private:
  std::mutex mutex_;
  std::unique_ptr<CodecWorkshop> spare_;
  std::once_flag loaded_;
};

}  // namespace accdp
