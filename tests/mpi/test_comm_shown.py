"""What a rank shows of its waits while they last, and that it takes them back: as `accdp ps` would see it."""

import os
import time

import numpy as np
import pytest

from accdp_comm.ps.pages import ranks_here

SECONDS = 20.0


def waits(pid: int, world) -> list:
    """What a process shows of groups in which it is rank 0 of as many."""
    groups = [group for rank in ranks_here() if rank.own_pid == pid for group in rank.groups]
    return [wait for group in groups if (group.rank, group.size) == (0, world.size) for wait in group.waits]


def see(pid: int, world, what: str) -> None:
    """Wait until rank 0 shows that it waits for the rank that looks."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = [wait for wait in waits(pid, world) if wait.what.startswith(what)]
        if found and any(peer.rank == 1 for wait in found for peer in wait.awaited):
            return
        assert time.monotonic() < deadline, waits(pid, world)
        time.sleep(0.02)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["barrier", "recv", "irecv", "polled", "any"])
def test_a_wait_is_shown_as_long_as_it_lasts(world, kind):
    pids = np.zeros(world.size, np.int64)
    world.allgather(np.array([os.getpid()]), out=pids)
    x = np.ones(10)
    if world.rank == 1:
        see(int(pids[0]), world, "barrier" if kind == "barrier" else "recv")
    if kind == "barrier":
        world.barrier()
    elif world.rank == 1:
        world.send(x, 0)
    elif world.rank == 0:
        if kind in ("recv", "any"):
            world.recv(x, -1 if kind == "any" else 1)
        else:
            work = world.irecv(x, 1)
            while kind == "polled" and not work.test():
                time.sleep(0.001)
            work.wait()
    if world.rank == 0:
        assert waits(os.getpid(), world) == []
    world.barrier()
