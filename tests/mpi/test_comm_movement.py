"""bcast, allgather, gather, scatter, alltoall: every datatype, count and root (cases.roots_of), one node and more."""

import cases
import numpy as np
import pytest
from cases import plain_of
from reference import assert_same

from accdp_comm import Communicator


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_bcast(world, datatype):
    for case in cases.movements(world.size, datatype):
        for root in cases.roots_of(world.size, datatype):
            x = case.given(root) if world.rank == root else case.blank(case.count)
            assert world.bcast(x, root) is x
            assert_same(plain_of(x), case.plain(root), f"bcast from {root}, {case}")


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_allgather(world, datatype):
    for case in cases.movements(world.size, datatype):
        x = case.given(world.rank)
        wanted = np.stack([case.plain(rank) for rank in range(world.size)])
        got = plain_of(world.allgather(x))
        assert got.shape == wanted.shape
        assert_same(got, wanted, f"allgather, {case}")
        out = case.blank(world.size * case.count)
        assert world.allgather(x, out=out) is out
        assert_same(plain_of(out), wanted, f"allgather, {case}, out")
        # A list of arrays, whose counts may differ: rank r gives count + r elements.
        x = case.given(world.rank, count=case.count + world.rank)
        blocks = [case.blank(case.count + rank) for rank in range(world.size)]
        assert world.allgather(x, out=blocks) is blocks
        for rank, block in enumerate(blocks):
            assert_same(plain_of(block), case.plain(rank, count=case.count + rank), f"allgather, block {rank}, {case}")


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_gather(world, datatype):
    for case in cases.movements(world.size, datatype):
        x = case.given(world.rank)
        wanted = np.stack([case.plain(rank) for rank in range(world.size)])
        for root in cases.roots_of(world.size, datatype):
            got = world.gather(x, root)
            out = case.blank(world.size * case.count)
            filled = world.gather(x, root, out=out)
            blocks = [case.blank(case.count) for _ in range(world.size)]
            world.gather(x, root, out=blocks)
            if world.rank != root:
                assert got is None and filled is None
                wanted_out = plain_of(case.blank(world.size * case.count))
                assert_same(plain_of(out), wanted_out, f"gather to {root}, {case}, another's out")
                continue
            assert filled is out
            assert_same(plain_of(got), wanted, f"gather to {root}, {case}")
            assert_same(plain_of(out), wanted, f"gather to {root}, {case}, out")
            for rank, block in enumerate(blocks):
                assert_same(plain_of(block), wanted[rank], f"gather to {root}, block {rank}, {case}")


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_scatter(world, datatype):
    for case in cases.movements(world.size, datatype):
        for root in cases.roots_of(world.size, datatype):
            given = [None, None]
            if world.rank == root:
                parts = [case.given(root, part) for part in range(world.size)]
                given = [parts, cases.array_of(np.concatenate([plain_of(part) for part in parts]), datatype)]
            for x in given:
                out = case.blank(case.count)
                assert world.scatter(x, out, root) is out
                assert_same(plain_of(out), case.plain(root, world.rank), f"scatter from {root}, {case}")


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_alltoall(world, datatype):
    for case in cases.movements(world.size, datatype):
        x = case.given(world.rank, count=case.count * world.size)
        mine = slice(world.rank * case.count, (world.rank + 1) * case.count)
        wanted = [case.plain(rank, count=case.count * world.size)[mine] for rank in range(world.size)]
        assert_same(plain_of(world.alltoall(x)), np.concatenate(wanted), f"alltoall, {case}")


@pytest.mark.parametrize("datatype", cases.MOVED)
def test_uneven_alltoall(world, datatype):
    """Rank r sends (r * q) % 3 * count elements to rank q: none, one or two times as many."""
    for case in cases.movements(world.size, datatype):
        sent = [world.rank * rank % 3 * case.count for rank in range(world.size)]
        parts = [case.plain(world.rank, rank, count) for rank, count in enumerate(sent)]
        x = cases.array_of(np.concatenate(parts), datatype)
        wanted = np.concatenate([case.plain(rank, world.rank, count) for rank, count in enumerate(sent)])
        got = world.alltoall(x, send_counts=sent)  # the counts to receive are told
        assert_same(plain_of(got), wanted, f"alltoall of {sent}, {case}")
        out = case.blank(sum(sent))  # and equal to those to send, since r * q is q * r
        assert world.alltoall(x, out, sent, sent) is out
        assert_same(plain_of(out), wanted, f"alltoall of {sent}, {case}, out and counts given")
        assert world.alltoall(x, x, sent, sent) is x
        assert_same(plain_of(x), wanted, f"alltoall of {sent}, {case}, in place")


