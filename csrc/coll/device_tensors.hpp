#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "codec/codec.hpp"
#include "codec/policy.hpp"
#include "coll/stream.hpp"
#include "device/reduce.hpp"

namespace accdp {

class Context;

/// Tensors on a device, seen by those who know no CUDA: each has host memory of its size that stands for it, and that
/// is filled only where it is asked for. Spans are of that host memory, or of what scratch() gave. One thread at a
/// time. What changes the device's memory is done in the order of the calls, and at the latest when finish() returns.
class DeviceTensors {
 public:
  static constexpr std::size_t kMostChunks = 32, kMostSources = 32;
  /// Of tensors that are encoded ahead at once: enough to keep a GPU busy, little enough to be under way soon.
  static constexpr std::size_t kRunBytes = 4 << 20;

  virtual ~DeviceTensors() = default;
  /// Whether all of a span stands for memory of the device.
  virtual bool holds(ConstBytes host) const = 0;
  /// Whether the device encodes and decodes so.
  virtual bool has(const CodecRow& codec, Datatype type) const = 0;
  /// As codec_speed() of codec/speeds.hpp, in runs of kRunBytes; of what it has. Measured at first use, as that is.
  virtual CodecCost speed(const CodecRow& codec, Datatype type) const = 0;
  /// Host memory gets what the device has; waits. What does not stand for memory of a device is there already.
  virtual void fetch(const std::vector<ConstBytes>& host) = 0;

  /// A chunk of a stream: its memory, in several spans where it runs over several tensors, and what it is a difference
  /// to: as many spans of the same sizes, or none.
  struct Place {
    std::vector<Bytes> spans;
    std::vector<ConstBytes> references;
    Datatype type = Datatype::kBytes;  ///< of the tensors
  };
  struct Chunk {
    Place place;
    const CodecRow* codec;
    Encoding how;  ///< of the differences, where it is one
  };
  /// Begins to encode up to kMostChunks chunks, and does not wait. Ends with end_encode().
  virtual std::size_t begin_encode(const std::vector<Chunk>& chunks) = 0;
  /// Of such a beginning: the encoded bytes of each chunk; empty: it did not become smaller. Waits.
  virtual const std::vector<ConstBytes>& encoded(std::size_t beginning) = 0;
  virtual void end_encode(std::size_t beginning) = 0;
  /// The tensor gets what `stored` stands for; the host memory does not. codec: null where it is stored as it is.
  /// `stored` may change afterwards.
  virtual void decode(const CodecRow* codec, Datatype type, ConstBytes stored, const Place& to) = 0;
  /// crc32c() of codec/crc32c.hpp. Waits.
  virtual std::uint32_t crc32c(ConstBytes host, std::uint32_t seed) = 0;
  /// Waits for all chunks that are decoded. Throws CodecError where one was no chunk of its codec.
  virtual void finish() = 0;

  // What reductions need.

  /// Memory of the device until the end of the operation. Not to be read or written in the host.
  virtual Bytes scratch(std::size_t bytes) = 0;
  /// As reduce() of device/reduce.hpp, of up to kMostSources.
  virtual void reduce(Bytes to, const std::vector<ConstBytes>& sources, const Reduction& how) = 0;
  /// A chunk that is encoded, and has become smaller, as its receivers get it.
  struct Rounding {
    std::size_t chunk;  ///< of the beginning
    Bytes tensor;
    Bytes residual;  ///< float32, or empty: becomes (tensor - what receivers get) * factor, as residual() has it
  };
  /// replaces: the tensors become what receivers get, too.
  virtual void round(std::size_t beginning, const std::vector<Rounding>& chunks, double factor, bool replaces) = 0;
  /// Standard deviations of floats of 16 bits or more, which may differ from the host's in the last digits. Waits.
  struct Tensor {
    ConstBytes host;
    Datatype type;
  };
  virtual std::vector<double> deviations(const std::vector<Tensor>& tensors) = 0;

  // Of several ranks on a node, which all call these. Memory is in the order of all other calls.

  /// Whether they reach each other's devices; the same on all of them. May set up what that takes.
  virtual bool joins_node(Context& context) = 0;
  /// A part of a message, and the rank of the node that speaks for it.
  struct Lot {
    std::size_t begin, bytes;
    int owner;
  };
  /// Of `data`, which has the same size on all, every rank's own lots become the sums over the node, in order of ranks.
  /// lots: of all ranks, without gaps.
  virtual void reduce_on_node(Context& context, Bytes data, const std::vector<Lot>& lots, const Reduction& how) = 0;
  /// Every rank gets the lots of the others.
  virtual void share_on_node(Context& context, Bytes data, const std::vector<Lot>& lots) = 0;
};

/// Where a chunk is whose memory is `spans`, if all of it is on the device.
std::optional<DeviceTensors::Place> place_of(const DeviceTensors& on_device, const std::vector<Piece>& pieces,
                                             const StreamPlan::Chunk& chunk, const std::vector<Bytes>& spans);
void fetch_all(DeviceTensors& on_device, const std::vector<Piece>& pieces);
/// Not more than the tensors' standard deviations, and nearly as much, so that bounds which count those hold.
/// on_device: null where all tensors are in the host; else not all of them need be there.
std::vector<double> deviations_of(const std::vector<Piece>& pieces, DeviceTensors* on_device);
/// CRC-32C over all references, with a bit above it so that it is never 0; 0 where there is none.
std::uint64_t reference_check(const std::vector<Piece>& pieces, DeviceTensors* on_device);
/// Gives lossy tensors their bounds, which hold for the values that they have now.
void set_bounds(std::vector<Piece>& pieces, const ErrorBound& bound, DeviceTensors* on_device);

/// Frames encoded on a device ahead of their turn: while one run of them is copied to the host and sent, the next is
/// encoded.
class DeviceFrames {
 public:
  using CodecFor = std::function<const CodecRow*(const Piece&)>;  ///< null: the piece goes as it is
  /// At first in the order of their numbers.
  DeviceFrames(DeviceTensors& on_device, const std::vector<Piece>& pieces, const StreamPlan& plan, CodecFor codec_for);
  DeviceFrames(const DeviceFrames&) = delete;

  /// The turns of frames from now on; of those that are not among them nothing is encoded ahead.
  void in_order(std::vector<std::size_t> frames);

  struct Encoded {
    const CodecRow* codec;
    ConstBytes stored;  ///< empty: the chunk did not become smaller
    std::size_t beginning, chunk;
  };
  /// Of every chunk of a frame; none where it has to be encoded in the host. Valid until the next call.
  std::vector<std::optional<Encoded>> take(std::size_t frame);

 private:
  struct Coded {
    std::size_t frame;
    const CodecRow* codec;  ///< null: in the host
  };
  struct Run {
    std::size_t end = 0;  ///< turn after its last
    std::optional<std::size_t> beginning;
    std::vector<Coded> chunks;
    bool has(std::size_t frame) const;
  };
  void begin(Run& run, std::size_t frame);
  void add(Run& run, std::size_t frame, std::vector<DeviceTensors::Chunk>& chunks) const;

  DeviceTensors& on_device_;
  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  CodecFor codec_for_;
  std::vector<std::size_t> turns_, turn_of_;  // frames; by frame
  Run runs_[2];
  std::size_t latest_ = 0;  // of the two
};

}  // namespace accdp
