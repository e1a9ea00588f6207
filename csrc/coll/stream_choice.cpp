#include "coll/stream_choice.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/deadline.hpp"
#include "codec/delta.hpp"
#include "coll/stream_codec.hpp"

namespace accdp {
namespace {

// Samples are slices of the data, of so much at first, and then longer as long as SamplingBudget allows.
constexpr std::size_t kFirstSlice = 4 << 10, kLongerBy = 4, kMostSlices = 4;
constexpr std::size_t kLooks = 64;
constexpr std::size_t kWholeElements = 64;  // bytes: of every datatype
// Time that operations leave over for samples is kept for later ones, of so many.
constexpr double kMostSaved = 16;
// Tensors in whose class so much of a stream is speak for all of it.
constexpr double kNearlyAll = 0.9;

double cost_of(std::span<const Experience::Option* const> options, std::size_t slices, std::size_t bytes) {
  double seconds = 0;
  for (const Experience::Option* option : options)
    seconds += sampling_seconds(option->candidate.in_host, static_cast<double>(bytes));
  return seconds * static_cast<double>(slices) * sampling_turns(slices);
}

/// Numbers that differ by less than a fifth or so have the same.
std::uint64_t bucket(double number) { return static_cast<std::uint64_t>(std::lround(2 * std::log2(number)) + 64); }

/// The bits of an element in which words of data differ from its first element, or from the reference.
class VaryingBits {
 public:
  explicit VaryingBits(Datatype type) : width_(std::min<std::size_t>(element_bytes(type), 8)) {}
  void look_at(const std::byte* data, const std::byte* reference) {
    std::uint64_t word, other;
    std::memcpy(&word, data, 8);
    if (reference)
      std::memcpy(&other, reference, 8);
    else
      other = std::exchange(is_first_, false) ? first_ = repeated(word) : first_;
    bits_ |= word ^ other;
  }
  int count() const {
    std::uint64_t bits = bits_;
    for (std::size_t half = 4; half >= width_; half /= 2) bits |= bits >> 8 * half;
    return std::popcount(bits & element_mask());
  }

 private:
  std::uint64_t element_mask() const { return ~std::uint64_t{0} >> (64 - 8 * width_); }
  std::uint64_t repeated(std::uint64_t word) const {
    word &= element_mask();
    for (std::size_t bytes = width_; bytes < 8; bytes *= 2) word |= word << 8 * bytes;
    return word;
  }

