#include "mpi/groups.hpp"

#include "base/handle.hpp"
#include "mpi/refusals.hpp"
#include "mpi/world.hpp"

namespace accdp::mpi {
namespace {

struct GroupTraits {
  using Raw = MPI_Group;
  static Raw none() noexcept { return MPI_GROUP_NULL; }
  static void close(Raw group) noexcept { MPI_Group_free(&group); }
};
using RankGroup = Handle<GroupTraits>;

RankGroup group_of(MPI_Comm comm) {
  MPI_Group group;
  ACCDP_MPI(MPI_Comm_group(comm, &group));
  return RankGroup(group);
}

RankGroup part_of(const RankGroup& all, const std::vector<int>& ranks) {
  MPI_Group part;
  ACCDP_MPI(MPI_Group_incl(all.get(), static_cast<int>(ranks.size()), ranks.data(), &part));
  return RankGroup(part);
}

}  // namespace

MPI_Comm create_comm(const std::vector<int>& world_ranks, int tag) {
  const MPI_Comm world = world_comm();
  const auto lock = safe_turn();
  const RankGroup all = group_of(world), some = part_of(all, world_ranks);
  MPI_Comm made = MPI_COMM_NULL;
  expose_refusals();
  ACCDP_MPI(MPI_Comm_create_group(world, some.get(), tag, &made));
  ACCDP_MPI(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN));
  return made;
}

}  // namespace accdp::mpi
