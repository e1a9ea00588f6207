"""MPI fails a receive: the group ends with MPI's reason on the rank, and with the rank's name on the others."""

import re
import sys
from pathlib import Path

import jobs
import preload
import pytest

# Stands before the MPI library: some receives get less room than what comes for them needs, so MPI truncates.
CUTTER = """
#include <mpi.h>
#include <stdlib.h>
int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  const char *longer = getenv("TEST_CUT_LONGER");
  if (longer && count > atoi(longer)) count /= 2;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
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
