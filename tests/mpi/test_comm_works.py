"""isend and irecv: windows both ways, order, progress beside other calls, dropped works, wrong use, ranks that go."""

import contextlib
import gc
import time

import numpy as np
import pytest
from cases import letter

import accdp_comm
from accdp_comm import Communicator, MismatchError, PeerDied, PeerTimeout, UsageError, _core, waitall

LENGTHS = [0, 1, 1024, 1025, 50_000, (1 << 20) + 1]  # bytes; on a node 1024 is the longest that is not asked for


@pytest.mark.parametrize("length", LENGTHS)
def test_windows_both_ways(world, length):
    """Everybody to everybody, themselves too: more than one ring holds, sends first on some ranks."""
    window = 8
    everybody = range(world.size)
    got = {(other, n): np.full(length, 255, np.uint8) for other in everybody for n in range(window)}
    sent = {(other, n): letter(world.rank, other, length, n) for other in everybody for n in range(window)}

    def receives():
        return [world.irecv(x, other) for (other, _), x in got.items()]

    def sends():
        return [world.isend(x, other) for (other, _), x in sent.items()]

    works = receives() + sends() if world.rank % 2 else (sends() + receives())[::-1]
    results = waitall(works)
    assert sorted(r for r in results if r is not None) == sorted(list(everybody) * window)
    for (other, n), x in got.items():
        assert (x == letter(other, world.rank, length, n)).all(), (other, n)
    assert all(work.test() and work.is_completed() for work in works)


@pytest.mark.mpi(min_size=2)
def test_order_of_matching(world):
    """Short and long ones of one tag, blocking and not, match in the order in which they were begun."""
    lengths = [10, 3000, 20, 100_000, 30, 1025]
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    got = [np.empty(length, np.uint8) for length in lengths]
    works = [world.irecv(x, before if n % 2 else -1, 4) for n, x in enumerate(got)]
    works += [world.isend(letter(world.rank, after, length, n), after, 4) for n, length in enumerate(lengths)]
    last = np.empty(40, np.uint8)
    works.append(world.irecv(last, before, 4))
    world.send(letter(world.rank, after, 40), after, 4)
    assert waitall(works)[: len(lengths)] == [before] * len(lengths)
    for n, x in enumerate(got):
        assert (x == letter(before, world.rank, len(x), n)).all(), n
    assert (last == letter(before, world.rank, 40)).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [100, 50_000])
def test_progress_beside_collectives(world, length):
    """Messages end while their ranks are in collectives, and while they do nothing at all."""
    other = world.size - 1 - world.rank
    if other == world.rank:
        other = 0 if world.size == 1 else world.rank
    got = np.empty(length, np.uint8)
    works = [world.irecv(got, other), world.isend(letter(world.rank, other, length), other)]
    for _ in range(5):
        assert (world.allreduce(np.ones(2000)) == world.size).all()
    end = time.monotonic() + 20
    while not all(work.test() for work in works):
        assert time.monotonic() < end
    assert (got == letter(other, world.rank, length)).all()


