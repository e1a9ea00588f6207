#pragma once
#include <mpi.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "mpi/refusals.hpp"
#include "mpi/wire.hpp"

namespace accdp::mpi {

[[noreturn]] void throw_mpi(int code, const char* call, const char* file, int line);

/// A thread's stay within MPI. Where the library was initialised for one thread at a time it is alone there. Not to be
/// waited for with the GIL: whoever is there may stay for as long as a rank is missing. It hides what UCX refuses to
/// send (mpi/refusals.hpp), except from calls that wait for others: better ended than to wait for the dead.
class Turn {
 public:
  Turn() = default;
  Turn(Turn&& other) noexcept : hiding_(std::exchange(other.hiding_, nullptr)), alone_(std::move(other.alone_)) {}
  Turn& operator=(Turn&& other) noexcept;
  ~Turn() { end(); }
  /// false: somebody else's MPI_Finalize has begun, and MPI must not be called any more.
  explicit operator bool() const { return hiding_ != nullptr; }

 private:
  friend Turn turn();
  void end() noexcept;
  Hiding* hiding_ = nullptr;
  std::unique_lock<std::mutex> alone_;
};
/// Held around each MPI call that talks to others.
Turn turn();
Turn safe_turn();   ///< the same; throws as check_safe(), and where it is not open
void check_safe();  ///< throws where MPI is Wire::kUnsafe

std::string library();  ///< version text; works before initialisation
const char* flavour();  ///< "mpich", "openmpi" or "other"
/// Whether the library says that it takes device memory of CUDA; false where it cannot be asked.
bool is_cuda_aware();
bool is_initialized();
constexpr const char* kFinalisedTooEarly = "MPI was finalised before the group was closed";
/// Initialises MPI for many threads unless it is already (by mpi4py). Not before all ranks have come to MPI_Init.
void init();
/// Begins to join the ranks of MPI_COMM_WORLD that use us; true once all have. Until then to be called again, by one
/// thread at a time: unlike MPI's own duplication this can be given up. Collective over MPI_COMM_WORLD.
bool join();
std::string thread_level();
MPI_Comm world_comm();  ///< our duplicate of MPI_COMM_WORLD; throws before join()
int world_rank();
int world_size();

/// Waits with an eye on the clock and on Ctrl-C, which MPI_Wait has not. Throws PeerTimeout, and PeerDied where
/// `of_all` ranks of MPI_COMM_WORLD one is known to have ended.
void complete(MPI_Request& request, const Deadline& deadline, const char* what, bool of_all = false);

/// A wire among the given ranks of MPI_COMM_WORLD; group rank r is world_ranks[r]. Called by those ranks only.
/// identity: equal on all of them, and on none of another group that may be made at the same time.
std::shared_ptr<Wire> make_wire(const std::vector<int>& world_ranks, const std::string& identity);
void add_wire(MPI_Comm comm);  ///< finalize() reads what nobody waited for
/// Frees a wire's communicator as soon as `farewells` more have come: only then is nothing on its way that could be
/// taken for a message of a later one, because MPI uses the same number for it again.
void drop_wire(MPI_Comm comm, int farewells) noexcept;
void free_dropped_wires() noexcept;
int held_wires();  ///< communicators of wires that are not freed

/// What the launcher does when a rank dies; false until said otherwise.
void set_deaths_end_the_job(bool they_do) noexcept;
bool deaths_end_the_job() noexcept;
void worsen(Wire::Health health) noexcept;  ///< see Wire::Health
Wire::Health health() noexcept;
/// Leaves MPI if init() initialised it: by MPI_Finalize if all is well, together with the others where one of them has
/// seen a group fail, and alone where they do not come within timeout_s, or after_failure_s if this rank has seen it:
/// some may be stuck for good. With leave_open it only waits for the others: for a process that ends now, where nobody
/// minds that MPI is not finalised. Where MPI belongs to somebody else in some ranks, these call MPI_Finalize, so that
/// all others wait for them and do it too. Not for a rank that ends by an exception: the launcher is to see that.
/// pmi_fd: see say_finalized().
void finalize(double timeout_s, double after_failure_s, bool leave_open, int pmi_fd);

}  // namespace accdp::mpi

#define ACCDP_MPI(call)                                                                                      \
  do {                                                                                                       \
    if (int code_ = (call); code_ != MPI_SUCCESS) ::accdp::mpi::throw_mpi(code_, #call, __FILE__, __LINE__); \
  } while (0)
