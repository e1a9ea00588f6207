"""MPI fails a receive: the group ends with MPI's reason on the rank, and with the rank's name on the others."""

import re
import sys
from pathlib import Path

import jobs
import preload
import pytest

# Stands before the MPI library: some receives get less room than what comes for them needs, so MPI truncates. Or MPI
# fails to look for messages.
CUTTER = """
#include <mpi.h>
#include <stdlib.h>
int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  const char *longer = getenv("TEST_CUT_LONGER");
  if (longer && count > atoi(longer)) count /= 2;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Improbe(int from, int tag, MPI_Comm comm, int *found, MPI_Message *message, MPI_Status *status) {
  if (getenv("TEST_BLIND")) return MPI_ERR_OTHER;
  return PMPI_Improbe(from, tag, comm, found, message, status);
}
"""

SCRIPT = """
import os, sys
import accdp_comm, numpy as np
world, comm = (accdp_comm.Communicator(timeout_s=20) for _ in range(2))
comm.barrier()
if comm.rank == 0:
    os.environ["TEST_CUT_LONGER"] = "1000"
count = 100_000
try:
    if sys.argv[1] == "message" and comm.rank == 0:
        other = comm.irecv(np.zeros(3), 1, tag=1)  # given up with the one that fails
        comm.recv(np.zeros(count), 1)
    elif sys.argv[1] == "message":
        comm.send(np.ones(count), 0)
        comm.barrier()
    else:
        comm.allreduce(np.ones(count))
        comm.barrier()
except accdp_comm.Error as error:
    print(f"rank {comm.rank} said {type(error).__name__}: {error}", flush=True)
world.barrier()  # the launcher kills who is left when a rank has gone without MPI_Finalize
"""


@pytest.fixture(scope="module")
def cutter(tmp_path_factory) -> Path:
    return preload.library(tmp_path_factory.mktemp("cutter"), CUTTER)


@pytest.mark.parametrize("what", ["message", "allreduce"])
def test_a_receive_that_mpi_fails(cutter, what):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", SCRIPT, what]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": "2x1", "LD_PRELOAD": str(cutter)}, timeout=60.0)
    operation = {"message": "recv of 800000 bytes", "allreduce": "allreduce #2"}[what]
    said = re.search(r"rank 0 said MpiError: rank 0 of 2, group \S+: in (.*)", result.stdout)
    assert said and said[1].startswith(operation) and "truncated" in said[1].lower(), str(result)
    assert "rank 0 (pid " in result.stdout.partition("rank 1 said Error: ")[2], str(result)
    assert "Fatal error" not in result.stderr, str(result)


WAITS = """
import os, sys, threading, time
import accdp_comm, numpy as np
world, comm = (accdp_comm.Communicator(timeout_s=20) for _ in range(2))
comm.barrier()
try:
    if comm.rank == 0:
        threading.Timer(0.3, lambda: os.environ.update(TEST_BLIND="1")).start()
    else:
        time.sleep(0.8)
    if sys.argv[1] == "allreduce":
        comm.allreduce(np.ones(3))
    elif comm.rank == 0:
        comm.recv(np.zeros(3), 1, tag=5)
    comm.barrier()
except accdp_comm.Error as error:
    os.environ.pop("TEST_BLIND", None)
    print(f"rank {comm.rank} said {type(error).__name__}: {error}", flush=True)
world.barrier()
"""


@pytest.mark.parametrize("what", ["allreduce", "recv"])
def test_mpi_that_fails_in_a_wait(cutter, what):
    """Whatever looks then: the operation is named, to its caller and to the other rank, and each rank once."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", WAITS, what]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": "2x1", "LD_PRELOAD": str(cutter)}, timeout=60.0)
    operation = {"allreduce": "allreduce #2", "recv": "recv of 24 bytes, tag 5"}[what]
    own = re.search(r"rank 0 said MpiError: rank 0 of 2, group \S+: in (.*): MPI_Improbe", result.stdout)
    others = re.search(
        r"rank 1 said Error: rank 1 of 2, group \S+: rank 0 \(.*?\) failed in (.*): MPI_Improbe", result.stdout
    )
    assert own and others and own[1] == others[1] == operation, str(result)