@pytest.mark.mpi(min_size=2)
def test_dropped_works(world):
    """Nobody holds the works or the array that is sent: the messages arrive all the same."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    got = np.zeros(300_000, np.uint8)
    world.irecv(got, before, 1)
    world.isend(letter(world.rank, after, len(got)), after, 1)
    world.isend(letter(world.rank, after, 77), after, 2)
    gc.collect()
    small = np.zeros(77, np.uint8)
    world.recv(small, before, 2)
    end = time.monotonic() + 20
    while not (got == letter(before, world.rank, len(got))).all():
        assert time.monotonic() < end
        time.sleep(0.001)
    assert (small == letter(before, world.rank, 77)).all()


def test_a_delivery_that_fails_is_not_forgotten(world):
    """A receive for a device has come when its host copy is there; if that cannot be copied, every wait() tells it."""
    after, before, calls = (world.rank + 1) % world.size, (world.rank - 1) % world.size, []

    def deliver():
        calls.append(None)
        if len(calls) < 3:
            raise ZeroDivisionError

    got = np.zeros(9, np.uint8)
    work = world._core.irecv(got.ctypes.data, got.size, _core.Datatype.u8, before, 1, got, deliver)
    world.isend(np.ones(9, np.uint8), after, 1).wait()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            work.wait()
    assert [work.wait(), work.wait()] == [before, before] and len(calls) == 3 and (got == 1).all()


@pytest.mark.mpi(min_size=2)
def test_close_waits_for_sends(comm, topology):
    """A send that was dropped just before close() is not lost."""
    with accdp_comm.settings.override(topology=topology), Communicator(comm, timeout_s=60) as world:
        after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        got = np.zeros(100_000, np.uint8)
        if world.rank % 2:
            world.isend(letter(world.rank, after, len(got)), after)
        work = world.irecv(got, before) if before % 2 else None
        if work is not None:
            assert work.wait() == before
            assert (got == letter(before, world.rank, len(got))).all()


def test_close_refuses_open_receives(comm):
    world = Communicator(comm, timeout_s=60)
    work = world.irecv(np.zeros(3, np.float32), 0, 7)
    world.barrier()
    said = "closed with open receives: expected wait.. for each before, got recv of 12 bytes, tag 7 from rank 0"
    with pytest.raises(UsageError, match=said):
        world.close()
    with pytest.raises(UsageError, match=said):
        work.wait()
    with pytest.raises(UsageError, match=said):
        waitall([work])
    world.close()


@pytest.mark.mpi(min_size=2)
def test_limit_of_a_wait(world):
    """wait(timeout_s) gives up on the wait only."""
    other = (world.rank + 1) % world.size
    got = np.zeros(9, np.uint8)
    work = world.irecv(got, (world.rank - 1) % world.size, 3)
    with pytest.raises(PeerTimeout, match=rf"rank {world.rank} of .*recv of 9 bytes, tag 3 is not done after 0.05 s"):
        work.wait(0.05)
    assert not work.test() and not work.is_completed()
    with pytest.raises(PeerTimeout, match="nor are 1 others"):
        waitall([work, world.irecv(np.zeros(9, np.uint8), (world.rank - 1) % world.size, 3)], 0.01)
    world.barrier()
    for number in range(2):
        world.isend(letter(world.rank, other, 9, number), other, 3)
    assert work.wait(30) == (world.rank - 1) % world.size
    assert (got == letter((world.rank - 1) % world.size, world.rank, 9)).all()
    world.barrier()


@pytest.mark.mpi(min_size=2)
def test_nobody_answers(comm):
    """The communicator's own time-out, counted from wait() on, ends the receive; the communicator goes on."""
    with Communicator(comm, timeout_s=60) as world:
        world._core.timeout_s = 0.2  # only now: to form the group may take longer
        work = world.irecv(np.zeros(9, np.uint8), (world.rank + 1) % world.size, 3)
        with pytest.raises(PeerTimeout, match=r"recv of 9 bytes, tag 3 Timed out after 0.2 s .*waiting for rank"):
            work.wait()
        comm.Barrier()
        world._core.timeout_s = 60
        world.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [10, 5000, 300_000])
def test_wrong_length(world, length):
    last = world.size - 1
    said = f"sends {length} bytes, tag 4, .*which receives {length - 1}"
    if world.rank == last:
        work = world.irecv(np.empty(length - 1, np.uint8), 0, 4)
        with pytest.raises(MismatchError, match=said):
            work.wait()
    elif world.rank == 0:
        work = world.isend(np.empty(length, np.uint8), last, 4)
        # A short one is gone before anybody compares; short are 1 KiB on a node, 256 KiB to another one.
        is_asked_for = length > 256 << 10
        with pytest.raises(MismatchError, match=said) if is_asked_for else contextlib.suppress(MismatchError):
            work.wait()
    with pytest.raises(MismatchError, match=said):
        world.barrier()


@pytest.mark.mpi(min_size=2)
def test_rank_that_leaves(comm, topology):
    """An open receive names the rank that went, whether its caller waits or, every other one, only ever looks."""
    with accdp_comm.settings.override(topology=topology):
        world = Communicator(comm, timeout_s=60)
    last = world.size - 1
    if world.rank != last:
        with pytest.raises(PeerDied, match=rf"rank {last} .*left the group during recv of 9 bytes, tag 3"):
            work = world.irecv(np.zeros(9, np.uint8), last, 3)  # it may have gone already
            while not (work.test() if world.rank % 2 else work.wait()):
                pass
    world.close()


def test_wrong_arguments(world):
    array = np.zeros(3)
    start = f"rank {world.rank} of {world.size}: "
    ranks = f"expected a rank from 0 to {world.size - 1}"
    with pytest.raises(UsageError, match=f"{start}dst: {ranks}, got {world.size}"):
        world.isend(array, world.size)
    with pytest.raises(UsageError, match=f"{start}src: {ranks}, or -1 for any, got -2"):
        world.irecv(array, -2)
    with pytest.raises(UsageError, match=f"{start}tag: expected a number from 0 to 2147483647, got -1"):
        world.isend(array, 0, -1)
    with pytest.raises(UsageError, match=start):
        world.irecv(np.zeros((4, 4))[:, 1], 0)
    with pytest.raises(UsageError, match="timeout_s: expected seconds >= 0 or None, got -1"):
        waitall([], -1)
    assert waitall([]) == []
