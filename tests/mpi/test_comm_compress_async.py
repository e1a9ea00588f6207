"""bcast_compressed with async_op=True over a Communicator: order, failures, time-outs, and the thread behind it."""

import threading
import time

import numpy as np
import pytest

from accdp_comm import Communicator, MismatchError, PeerTimeout, UsageError, bcast_compressed


def test_async(world):
    """Several at once; they end in the order in which they were started, and before what is called after them."""
    xs = [np.full(5000, float(step) if world.rank == 0 else -1.0) for step in range(6)]
    works = [bcast_compressed(x, group=world, codec="zstd", async_op=True) for x in xs]
    total = world.allreduce(np.ones(3000))  # waits for all before it
    assert (total == world.size).all()
    assert all(work.is_completed() for work in works)
    for step, (x, work) in enumerate(zip(xs, works, strict=True)):
        result = work.wait()
        assert (x == step).all() and result.logical_bytes == x.nbytes
        assert work.wait(5.0) == result  # as often as one likes
    later = bcast_compressed(xs[0], world.size - 1, group=world, async_op=True)
    assert later.wait(30).logical_bytes == xs[0].nbytes and later.is_completed()


def test_a_closed_communicator_has_no_thread(comm):
    before = threading.active_count()
    closed = []
    for _ in range(3):
        with Communicator(comm, timeout_s=60) as world:
            bcast_compressed(np.ones(3000), group=world, async_op=True).wait()
        with pytest.raises(UsageError, match="is closed on this rank"):
            bcast_compressed(np.ones(3000), group=world, async_op=True).wait(10)
        with pytest.raises(UsageError, match="is closed on this rank"):
            world.barrier()
        closed.append(world)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_async_tensors_may_be_forgotten(world):
    """The operation keeps what it writes to."""
    works = [
        bcast_compressed(np.full(50_000, 1.0), group=world, codec="zstd", reference=np.zeros(50_000), async_op=True)
        for _ in range(5)
    ]
    assert all(work.wait().logical_bytes == 400_000 for work in works)


@pytest.mark.mpi(min_size=2)
def test_async_failure_is_told_by_wait(world):
    x = np.ones(30_000 + (world.rank == 0))  # the root of a short one may be done before it can fail
    work = bcast_compressed(x, group=world, async_op=True)
    with pytest.raises(MismatchError, match="rank 0 "):
        work.wait()
    assert work.is_completed()


@pytest.mark.mpi(min_size=2)
def test_async_time_out_is_told_by_wait(comm):
    """The operation's own time-out, and that of a wait, after which the operation still goes on."""
    with Communicator(comm, timeout_s=60) as world:
        if world.rank == 0:
            work = bcast_compressed(np.ones(3000), group=world, async_op=True)
            for limit in (0, 0.01):
                with pytest.raises(PeerTimeout, match=f"rank 0 of .* not ended within {limit} s .*still under way"):
                    work.wait(limit)
        comm.Barrier()
        if world.rank == 0:
            work.wait()
        else:
            bcast_compressed(np.ones(3000), group=world)
    with Communicator(comm, timeout_s=60) as world:
        if world.rank == 0:
            world._core.timeout_s = 1.0
            work = bcast_compressed(np.ones(3000), group=world, async_op=True)
            with pytest.raises(PeerTimeout, match=r"bcast_compressed #1 Timed out after 1 s .* rank 1 "):
                work.wait(float("inf"))
        comm.Barrier()
