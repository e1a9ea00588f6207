"""MPI is not used any more where it may still write to memory that is the caller's again: by nothing of ours."""

import re
import sys

import jobs
import preload

# Receives of some length cannot be taken back, and never come; calls of MPI are counted from when that is known.
STUCK = """
#include <mpi.h>
static MPI_Request stuck[16];
static int many, counts, calls;
static int is_stuck(MPI_Request request) {
  for (int i = 0; i < many; ++i)
    if (request == stuck[i]) return 1;
  return 0;
}
void count_calls(void) { counts = 1; }
int calls_counted(void) { return calls; }
#define COUNTED(function, parameters, ...) \\
  int MPI_##function parameters { calls += counts; return PMPI_##function(__VA_ARGS__); }
COUNTED(Isend, (const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request),
        data, count, type, to, tag, comm, request)
COUNTED(Improbe, (int from, int tag, MPI_Comm comm, int *found, MPI_Message *message, MPI_Status *status),
        from, tag, comm, found, message, status)
COUNTED(Iprobe, (int from, int tag, MPI_Comm comm, int *found, MPI_Status *status), from, tag, comm, found, status)
COUNTED(Request_free, (MPI_Request *request), request)
COUNTED(Testsome, (int count, MPI_Request *requests, int *done, int *which, MPI_Status *statuses),
        count, requests, done, which, statuses)
COUNTED(Comm_free, (MPI_Comm *comm), comm)
COUNTED(Comm_idup, (MPI_Comm comm, MPI_Comm *made, MPI_Request *request), comm, made, request)
int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  calls += counts;
  const int error = PMPI_Irecv(data, count, type, from, tag, comm, request);
  if (count > 10000 && many < 16) stuck[many++] = *request;
  return error;
}
int MPI_Cancel(MPI_Request *request) {
  calls += counts;
  return is_stuck(*request) ? MPI_SUCCESS : PMPI_Cancel(request);
}
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
  calls += counts;
  *done = 0;
  return is_stuck(*request) ? MPI_SUCCESS : PMPI_Test(request, done, status);
}
"""

SCRIPT = """
import ctypes, gc, time
import accdp_comm, numpy as np
from accdp_comm import _mpi
library = ctypes.CDLL(None)
world, first, closed = (accdp_comm.Communicator(timeout_s=seconds) for seconds in (20, 1, 20))
if world.rank == 0:
    world.recv(np.zeros(1), 1)  # from here on rank 1 needs MPI no more
    closed.close()
    begun = [comm.isend(np.zeros(100_000, np.uint8), 1, tag=3) for comm in (world, first)]
    time.sleep(5)
else:
    world.send(np.zeros(1), 0)
    exchange = _mpi.Exchange(None)  # whose communicator is being made
    begun = [world.irecv(np.zeros(100_000, np.uint8), 0, tag=3), world.isend(np.zeros(100_000), 0, tag=2)]
    closed.close()  # its communicator goes when the other rank has said farewell
    try:
        first.recv(np.zeros(100_000, np.uint8), 0, tag=3)
    except accdp_comm.PeerTimeout as error:
        print("said:", error, flush=True)
    library.count_calls()
    for comm in (first, world):
        try:
            comm.barrier()
        except accdp_comm.Error as error:
            print("said:", error, flush=True)
    try:
        accdp_comm.Communicator(timeout_s=2)
    except accdp_comm.Error as error:
        print("said:", error, flush=True)
    del exchange
    for work in begun:
        try:
            work.wait()
        except accdp_comm.Error:
            pass
    del begun, work
    first.close()
    world.close()
    del world, first, closed, comm
    gc.collect()
    print("calls of MPI:", library.calls_counted(), flush=True)
"""


def test_nothing_calls_mpi_any_more(tmp_path):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", SCRIPT]
    env = {"ACCDP_TOPOLOGY": "2x1", "LD_PRELOAD": str(preload.library(tmp_path, STUCK))}
    result = jobs.run(command, env=env, timeout=60.0)
    timed_out, *others = re.findall(r"said: (.*)", result.stdout)
    assert "Timed out after 1 s" in timed_out and len(others) == 3, str(result)
    assert all("MPI is not used any more in this process" in text for text in others[1:]), str(result)
    assert "calls of MPI: 0" in result.stdout, str(result)


# A rank stands still before its word that it has come to the call leaves: the others have given up when it does.
HELD_UP = """
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  if (getenv("TEST_HOLD_UP")) {
    unsetenv("TEST_HOLD_UP");
    usleep(2500 * 1000);
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
"""

LATE = """
import os
import accdp_comm, numpy as np
world, comm = (accdp_comm.Communicator(timeout_s=seconds) for seconds in (20, 1))
data = np.zeros(3_000_000)
comm.bcast(data)
if world.rank == 0:
    os.environ["TEST_HOLD_UP"] = "1"
try:
    comm.bcast(data)
except accdp_comm.Error as error:
    print(f"rank {world.rank} said: {error}", flush=True)
world.barrier()
print(f"rank {world.rank} is well", flush=True)
"""


def test_a_collective_of_mpis_is_not_begun_where_others_have_given_up(tmp_path):
    """It could not be taken back: the rank would use MPI no more."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", LATE]
    env = {"ACCDP_TOPOLOGY": "2x1", "ACCDP_BASELINE": "mpi", "LD_PRELOAD": str(preload.library(tmp_path, HELD_UP))}
    result = jobs.run(command, env=env, timeout=60.0)
    for rank in range(2):
        assert f"rank {rank} is well" in result.stdout, str(result)
    assert re.search(r"rank 0 said: .* Timed out after 1 s \(timeout\) waiting for rank 0", result.stdout), str(result)
