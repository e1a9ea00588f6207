#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "codec/frame.hpp"
#include "coll/call.hpp"
#include "coll/device_tensors.hpp"
#include "coll/schedule.hpp"
#include "coll/stream.hpp"
#include "coll/stream_choice.hpp"
#include "node/board.hpp"

namespace accdp {

/// How a stream is to be encoded: what the caller asked for.
struct StreamOptions {
  bool automatic = true;            ///< the root chooses by sampling, the codecs' speeds and the link's
  const CodecRow* codec = nullptr;  ///< else: this one for all tensors that it takes; null: none
  std::size_t chunk_bytes = 0;      ///< 0: what was asked for when the group was formed; so if the next is none
  std::optional<BcastAlgorithm> algorithm = {};  ///< of a broadcast
  ErrorBound bound = {};
  std::uint64_t label = 0;          ///< hash of the tensors' names and memory formats; equal on all ranks
  std::uint32_t lacking = 0;        ///< codecs that some rank of the group has not (bit_of()): auto leaves them out
  bool root_takes_decoded = false;  ///< the root's lossy tensors become what the others get, too
  /// Tensors that are on a device; the caller's own matter, ranks may differ in it.
  DeviceTensors* on_device = nullptr;
  /// For the model of auto: whether codecs work on the device of this rank, and on those of all that decode.
  bool encodes_on_device = false, decodes_on_device = false;
};

/// What a caller asks for; chunk_bytes 0 and algorithm "" mean the group's. Throws UsageError.
StreamOptions stream_options(const std::string& codec, std::size_t chunk_bytes, const std::string& algorithm,
                             ErrorBound bound = {}, std::uint64_t label = 0);

/// The same of a call and its tensors, for people: what other ranks know of it is a hash.
std::string in_words(const std::vector<Piece>& pieces, const StreamOptions& options);

/// What one broadcast did on this rank.
struct StreamReport {
  std::uint64_t logical_bytes = 0, wire_bytes = 0;  ///< wire: of one link, heads included
  std::string codec = "none", algorithm = "flat";
  std::string codec_place = "host";  ///< where this rank encoded or decoded most of what it did; "device" or "host"
  double encode_s = 0, decode_s = 0, wire_s = 0, node_s = 0, total_s = 0;
};

/// Turns frames of a stream into messages and back, on one rank, in one operation.
class StreamCodec {
 public:
  static constexpr std::size_t kTooSmall = 64 << 10;  ///< bytes to send for which no codec is chosen
  using Choices = CodecChoices;

  StreamCodec(const Signature& call, const std::vector<Piece>& pieces, const StreamPlan& plan,
              const StreamOptions& options, StreamReport& report);

  /// Root: chooses codecs for what is still to come from frame `first` on. Without effect unless automatic.
  /// `known`: from streams before, for those to come; may be null.
  void choose(std::size_t first_frame, const Journey& journey, Experiences* known = nullptr);
  const StreamChooser& chooser() const { return chooser_; }
  /// The stream went the way that was chosen for it, and took so long, or it will be told later how long.
  void note_time(double seconds) { chooser_.note(chosen_, ratio(), seconds); }
  void expect_time() { chooser_.expect_time(chosen_, ratio()); }
  const Choices& choices() const { return chosen_; }
  void choose_as(const Choices& other) { chosen_ = other; }  ///< what was chosen for the same classes
  bool encodes() const;                                      ///< whether any tensor has a codec now

  ConstBytes encode(std::size_t frame, Bytes room);
  /// Checks all of the message, then writes the frame's tensors. Throws CodecError.
  void decode(std::size_t frame, ConstBytes message);
  /// The frame's tensors one after the other, as receivers get them.
  void decode_to(std::size_t frame, ConstBytes message, Bytes out);
  /// The same from the tensors themselves, in `data`, for what encode() made of them last; cheaper than decoding.
  void round(std::size_t frame, ConstBytes message, Bytes data);
  bool is_lossy() const;
  /// The same on the device, of the frame that encode() was called for last: its tensors become what receivers get, if
  /// that `replaces` them; `residual`, float32 for all tensors one after the other, or empty, becomes the difference
  /// times `factor`, where something was left out.
  void round_on_device(std::size_t frame, Bytes residual, double factor, bool replaces);
  /// Whether the device has all codecs that were chosen, and all tensors.
  bool is_for_device() const;
  /// Whether the codec that was asked for is only on devices: nothing else will do then, on any rank that encodes or
  /// decodes, or all use what stands in for it.
  bool needs_device() const { return named_ && named_->stand_in; }
  void stand_in() { named_ = named_->stand_in; }
  /// Whether frames are decoded on the device where their tensors are, so that the host does not get them.
  void decode_on_device(bool on) { decodes_on_device_ = on; }
  /// The order in which frames will be encoded; else that of their numbers. Of others nothing is encoded ahead.
  void encode_in_order(std::vector<std::size_t> frames);
  /// All is encoded and decoded in the host from now on, which has the tensors.
  void stay_on_host();
  /// What is on a device comes to the host: all of the tensors, or those of a frame.
  void fetch();
  void fetch(std::size_t frame);
  /// What was decoded on the device comes to the host, too. Throws CodecError where it was no chunk of its codec.
  void fetch_decoded(std::size_t frame);
  void finish_report();  ///< names the codec that encoded most

 private:
  double ratio() const;
  const CodecRow* codec_for(const Piece& piece) const;
  FrameReader read(std::size_t frame, ConstBytes message) const;
  void fetch(const StreamPlan::Chunk& chunk);
  void write_chunk(const FrameReader& reader, std::size_t index, const StreamPlan::Chunk& chunk,
                   const std::vector<Bytes>& spans);
  ConstBytes joined(const std::vector<ConstBytes>& spans, std::vector<std::byte>& room);

  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  const StreamOptions& options_;
  const Signature call_;  // every frame says which one it belongs to
  StreamReport& report_;
  StreamChooser chooser_;
  Choices chosen_;
  const CodecRow* named_;  // asked for, or what stands in for it; null: none, or automatic
  std::map<CodecId, std::uint64_t> encoded_bytes_;
  DeviceTensors* on_device_;
  std::optional<DeviceFrames> device_frames_;
  bool decodes_on_device_ = false;
  std::uint64_t device_bytes_ = 0;  // encoded and decoded on the device
  // Of the chunks of the frame that was encoded last.
  std::vector<const CodecRow*> last_codecs_;
  std::vector<std::optional<DeviceFrames::Encoded>> last_on_device_;
  std::vector<std::byte> gathered_, old_, delta_;
};

}  // namespace accdp
