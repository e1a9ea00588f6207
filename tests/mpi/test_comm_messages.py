"""send and recv: tags, any source, lengths from nothing to many rings, to oneself, from several threads."""

import contextlib
import threading

import numpy as np
import pytest
from cases import letter

from accdp_comm import Communicator, MismatchError, bcast_compressed, settings, waitall

# Bytes. On a node 1024 is the longest that is sent before it is asked for, between nodes that travels with its head is
# 61392.
LENGTHS = [0, 1, 100, 1024, 1025, 4096, 50_000, 61_392, 61_393, 300_000]


@pytest.mark.parametrize("length", LENGTHS)
def test_ring(world, length):
    """To the next rank, from the previous one; in pairs, since a long send waits for its receive."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    got = np.full(length, 255, np.uint8)
    receiver = threading.Thread(target=world.recv, args=(got, before, 3))
    receiver.start()
    world.send(letter(world.rank, after, length), after, 3)
    receiver.join()
    assert (got == letter(before, world.rank, length)).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [8, 200_000])
def test_beside_an_asynchronous_collective(comm, length):
    """Messages do not wait for collectives that are under way: the others may come to those only after them."""
    with Communicator(comm, timeout_s=20.0) as world:
        x, got = np.full(50_000, float(world.rank == 0)), np.empty(length, np.uint8)
        if world.rank == 0:
            work = bcast_compressed(x, group=world, async_op=True)
            for other in range(1, world.size):
                world.send(letter(0, other, length), other)
                world.recv(got, other)
                assert (got == letter(other, 0, length)).all()
        else:
            world.recv(got, 0)
            world.send(letter(world.rank, 0, length), 0)
            work = bcast_compressed(x, group=world, async_op=True)
        work.wait()
        assert (x == 1).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_to_oneself(world, length):
    got = np.empty(length, np.uint8)
    for number in range(2):
        world.send(letter(world.rank, world.rank, length, number), world.rank, number)
    for number in (1, 0):  # the second first
        assert world.recv(got, world.rank, number) == world.rank
        assert (got == letter(world.rank, world.rank, length, number)).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", LENGTHS)
def test_any_source(world, length):
    if world.rank != 0:
        world.send(letter(world.rank, 0, length), 0, 9)
        return
    sources = []
    for _ in range(1, world.size):
        got = np.empty(length, np.uint8)
        sources.append(world.recv(got, tag=9))
        assert (got == letter(sources[-1], 0, length)).all()
    assert sorted(sources) == list(range(1, world.size))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("cma", ["auto", "off"])
def test_both_ways_at_once(comm, cma):
    """Long messages are copied out of the sender's memory where that is allowed, else through the ring."""
    with settings.override(cma=cma), Communicator(comm, timeout_s=60) as world:
        assert world.why_no_single_copy == ("ACCDP_CMA=off" if cma == "off" else world.why_no_single_copy)
        for length in (1025, 50_000, (4 << 20) + 1):
            others = [rank for rank in range(world.size) if rank != world.rank]
            got = {other: np.empty(length, np.uint8) for other in others}
            threads = [threading.Thread(target=world.recv, args=(got[other], other)) for other in others]
            threads += [
                threading.Thread(target=world.send, args=(letter(world.rank, other, length), other)) for other in others
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all((got[other] == letter(other, world.rank, length)).all() for other in others)


@pytest.mark.mpi(min_size=2)
def test_tags_out_of_order(world):
    """Short messages wait for their receive, in whatever order that comes; those with one tag stay in order."""
    pairs = [(tag, number) for tag in range(5) for number in range(3)]
    others = [rank for rank in range(world.size) if rank != world.rank]
    for other in others:
        for tag, number in pairs:
            world.send(letter(world.rank, other, 64, 10 * tag + number), other, tag)
    got = np.empty(64, np.uint8)
    for tag in (3, 0, 4, 2, 1):
        for other in reversed(others):
            for number in range(3):
                assert world.recv(got, other, tag) == other
                assert (got == letter(other, world.rank, 64, 10 * tag + number)).all()


@pytest.mark.mpi(min_size=2)
def test_unasked(world):
    """More than may go ahead to another node: the rest waits until it is asked for, and all of it arrives."""
    lengths = [60_000] * 30 + [900] * 30 + [0, 300_000, 0]
    others = [rank for rank in range(world.size) if rank != world.rank]
    works = [
        world.isend(letter(world.rank, other, length, tag), other, tag)
        for other in others
        for tag, length in enumerate(lengths)
    ]
    world.barrier()
    for tag, length in reversed(list(enumerate(lengths))):
        for other in others:
            got = np.empty(length, np.uint8)
            assert world.recv(got, other, tag) == other
            assert (got == letter(other, world.rank, length, tag)).all()
    waitall(works)


@pytest.mark.mpi(min_size=2)
def test_many_threads(world):
    """All to all at once, long and short messages between the same ranks, beside collectives."""
    failures = []

    def exchange(other: int, length: int) -> None:
        got = np.empty(length, np.uint8)

        def receive() -> None:
            world.recv(got, other, length)

        receiver = threading.Thread(target=receive)
        receiver.start()
        world.send(letter(world.rank, other, length), other, length)
        receiver.join()
        if not (got == letter(other, world.rank, length)).all():
            failures.append((other, length))

    others = [rank for rank in range(world.size) if rank != world.rank]
    threads = [threading.Thread(target=exchange, args=(other, length)) for other in others for length in LENGTHS]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert (world.allreduce(np.ones(2000)) == world.size).all()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [10, 5000])
def test_wrong_length(world, length):
    """The receiver says what was sent and what it expected; the group is broken on all ranks."""
    last = world.size - 1
    said = f"sends {length} bytes, tag 4, .*which receives {length + 1}"
    if world.rank == last:
        with pytest.raises(MismatchError, match=said):
            world.recv(np.empty(length + 1, np.uint8), 0, 4)
    elif world.rank == 0:
        with contextlib.suppress(MismatchError):  # a short one is gone before anybody compares
            world.send(np.empty(length, np.uint8), last, 4)
    with pytest.raises(MismatchError, match=said):
        world.barrier()
