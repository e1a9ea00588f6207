#pragma once
#include <string>
#include <vector>

namespace accdp {

/// How a broadcast goes from node to node. A row of bcast_algorithm_rows() each.
enum class BcastAlgorithm { kAuto, kChain, kBinomial, kScatterAllgather, kMpi, kP2pCompressed };

struct BcastAlgorithmRow {
  BcastAlgorithm id;
  const char* name;
  const char* meaning;
};
const std::vector<BcastAlgorithmRow>& bcast_algorithm_rows();
BcastAlgorithm bcast_algorithm_named(const std::string& name);  ///< throws UsageError
const char* name_of(BcastAlgorithm algorithm);

/// What a node does with one frame. Places are nodes counted from the root's, which has place 0.
struct Hop {
  std::size_t frame;
  int from;             ///< place; -1 at the root
  std::vector<int> to;  ///< places
};

/// The hops of one place, in an order in which messages between any two places leave and arrive alike. Pure.
std::vector<Hop> bcast_schedule(BcastAlgorithm algorithm, int places, int place, std::size_t frames);

/// Seconds that a broadcast over nodes takes by the alpha-beta model. Pure.
struct LinkSpeed {
  double bytes_per_s;
  double latency_s;  ///< of a message's way, with what its sender and receiver do for it
};
double bcast_seconds(BcastAlgorithm algorithm, int places, std::size_t frames, double bytes, const LinkSpeed& link);
/// Chain or binomial tree; scatter-allgather never costs less than the chain.
BcastAlgorithm choose_bcast(int places, std::size_t frames, double bytes, const LinkSpeed& link);

}  // namespace accdp