def test_rows(world):
    """Counts are rows of arrays with more dimensions, and results have their shape."""
    x = np.arange(world.size * 2 * 3).reshape(world.size, 2, 3) + 1000 * world.rank
    got = world.alltoall(x)
    assert got.shape == x.shape
    for rank in range(world.size):
        assert (got[rank] == np.arange(6).reshape(2, 3) + 6 * world.rank + 1000 * rank).all()
    counts = [rank + 1 for rank in range(world.size)]
    rows = np.repeat(np.arange(world.size), counts)[:, None] + np.full((1, 4), 10 * world.rank)
    got = world.alltoall(rows, send_counts=counts)
    assert got.shape == (world.size * (world.rank + 1), 4)
    assert (got[:, 0] == np.repeat(10 * np.arange(world.size) + world.rank, world.rank + 1)).all()
    assert world.allgather(x).shape == (world.size, *x.shape)


def test_one_rank_sends_all(world):
    """All rows go from the last rank to rank 0, and nothing anywhere else."""
    last = world.size - 1
    counts = [0] * world.size
    x = np.zeros((0, 3))
    if world.rank == last:
        counts[0], x = 700, np.arange(2100.0).reshape(700, 3)
    got = world.alltoall(x, send_counts=counts)
    assert got.shape == ((700, 3) if world.rank == 0 else (0, 3))
    assert world.rank != 0 or (got == np.arange(2100.0).reshape(700, 3)).all()


@pytest.mark.mpi(min_size=2)
def test_longer_than_the_caches(comm):
    """What is longer than 4 MiB is written past the caches, where a place need not begin at a cache line."""
    count = (9 << 20) // 4 // comm.size + 3
    with Communicator(comm, timeout_s=60) as world:
        rank, size = world.rank, world.size
        room = np.zeros(size * count + 2, np.float32)
        out, part = room[1:-1], np.zeros(count + 1, np.float32)[1:]
        mine = np.arange(count, dtype=np.float32) * (rank + 1)
        every = np.concatenate([np.arange(count, dtype=np.float32) * (other + 1) for other in range(size)])
        assert_same(world.allgather(mine, out=out), every, "allgather")
        out[:] = 0
        out[rank * count :][:count] = mine
        assert_same(world.allgather(out[rank * count :][:count], out=out), every, "allgather in place")
        assert room[0] == room[-1] == 0
        for root in range(size):
            assert_same(world.scatter(every, part, root), mine, f"scatter from {root}")
            out[:] = 0
            world.gather(mine, root, out=out)
            assert_same(out, every if rank == root else np.zeros_like(every), f"gather to {root}")
        wanted = np.concatenate([every.reshape(size, count)[rank] + other for other in range(size)])
        sent = np.concatenate([every.reshape(size, count)[other] + rank for other in range(size)])
        assert_same(world.alltoall(sent, out=out), wanted, "alltoall")
        assert room[0] == room[-1] == 0


def test_allgather_of_a_part_of_its_own_result(world):
    """From another rank's place, which is written only after it was read."""
    for count in (3, 5000):
        out = np.full((world.size, count), -1, np.int64)
        mine = out[(world.rank + 1) % world.size]
        mine[:] = world.rank
        world.allgather(mine, out=out)
        assert_same(out, np.repeat(np.arange(world.size), count).reshape(out.shape), f"{count} elements")


def test_barrier(world):
    """Nobody is through before the last has come."""
    flag = np.zeros(1, np.int64)
    for late in range(world.size):
        if world.rank == late and world.size > 1:
            for other in range(world.size):
                if other != late:
                    world.send(np.array([late]), other, tag=late)
        world.barrier()
        if world.rank != late:
            # Sent before the barrier, so it is there by now.
            world.recv(flag, late, tag=late)
            assert flag[0] == late
