#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "base/ranges.hpp"
#include "codec/cuda_codec.hpp"
#include "coll/device_route.hpp"
#include "coll/far_memory.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// The memory and streams with which the chunks of one operation are encoded and decoded; kept for the next one.
class CodecWorkshop {
 public:
  CodecWorkshop();
  ~CodecWorkshop();
  CodecWorkshop(const CodecWorkshop&) = delete;

  /// Work from now on begins after what the stream holds now.
  void begin_after(cudaStream_t stream);
  /// What the stream gets from now on begins after all work.
  void end_before(cudaStream_t stream);

  struct Job {
    const std::byte* in;  ///< on the device
    std::size_t bytes;
    const CodecRow* codec;
    Encoding how;
  };
  std::size_t begin_encode(const std::vector<Job>& jobs);
  const std::vector<ConstBytes>& encoded(std::size_t beginning);
  /// Many chunks are decoded at once; finish() begins what is left.
  void decode(const CodecRow& codec, Datatype type, ConstBytes stored, std::byte* out, std::size_t bytes);
  void finish();
  void drain() noexcept;

 private:
  /// One of two beginnings of encoding, or of two batches that are decoded.
  struct Half {
    DeviceBuffer far;
    PinnedBuffer near;
    Event ready;
    bool is_under_way = false;
    std::vector<std::size_t> places, bytes;  // encoding: of the chunks in both buffers, and how many they became
    std::vector<ConstBytes> encoded;
  };
  void decode_batch();
  void make_room(Half& half, std::size_t bytes);
  void make_codec(std::size_t chunks, std::size_t chunk_bytes);
  std::uint32_t* words(std::size_t half) const;

  Stream kernels_, copies_;
  Event order_;
  DeviceBuffer far_words_;   // sizes of encoded chunks by half, then whether a decoded one was damaged
  PinnedBuffer near_words_;  // the same in the host
  Half encodings_[2], decodings_[2];
  std::size_t begun_ = 0, decoded_ = 0, codec_chunks_ = 0, codec_chunk_bytes_ = 0;
  // Chunks that are on their way to the device and not decoded yet: alike, in decodings_[decoded_ % 2].
  std::vector<DeviceChunk> batch_;
  const CodecRow* batch_codec_ = nullptr;
  Datatype batch_type_ = Datatype::kBytes;
  std::size_t batch_used_ = 0;  // bytes
  std::unique_ptr<DeviceCodec> codec_;
};

/// A workshop that one operation leaves for the next.
class SpareWorkshop {
 public:
  std::unique_ptr<CodecWorkshop> take();
  void put(std::unique_ptr<CodecWorkshop> workshop);

 private:
  std::mutex mutex_;
  std::unique_ptr<CodecWorkshop> spare_;
};

/// Blocks of device memory and their pinned copies, as memory that is far.
class FarCopies final : public FarMemory {
 public:
  /// blocks, copies: refer to the same memory, one by one; both outlive this.
  FarCopies(std::shared_ptr<SpareWorkshop> spare, int device, cudaStream_t stream,
            const std::vector<DeviceBlock>& blocks, const std::vector<Bytes>& copies);
  FarCopies(const FarCopies&) = delete;
  ~FarCopies() override;

  bool holds(ConstBytes host) const override { return far(host) != nullptr; }
  bool has(const CodecRow& codec, Datatype type) const override { return encodes_on_device(codec.id, type); }
  void fetch(ConstBytes host) override;
  std::size_t begin_encode(const std::vector<Chunk>& chunks) override;
  const std::vector<ConstBytes>& encoded(std::size_t beginning) override;
  void decode(const CodecRow& codec, Datatype type, ConstBytes stored, Bytes host) override;
  void finish() override;

  /// Copies what was written in the host to the device, in the order of the stream.
  void deliver();

 private:
  std::byte* far(ConstBytes host) const;  // null where it is no copy
  CodecWorkshop& workshop();

  std::shared_ptr<SpareWorkshop> spare_;
  int device_;
  cudaStream_t stream_;
  const std::vector<DeviceBlock>& blocks_;
  const std::vector<Bytes>& copies_;
  std::unique_ptr<CodecWorkshop> workshop_;
  Ranges fetched_, decoded_;  // of the host memory
};

}  // namespace accdp
