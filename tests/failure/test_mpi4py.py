"""A rank that raises in a job in which mpi4py initialised MPI, and would wait for the others in MPI_Finalize."""

import sys

import jobs
import pytest

pytest.importorskip("mpi4py")

RAISES = """
from mpi4py import MPI
import signal
import accdp_comm
comm = accdp_comm.Communicator({argument})
comm.barrier()
if comm.rank == 1:
    raise ValueError("rank 1 has had enough")
signal.pause()  # computes for hours
"""


@pytest.mark.parametrize("argument", ["", "MPI.COMM_WORLD"])
def test_an_exception_ends_the_job(argument):
    command = [*jobs.mpiexec_command(3), sys.executable, "-c", RAISES.format(argument=argument)]
    result = jobs.run(command, timeout=60.0)
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "ValueError: rank 1 has had enough" in result.stderr, str(result)
