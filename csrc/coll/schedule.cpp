#include "coll/schedule.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"
#include "base/rounding.hpp"

namespace accdp {
namespace {

/// Each place gets all frames from the place before.
std::vector<Hop> chain(int places, int place, std::size_t frames) {
  std::vector<Hop> hops;
  for (std::size_t frame = 0; frame < frames; ++frame) {
    Hop hop{frame, place - 1, {}};
    if (place + 1 < places) hop.to.push_back(place + 1);
    hops.push_back(std::move(hop));
  }
  return hops;
}

/// Each place gets all frames from the place that has its number without the lowest bit set.
std::vector<Hop> binomial(int places, int place, std::size_t frames) {
  int bit = 1;
  while (bit < places && !(place & bit)) bit <<= 1;
  std::vector<int> children;
  const int parent = place ? place - bit : -1;
  for (bit >>= 1; bit > 0; bit >>= 1)
    if (place + bit < places) children.push_back(place + bit);
  std::vector<Hop> hops;
  for (std::size_t frame = 0; frame < frames; ++frame) hops.push_back({frame, parent, children});
  return hops;
}

/// Frame f belongs to block f % places. The root sends each place its own block; on a ring from the root each place
/// then passes on what it got first, and what it got from the place before, until the next has it already.
std::vector<Hop> scatter_allgather(int places, int place, std::size_t frames) {
  std::vector<Hop> hops;
  const std::size_t rounds = ceil_div(frames, places);
  for (std::size_t round = 0; round < rounds; ++round)
    for (int step = 0; step < places; ++step) {
      // Own block first, then those of the places before: the order in which they come. The root keeps the order of
      // place 1, its successor.
      const int owner = ((place ? place : 1) - step + places) % places;
      const std::size_t frame = round * places + owner;
      if (frame >= frames) continue;
      Hop hop{frame, place == 0 ? -1 : owner == place ? 0 : place - 1, {}};
      if (place == 0 && owner != 0) hop.to.push_back(owner);
      const int next = place + 1;
      if (next < places && next != owner) hop.to.push_back(next);
      hops.push_back(std::move(hop));
    }
  return hops;
}

}  // namespace

const std::vector<BcastAlgorithmRow>& bcast_algorithm_rows() {
  static const std::vector<BcastAlgorithmRow> rows = {
      {BcastAlgorithm::kAuto, "auto", "the cheaper one of chain and binomial"},
      {BcastAlgorithm::kChain, "chain", "node to node, frame by frame"},
      {BcastAlgorithm::kBinomial, "binomial", "a binomial tree over the nodes"},
      {BcastAlgorithm::kScatterAllgather, "scatter_allgather", "a part to each node, then round a ring"},
      {BcastAlgorithm::kMpi, "mpi", "the MPI library's own, uncompressed"},
      {BcastAlgorithm::kP2pCompressed, "p2p_compressed",
       "a binomial tree in which every message is encoded by its sender and decoded by its receiver, as a whole"},
  };
  return rows;
}

BcastAlgorithm bcast_algorithm_named(const std::string& name) {
  std::string known;
  for (const BcastAlgorithmRow& row : bcast_algorithm_rows()) {
    if (name == row.name) return row.id;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw UsageError("algorithm=" + name + ": expected one of " + known);
}

const char* name_of(BcastAlgorithm algorithm) { return bcast_algorithm_rows()[static_cast<int>(algorithm)].name; }

std::vector<Hop> bcast_schedule(BcastAlgorithm algorithm, int places, int place, std::size_t frames) {
  switch (algorithm) {
    case BcastAlgorithm::kBinomial:
    case BcastAlgorithm::kP2pCompressed: return binomial(places, place, frames);
    case BcastAlgorithm::kScatterAllgather: return scatter_allgather(places, place, frames);
    default: return chain(places, place, frames);
  }
}

double bcast_seconds(BcastAlgorithm algorithm, int places, std::size_t frames, double bytes, const LinkSpeed& link) {
  const double rounds = std::bit_width(static_cast<unsigned>(places - 1)), hops = places - 1;
  const double all = bytes / link.bytes_per_s, one = all / static_cast<double>(frames);
  // Frames follow each other on every link, so only the way of one counts; a link of root's carries each of them once
  // for each of its children, the one with the most below it first.
  switch (algorithm) {
    case BcastAlgorithm::kBinomial:
    case BcastAlgorithm::kP2pCompressed: return rounds * (link.latency_s + all);
    case BcastAlgorithm::kScatterAllgather: return 2 * all * hops / places + hops * (link.latency_s + one);
    default: return hops * link.latency_s + all + (hops - 1) * one;
  }
}

BcastAlgorithm choose_bcast(int places, std::size_t frames, double bytes, const LinkSpeed& link) {
  const auto seconds = [&](BcastAlgorithm algorithm) { return bcast_seconds(algorithm, places, frames, bytes, link); };
  return seconds(BcastAlgorithm::kBinomial) < seconds(BcastAlgorithm::kChain) ? BcastAlgorithm::kBinomial
                                                                              : BcastAlgorithm::kChain;
}

}  // namespace accdp
