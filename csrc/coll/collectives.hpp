#pragma once
#include <vector>

#include "coll/algorithms.hpp"

namespace accdp {

/// How the collectives are carried out on one kind of memory. A Group checks the arguments and compares signatures;
/// this moves the bytes. All ranks of a call use the same kind, unless it says that it looks like host memory.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual MemoryKind memory(const Asked& asked) const = 0;  ///< as the other ranks of such a group see it

  virtual void bcast(Context& context, Bytes data, int root) = 0;
  virtual void reduce_to(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver) = 0;
  virtual void allgather(Context& context, ConstBytes in, const std::vector<Bytes>& outs) = 0;
  virtual void reduce_scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out,
                              const Reduction& how) = 0;
  virtual void gather(Context& context, ConstBytes in, const std::vector<Bytes>& outs, int root) = 0;
  virtual void scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out, int root) = 0;
  virtual void alltoall(Context& context, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) = 0;
  /// The same, with reductions that give the same bits for every placement of the ranks.
  virtual Collectives& in_rank_order() = 0;
};

/// The algorithms of algorithms.hpp.
Collectives& host_collectives();
/// Those in rank order.
Collectives& ordered_collectives();

}  // namespace accdp
