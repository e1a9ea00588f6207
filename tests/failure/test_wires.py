"""MPI's communicators under our groups, and what else these hold: given back when all ranks have left."""

import sys

import jobs
import pytest

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
print("held", _mpi.held_wires())
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
print("held", _mpi.held_wires())
"""

# Groups over two nodes that fail, by all that leaves the ranks alive, and are destroyed; what the process then holds.
FAILING = """
import os
import accdp_comm, numpy as np
from accdp_comm import _mpi
world = accdp_comm.Communicator()

def held():
    with open("/proc/self/maps") as file:
        segments = sum("memfd:accdp" in line for line in file)
    return _mpi.held_wires(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), segments

def fail(comm, number):
    mine = comm.rank == number % comm.size
    if number % 4 == 0:
        comm.allreduce(np.zeros(3 + mine))
    elif number % 4 == 1:
        comm.barrier() if mine else comm.bcast(np.zeros(4))
    elif number % 4 == 2 and mine:
        raise accdp_comm.Error("of this rank alone")
    elif number % 4 == 2:
        comm.recv(np.zeros(70000), (comm.rank + 1) % comm.size)
    elif mine:
        return  # the other is left alone
    comm.allreduce(np.zeros(70000))

failed = 0
for number in range(28):
    if number == 12:
        world.barrier()
        before = held()
    try:
        with accdp_comm.Communicator() as comm:
            fail(comm, number)
    except accdp_comm.Error:
        failed += 1
    del comm
world.barrier()
accdp_comm.Communicator().close()
print("failed", failed, "grew", *(now - then for now, then in zip(held(), before)))
"""

# One rank leaves a message of so many bytes that nobody receives, and leaves the group after the other.
LEFT = """
import sys, time
import accdp_comm, numpy as np
from accdp_comm import _mpi
world, comm = accdp_comm.Communicator(), accdp_comm.Communicator()
if comm.rank == 1:
    comm.send(np.zeros(int(sys.argv[1]), np.uint8), 0, tag=7)
    world.barrier()
    world.barrier()
    comm.close()
else:
    world.barrier()
    time.sleep(0.2)
    comm.close()
    del comm
    print("held", _mpi.held_wires(), flush=True)
    world.barrier()
world.barrier()
last = accdp_comm.Communicator()  # what can be given back is, when another is made
if world.rank == 0:
    print("held", _mpi.held_wires(), flush=True)
world.barrier()
"""

# Groups that are not formed, after all, by MPI's own exchange.
EXCHANGES = """
import accdp_comm
from accdp_comm import _mpi
world = accdp_comm.Communicator()
for number in range(2500):
    assert _mpi.Exchange().allgather(b"%d" % number, 20.0) == [b"%d" % number] * 2
print("done", flush=True)
"""

MISSING = """
from accdp_comm import mpi_world
rank, _ = mpi_world.enter_launched(30.0)
if rank == 0:
    mpi_world.make_wire([0, 1], "alone", 1.0)
else:
    mpi_world.load().Exchange().allgather(b"", 30.0)  # waits for rank 0, which never comes here
"""


def play(script: str, size: int, topology: str, *words: str) -> jobs.Result:
    command = [*jobs.mpiexec_command(size), sys.executable, "-c", script, *words]
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


@pytest.mark.parametrize("topology", ["2x1", "1x2"])
def test_groups_that_fail_give_all_back(topology):
    result = play(FAILING, 2, topology)
    rows = [line.split() for line in result.stdout.splitlines() if "grew" in line]
    assert sorted(row[1] for row in rows) == ["21", "28"], str(result)  # one rank always leaves, in the last way
    for wires, files, threads, segments in [[int(word) for word in row[3:]] for row in rows]:
        # What one way to fail leaves would be 4 of it. Farewells may be on their way; MPI may begin a thread.
        assert max(wires, files, threads, segments) <= 3, str(result)


@pytest.mark.parametrize(("nbytes", "stays"), [(8, 0), (5000, 1)])
def test_what_a_rank_has_sent_is_read_before_its_group_s_is_given_back(nbytes, stays):
    """Where it is too long to be read, never: MPI would fetch it, out of memory that its sender may have given up."""
    if stays and jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("a send of so many bytes waits for its receiver with Open MPI")
    result = play(LEFT, 2, "2x1", str(nbytes))
    assert result.returncode == 0 and len(held(result)) == 2, str(result)
    assert held(result) == [2, 2 + stays], str(result)


def test_exchanges_keep_no_communicator():
    result = play(EXCHANGES, 2, "")
    assert result.returncode == 0 and result.stdout.count("done") == 2, str(result)


def test_a_rank_that_does_not_come_to_make_a_wire():
    result = play(MISSING, 2, "2x1")
    assert result.returncode != 0 and result.seconds < 25, str(result)
    assert "MPI_Comm_create_group in process" in result.stderr and "within 1 s" in result.stderr, str(result)