  std::size_t width_;
  std::uint64_t first_ = 0, bits_ = 0;
  bool is_first_ = true;
};

}  // namespace

PieceClass class_of(const Piece& piece) {
  return {piece.type, piece.lossy && piece.bound > 0, !piece.reference.empty()};
}

Encoding StreamChooser::Data::how() const { return {which.delta ? delta_type(which.type) : which.type, bound}; }

StreamChooser::Data StreamChooser::data_of(const PieceClass& which, std::size_t first_frame) const {
  Data data{which, {}, 0, 0};
  const StreamPlan::Chunk& first = plan_.chunks()[plan_.frames()[first_frame].first];
  for (std::size_t i = first.piece; i < pieces_.size(); ++i) {
    const std::size_t begin = i == first.piece ? first.offset : 0;
    if (class_of(pieces_[i]) != which || begin >= pieces_[i].data.size()) continue;
    data.stretches.push_back({&pieces_[i], begin, data.bytes});
    data.bytes += pieces_[i].data.size() - begin;
    data.bound = std::max(data.bound, pieces_[i].bound);
  }
  return data;
}

CodecChoices StreamChooser::choose(std::size_t first_frame, const Journey& journey, Experiences* known) {
  const bool is_first = first_frame == 0;
  if (known && is_first) known->link_is(journey.link_bytes_per_s);
  CodecChoices chosen;
  for (const Piece& piece : pieces_) {
    const PieceClass which = class_of(piece);
    if (chosen.contains(which)) continue;
    const Data data = data_of(which, first_frame);
    chosen[which] = data.bytes ? choose_for(data, journey, known, is_first) : nullptr;
  }
  return chosen;
}

const CodecRow* StreamChooser::choose_for(const Data& data, Journey journey, Experiences* known, bool is_first) {
  const Encoding how = data.how();
  if (!is_first) {  // what is left of a stream
    if (const auto found = own_.find(data.which); found != own_.end()) return found->second.predict(journey);
    return main_ && data.which == main_class_ ? main_->predict(journey) : nullptr;
  }
  const Placement placed = placement(data);
  const auto candidates = [&] { return codecs_to_try(how, options_.lacking, journey.link_bytes_per_s, placed); };
  Experience* experience;
  if (known && static_cast<double>(data.bytes) > kNearlyAll * static_cast<double>(plan_.bytes())) {
    known_ = known;
    main_key_ = {where(data), key_of(data, journey)};
    main_ = experience = &known->at(main_key_, candidates);
    main_class_ = data.which;
    main_bytes_ = journey.bytes;
  } else {
    experience = &own_.insert_or_assign(data.which, Experience(candidates())).first->second;
  }
  if (experience->wants_samples() && !sample(data, journey, placed, *experience)) experience->has_all_samples();
  journey.transform_s_per_byte = experience->transform_s_per_byte;
  return experience->choose(journey);
}

unsigned StreamChooser::where(const Data& data) const {
  if (!options_.on_device) return kInHost;
  const auto is_on_device = [&](const Stretch& stretch) {
    return options_.on_device->holds(stretch.piece->data) && options_.on_device->holds(stretch.piece->reference);
  };
  const bool encodes =
      options_.encodes_on_device && std::all_of(data.stretches.begin(), data.stretches.end(), is_on_device);
  return (encodes ? kEncodedOnDevice : kInHost) | (options_.decodes_on_device ? kDecodedOnDevice : kInHost);
}

/// Other ranks' devices are taken to be as fast as this one's, as their hosts are.
Placement StreamChooser::placement(const Data& data) const {
  return [this, place = where(data), type = data.how().type](const CodecRow& codec, CodecCost cost) {
    if (place == kInHost || !options_.on_device->has(codec, type)) return cost;
    const CodecCost there = options_.on_device->speed(codec, type);
    const double run =
        static_cast<double>(std::min(DeviceTensors::kRunBytes, DeviceTensors::kMostChunks * plan_.chunk_bytes()));
    if (place & kEncodedOnDevice) {
      cost.encode_bytes_per_s = there.encode_bytes_per_s;
      cost.encode_call_s = there.encode_call_s;
      cost.encode_run_bytes = run;
    }
    if (place & kDecodedOnDevice) {
      cost.decode_bytes_per_s = there.decode_bytes_per_s;
      cost.decode_call_s = there.decode_call_s;
      cost.decode_run_bytes = run;
    }
    return cost;
  };
}

/// What makes streams alike, from a look at few of their bytes: it must cost next to nothing. (Data that only looks
/// alike is told by its ratios.)
std::uint64_t StreamChooser::key_of(const Data& data, const Journey& journey) const {
  VaryingBits varying(data.which.type);
  for (const Look& look : look_at(data, kLooks, 8))
    if (look.data.size() == 8) varying.look_at(look.data.data(), look.reference.data());
  std::uint64_t key = static_cast<std::uint64_t>(data.which.type) << 2 | data.which.lossy << 1 | data.which.delta;
  key = key << 4 | static_cast<std::uint64_t>((varying.count() + 7) / 8);
  for (double number : {journey.bytes, journey.chunk_bytes}) key = key << 8 | bucket(number);
  return key << 16 | static_cast<std::uint64_t>(journey.links);
}

/// The place of a byte of the class, or a little before it, where an element begins.
std::pair<const Piece*, std::size_t> StreamChooser::find(const Data& data, std::size_t at) const {
  const auto after = [](std::size_t place, const Stretch& stretch) { return place < stretch.before; };
  const Stretch& stretch = *std::prev(std::upper_bound(data.stretches.begin(), data.stretches.end(), at, after));
  return {stretch.piece, stretch.begin + (at - stretch.before) / kWholeElements * kWholeElements};
}

/// At even distances. What is on a device comes in one transfer: waiting for it takes longer than the bytes do.
std::vector<StreamChooser::Look> StreamChooser::look_at(const Data& data, std::size_t places, std::size_t bytes) const {
  std::vector<Look> looks;
  looks.reserve(places);
  for (std::size_t k = 0; k < places; ++k) {
    const auto [piece, offset] = find(data, k * (data.bytes / places));
    const std::size_t n = std::min(bytes, piece->data.size() - offset);
    looks.push_back({piece, piece->data.subspan(offset, n), {}});
    if (!piece->reference.empty()) looks.back().reference = piece->reference.subspan(offset, n);
  }
  if (!options_.on_device) return looks;
  std::vector<ConstBytes> wanted;
  for (const Look& look : looks) {
    wanted.push_back(look.data);
    wanted.push_back(look.reference);
  }
  options_.on_device->fetch(wanted);
  return looks;
}

/// The first time each codec for itself, afterwards all that may still be the best or none, so that what is compared
/// was seen at the same length. What one operation has no time for, the next one like it may have. False: nothing was
/// tried, and nothing will be.
bool StreamChooser::sample(const Data& data, const Journey& journey, const Placement& placed,
                           Experience& experience) const {
  const double share = static_cast<double>(data.bytes) / journey.bytes;
  Journey with_transform = journey;
  const Encoding how = data.how();
  SamplingBudget budget(experience.best_seconds(journey) * share, experience.sampling_share());
  budget.spend(-experience.saved_s);
  const double most_saved = kMostSaved * budget.usual();
  const bool may_save = experience.saved_s < most_saved;
  bool is_open = false;
  for (std::size_t bytes = kFirstSlice; bytes <= plan_.chunk_bytes() && bytes <= data.bytes; bytes *= kLongerBy) {
    with_transform.transform_s_per_byte = experience.transform_s_per_byte;
    std::vector<Experience::Option*> wanted;
    for (Experience::Option& option : experience.codecs()) {
      if (!option.helps || option.slice_bytes >= bytes) continue;
      const double predicted = encoded_seconds(with_transform, option.candidate.cost) * share;
      const bool is_hopeless = option.slice_bytes == 0 || budget.is_hopeless(predicted, option.slice_bytes);
      if (bytes > kFirstSlice && is_hopeless) continue;
      wanted.push_back(&option);
    }
    is_open |= may_save && !wanted.empty();
    // Tensors differ: of what is worth it not only one place is looked at.
    const std::size_t slices = 2 * cost_of(wanted, kMostSlices, bytes) < budget.usual() ? kMostSlices : 1;
    if (bytes > kFirstSlice && !budget.allows(cost_of(wanted, slices, bytes))) break;
    std::vector<std::vector<std::byte>> samples;
    for (Experience::Option* option : wanted) {
      if (!budget.allows(cost_of({{option}}, slices, bytes))) continue;
      const auto began = Clock::now();
      if (samples.empty()) samples = slices_of(data, slices, bytes, experience.transform_s_per_byte);
      const std::vector<ConstBytes> views(samples.begin(), samples.end());
      option->helps = try_codec(option->candidate, how, views, placed);
      option->slice_bytes = bytes;
      is_open = true;
      budget.spend(seconds_since(began));
      with_transform.transform_s_per_byte = experience.transform_s_per_byte;
      if (option->helps) budget.found(encoded_seconds(with_transform, option->candidate.cost) * share);
    }
  }
  // What only the second one may spend is not kept.
  const bool is_second = experience.sampling_share() > SamplingBudget::kShare;
  experience.saved_s = std::min(budget.left(), is_second ? 0 : most_saved);
  return is_open;
}

/// Copied, so that the codec that comes first does not pay for bringing them into the cache.
std::vector<std::vector<std::byte>> StreamChooser::slices_of(const Data& data, std::size_t slices, std::size_t bytes,
                                                             double& transform_s_per_byte) const {
  std::vector<std::vector<std::byte>> found;
  double seconds = 0;
  std::size_t sampled = 0;
  for (const Look& look : look_at(data, slices, bytes)) {
    found.emplace_back(look.data.begin(), look.data.end());
    sampled += look.data.size();
    if (look.reference.empty()) continue;
    const auto began = Clock::now();
    delta_encode(look.piece->type, look.data, look.reference, found.back());
    seconds += seconds_since(began);
  }
  transform_s_per_byte = seconds / static_cast<double>(std::max<std::size_t>(sampled, 1));
  return found;
}

void StreamChooser::note(const CodecChoices& chosen, double ratio, double seconds) {
  if (main_) main_->note(main_->trial(chosen.at(main_class_), main_bytes_, ratio), seconds);
}

void StreamChooser::expect_time(const CodecChoices& chosen, double ratio) {
  if (main_) known_->expect(main_key_, main_->trial(chosen.at(main_class_), main_bytes_, ratio));
}

}  // namespace accdp
