#pragma once
#include <map>
#include <utility>
#include <vector>

#include "codec/experience.hpp"
#include "coll/stream.hpp"

namespace accdp {

struct StreamOptions;

/// Tensors of a stream that share a codec.
struct PieceClass {
  Datatype type;
  bool lossy, delta;
  auto operator<=>(const PieceClass&) const = default;
};
PieceClass class_of(const Piece& piece);

using CodecChoices = std::map<PieceClass, const CodecRow*>;

/// Chooses the codecs of one stream, on its root: by samples of the data, by what the model of the pipeline says of
/// them and by what streams like this one took before.
class StreamChooser {
 public:
  StreamChooser(const std::vector<Piece>& pieces, const StreamPlan& plan, const StreamOptions& options)
      : pieces_(pieces), plan_(plan), options_(options) {}

  /// For what is still to come from frame `first` on. `known`: what is known from streams before; may be null.
  CodecChoices choose(std::size_t first_frame, const Journey& journey, Experiences* known);
  /// Whether the choice is by what was seen before, so that news of the link are no reason for another one.
  bool has_seen(const CodecChoices& chosen) const { return main_ && main_->has_seen(chosen.at(main_class_)); }
  /// The stream went as it was chosen, with this ratio, and took so long. One whose tensors are not nearly all of one
  /// class says nothing.
  void note(const CodecChoices& chosen, double ratio, double seconds);
  /// The same where it becomes known later how long: Experiences::took().
  void expect_time(const CodecChoices& chosen, double ratio);

 private:
  /// Where the bytes of a class are.
  struct Stretch {
    const Piece* piece;
    std::size_t begin, before;  ///< in the piece; bytes of the class before it
  };
  struct Data {
    PieceClass which;
    std::vector<Stretch> stretches;
    std::size_t bytes = 0;
    double bound = 0;
    Encoding how() const;
  };
  /// Where codecs that a device has work for a class.
  enum Where : unsigned { kInHost = 0, kEncodedOnDevice = 1, kDecodedOnDevice = 2 };
  /// Some bytes of a tensor, and of what it is a difference to, or none; in the host.
  struct Look {
    const Piece* piece;
    ConstBytes data, reference;
  };
  Data data_of(const PieceClass& which, std::size_t first_frame) const;
  std::pair<const Piece*, std::size_t> find(const Data& data, std::size_t at) const;
  std::vector<Look> look_at(const Data& data, std::size_t places, std::size_t bytes) const;
  unsigned where(const Data& data) const;
  Placement placement(const Data& data) const;
  std::uint64_t key_of(const Data& data, const Journey& journey) const;
  const CodecRow* choose_for(const Data& data, Journey journey, Experiences* known, bool is_first);
  bool sample(const Data& data, const Journey& journey, const Placement& placed, Experience& experience) const;
  std::vector<std::vector<std::byte>> slices_of(const Data& data, std::size_t slices, std::size_t bytes,
                                                double& transform_s_per_byte) const;

  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  const StreamOptions& options_;
  Experiences* known_ = nullptr;
  Experience* main_ = nullptr;
  Experiences::Key main_key_{};
  PieceClass main_class_{};
  double main_bytes_ = 0;                 // of the journey
  std::map<PieceClass, Experience> own_;  // where nothing is kept
};

}  // namespace accdp
