#include "coll/collectives.hpp"

namespace accdp {
namespace {

class HostCollectives : public Collectives {
 public:
  MemoryKind memory(const Asked&) const override { return MemoryKind::kHost; }
  void bcast(Context& c, Bytes data, int root) override { accdp::bcast(c, data, root); }
  void reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) override {
    accdp::reduce_to(c, in, out, how, receiver);
  }
  void allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) override { accdp::allgather(c, in, outs); }
  void reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) override {
    accdp::reduce_scatter(c, ins, out, how);
  }
  void gather(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) override {
    accdp::gather(c, in, outs, root);
  }
  void scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) override {
    accdp::scatter(c, ins, out, root);
  }
  void alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) override {
    accdp::alltoall(c, ins, outs);
  }
  Collectives& in_rank_order() override { return ordered_collectives(); }
};

class OrderedCollectives final : public HostCollectives {
 public:
  void reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) override {
    reduce_in_rank_order(c, in, out, how, receiver);
  }
  void reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) override {
    reduce_scatter_in_rank_order(c, ins, out, how);
  }
};

}  // namespace

Collectives& host_collectives() {
  static HostCollectives it;
  return it;
}

Collectives& ordered_collectives() {
  static OrderedCollectives it;
  return it;
}

}  // namespace accdp
