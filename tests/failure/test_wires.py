"""MPI's communicators under our groups: given back when all ranks have left, kept where something may still come."""

import sys

import jobs

# MPICH has some 2000 of them, so that a job which keeps one of each group ends after as many.
MANY = """
import accdp_comm, numpy as np
from accdp_comm import _mpi
for number in range(60):
    with accdp_comm.Communicator() as comm:
        if number % 20 == 0:
            total = comm.allreduce(np.full(3, comm.rank + 1.0))
            assert total.tolist() == [comm.size * (comm.size + 1) / 2] * 3, total
    del comm
last = accdp_comm.Communicator()
last.barrier()
print(f"held {_mpi.held_wires()}\\n", end="", flush=True)  # one write: ranks share a pipe
"""

# Ranks leave whenever they are ready, and a message to some of them is never asked for.
LATE = """
import accdp_comm, numpy as np
from accdp_comm import _mpi
world = accdp_comm.Communicator()
for number in range(20):
    comm = accdp_comm.Communicator()
    if comm.rank == 2:
        comm.send(np.full(3, number), number % 2, tag=7)  # nobody receives it
    comm.close()
    del comm
    if number % 5 == 0:
        world.barrier()
world.barrier()
last = accdp_comm.Communicator()
last.barrier()
print(f"held {_mpi.held_wires()}\\n", end="", flush=True)  # one write: ranks share a pipe
"""

BROKEN = """
import accdp_comm, numpy as np
from accdp_comm import _mpi
comm = accdp_comm.Communicator()
try:
    comm.allreduce(np.zeros(3 + comm.rank % 2))
except accdp_comm.MismatchError:
    print("mismatch\\n", end="", flush=True)
comm.close()
del comm
again = accdp_comm.Communicator()
again.barrier()
print(f"held {_mpi.held_wires()}\\n", end="", flush=True)  # one write: ranks share a pipe
"""

MISSING = """
from accdp_comm import mpi_world
rank, _ = mpi_world.enter_launched(30.0)
if rank == 0:
    mpi_world.make_wire([0, 1], "alone", 1.0)
else:
    mpi_world.load().allgather(b"", 30.0)  # waits for rank 0, which never comes here
"""


def play(script: str, size: int, topology: str) -> jobs.Result:
    command = [*jobs.mpiexec_command(size), sys.executable, "-c", script]
    return jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=90.0)


def held(result: jobs.Result) -> list[int]:
    words = result.stdout.split()
    return [int(word) for before, word in zip(words, words[1:], strict=False) if before == "held"]


def test_groups_that_are_made_and_closed_give_theirs_back():
    result = play(MANY, 2, "2x1")
    assert result.returncode == 0 and len(held(result)) == 2, str(result)
    assert max(held(result)) <= 5, str(result)  # the last, and some whose farewells are on their way


def test_ranks_that_leave_at_different_times():
    result = play(LATE, 4, "2x2")
    assert result.returncode == 0 and len(held(result)) == 4, str(result)
    assert max(held(result)) <= 8, str(result)


def test_a_group_that_failed_keeps_its_own():
    result = play(BROKEN, 2, "2x1")
    assert result.stdout.count("mismatch") == 2 and held(result) == [2, 2], str(result)
    assert result.returncode == 0, str(result)


def test_a_rank_that_does_not_come_to_make_a_wire():
    result = play(MISSING, 2, "2x1")
    assert result.returncode != 0 and result.seconds < 15, str(result)
    assert "MPI_Comm_create_group in process" in result.stderr and "within 1 s" in result.stderr, str(result)
