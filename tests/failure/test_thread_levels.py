"""MPI that somebody else initialised, at a lower level than MPI_THREAD_MULTIPLE."""

import sys

import jobs
import preload
import pytest

pytest.importorskip("mpi4py")

# Whether calls of MPI by two threads of a rank met in the library.
ALONE = """
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>
static atomic_int inside, met;
#define ALONE(call) \\
  if (atomic_fetch_add(&inside, 1)) met = 1; \\
  usleep(20); \\
  int code = call; \\
  atomic_fetch_sub(&inside, 1); \\
  return code
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  ALONE(PMPI_Isend(data, n, type, to, tag, comm, request));
}
int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  ALONE(PMPI_Irecv(data, n, type, from, tag, comm, request));
}
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) { ALONE(PMPI_Test(request, done, status)); }
int MPI_Improbe(int from, int tag, MPI_Comm comm, int *found, MPI_Message *message, MPI_Status *status) {
  ALONE(PMPI_Improbe(from, tag, comm, found, message, status));
}
int MPI_Finalize(void) {
  printf("met %d\\n", met);
  fflush(stdout);
  return PMPI_Finalize();
}
"""

GROUPS_AT_ONCE = """
import sys, threading
import mpi4py
mpi4py.rc(thread_level=sys.argv[1])
from mpi4py import MPI
import accdp_comm, numpy as np
try:
    groups = [accdp_comm.Communicator(timeout_s=30) for _ in range(2)]
except accdp_comm.UsageError as error:
    sys.exit(f"told: {error}")
def work(group):
    for _ in range(50):
        group.allreduce(np.ones(20_000))
threads = [threading.Thread(target=work, args=(group,)) for group in groups]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for group in groups:
    group.close()
"""


def play(level: str, **env: str) -> jobs.Result:
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", GROUPS_AT_ONCE, level]
    return jobs.run(command, env={"ACCDP_TOPOLOGY": "2x1", **env}, timeout=60.0)


def test_one_thread_at_a_time(tmp_path):
    result = play("serialized", LD_PRELOAD=str(preload.library(tmp_path, ALONE)))
    assert result.returncode == 0 and result.stdout.count("met 0") == 2, str(result)


def test_all_threads_at_once(tmp_path):
    """The counting sees it where it is allowed."""
    result = play("multiple", LD_PRELOAD=str(preload.library(tmp_path, ALONE)))
    assert result.returncode == 0 and result.stdout.count("met 1") == 2, str(result)


@pytest.mark.parametrize("level", ["single", "funneled"])
def test_a_level_that_is_too_low(level):
    result = play(level)
    assert result.returncode != 0, str(result)
    assert f"thread level {level}: expected multiple or serialized" in result.stderr, str(result)
