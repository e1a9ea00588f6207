"""Slots that are written by ordinary stores, past the caches, or as it pays: all operations of a node. 1 to 4 ranks."""

import numpy as np
import pytest
from cases import Case, plain_of
from reference import assert_same, combined

from accdp_comm import Communicator, settings

# Around what is written in one way or another, and around a chunk.
COUNTS = [1025, 4096, 16_385, 300_001]


@pytest.fixture(params=["cached", "streaming", "auto"])
def world(request, comm, topology):
    values = {"chunk_bytes": "256k", "ring_bytes": "256k", "flat_bytes": "16k", "cma": "off"}
    with settings.override(topology=topology, slot_stores=request.param, **values):
        with Communicator(comm, timeout_s=60) as world:
            yield world


def everybody(case: Case) -> list[np.ndarray]:
    return [case.plain(rank) for rank in range(case.size)]


@pytest.mark.parametrize(("datatype", "op"), [("float32", "sum"), ("bfloat16", "avg"), ("complex128", "avg")])
@pytest.mark.parametrize("count", COUNTS)
def test_reductions(world, datatype, op, count):
    case = Case(world.size, datatype, count, op)
    wanted = combined(op, everybody(case))
    x, out = case.given(world.rank), case.blank(count)
    for _ in range(3):  # auto looks at some pieces
        world.allreduce(x, op, out=out)
        assert_same(plain_of(out), wanted, f"allreduce, {case}")
    for root in range(world.size):
        mine = case.given(world.rank)
        world.reduce(mine, op, root, out)
        if world.rank == root:
            assert_same(plain_of(out), wanted, f"reduce to {root}, {case}")
        world.reduce(mine, op, root)
        if world.rank == root:
            assert_same(plain_of(mine), wanted, f"reduce to {root} in place, {case}")
    world.allreduce(x, op)
    assert_same(plain_of(x), wanted, f"allreduce in place, {case}")


@pytest.mark.parametrize("count", COUNTS)
def test_movement(world, count):
    rank, size = world.rank, world.size
    mine = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    all_ranks = [np.random.default_rng(other).standard_normal(count).astype(np.float32) for other in range(size)]
    for root in range(size):
        data = mine.copy()
        world.bcast(data, root)
        assert_same(data, all_ranks[root], f"bcast from {root}")
    assert_same(world.allgather(mine), np.stack(all_ranks), "allgather")
    gathered = world.gather(mine, root=size - 1)
    if rank == size - 1:
        assert_same(gathered, np.stack(all_ranks), "gather")
    blocks = np.stack([mine + np.float32(other) for other in range(size)])
    assert_same(world.alltoall(blocks), np.stack([x + np.float32(rank) for x in all_ranks]), "alltoall")
    part = np.empty(count, np.float32)
    world.scatter(blocks if rank == 0 else None, part)
    assert_same(part, all_ranks[0] + np.float32(rank), "scatter")
    sums = world.reduce_scatter(blocks.astype(np.float64)).reshape(-1)
    wanted = sum((x + np.float32(rank)).astype(np.float64) for x in all_ranks)
    np.testing.assert_allclose(sums, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_messages(world, count):
    if world.size == 1:
        pytest.skip("one rank has nobody to write to")
    to, back = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for turn in range(4):
        mine, came = np.arange(count, dtype=np.int32) + 1000 * world.rank + turn, np.empty(count, np.int32)
        request = world.isend(mine, to)
        world.recv(came, back)
        request.wait()
        assert_same(came, np.arange(count, dtype=np.int32) + 1000 * back + turn, f"from {back}")
