"""allreduce, reduce, reduce_scatter: all datatypes, operations, counts and roots (cases.roots_of), one node or more."""

import time
from concurrent.futures import ThreadPoolExecutor

import cases
import numpy as np
import pytest
from cases import plain_of
from reference import assert_same, combined


@pytest.mark.parametrize("datatype", cases.REDUCED)
def test_allreduce(world, datatype):
    for case in cases.reductions(world.size, datatype):
        wanted = combined(case.op, case.everybody())
        x, out = case.given(world.rank), case.blank(case.count)
        assert world.allreduce(x, case.op, out=out) is out
        assert_same(plain_of(out), wanted, f"allreduce, {case}, out")
        assert_same(plain_of(x), case.plain(world.rank), f"allreduce, {case}, x with out given")
        assert world.allreduce(x, case.op) is x
        assert_same(plain_of(x), wanted, f"allreduce, {case}, in place")


@pytest.mark.parametrize("datatype", cases.REDUCED)
def test_reduce(world, datatype):
    for case in cases.reductions(world.size, datatype):
        wanted = combined(case.op, case.everybody())
        for root in cases.roots_of(world.size, datatype):
            x, out = case.given(world.rank), case.blank(case.count)
            got = world.reduce(x, case.op, root, out=out)
            if world.rank == root:
                assert got is out
                assert_same(plain_of(out), wanted, f"reduce to {root}, {case}, out")
            else:
                assert got is None
                assert_same(plain_of(out), plain_of(case.blank(case.count)), f"reduce to {root}, {case}, another's out")
            assert_same(plain_of(x), case.plain(world.rank), f"reduce to {root}, {case}, x")
        got = world.reduce(x, case.op, root)
        assert got is (x if world.rank == root else None)
        same = wanted if world.rank == root else case.plain(world.rank)
        assert_same(plain_of(x), same, f"reduce to {root}, {case}, in place")


@pytest.mark.parametrize("datatype", cases.REDUCED)
def test_reduce_scatter(world, datatype):
    for case in cases.reductions(world.size, datatype):
        total = combined(case.op, case.everybody(count=case.count * world.size))
        wanted = total[world.rank * case.count : (world.rank + 1) * case.count]
        x = case.given(world.rank, count=case.count * world.size)
        assert_same(plain_of(world.reduce_scatter(x, case.op)), wanted, f"reduce_scatter, {case}")
        out = case.blank(case.count)
        assert world.reduce_scatter(x, case.op, out=out) is out
        assert_same(plain_of(out), wanted, f"reduce_scatter, {case}, out")
        # A list of blocks of any size: rank r's has count * r elements, so rank 0's has none.
        blocks = [case.given(world.rank, part, case.count * part) for part in range(world.size)]
        got = world.reduce_scatter(blocks, case.op)
        wanted = combined(case.op, case.everybody(world.rank, case.count * world.rank))
        assert_same(plain_of(got), wanted, f"reduce_scatter of a list, {case}")


@pytest.mark.mpi(min_size=2)
def test_a_list_that_changes_while_its_arrays_are_read(world):
    blocks = [np.full(1_000_000, world.rank + 1, np.float32) for _ in range(world.size)]
    out = np.empty_like(blocks[0])
    with ThreadPoolExecutor(1) as pool:
        if world.rank != 0:
            time.sleep(0.5)
        done = pool.submit(world.reduce_scatter, blocks, out=out)
        time.sleep(0.2)
        blocks.clear()
        done.result()
    assert (out == world.size * (world.size + 1) / 2).all()


def test_last_chunk_of_any_length(world):
    """Messages of one to three chunks of 4 KiB, line by line: slices of a short one lie where a full one's do."""
    for count in [*range(1024, 3072, 16), 1025, 2047, 2050]:
        x = np.arange(count, dtype=np.int32) * (world.rank + 1)
        wanted = np.arange(count, dtype=np.int32) * (world.size * (world.size + 1) // 2)
        assert_same(world.allreduce(x, out=np.zeros_like(x)), wanted, f"allreduce of {count}")
        got = world.reduce(x, root=count // 16 % world.size)
        assert got is None or (got == wanted).all()


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (0, 3), ()], ids=str)
def test_shapes(world, shape):
    """Results keep the shape of what was given."""
    x = np.full(shape, world.rank + 1.0)
    total = world.size * (world.size + 1) / 2
    got = world.allreduce(x, out=np.zeros(shape))
    assert got.shape == shape and (got == total).all()
    rows = np.full((2 * world.size, *shape), world.rank + 1.0)
    got = world.reduce_scatter(rows)
    assert got.shape == (2, *shape) and (got == total).all()


def test_nan_wins(world):
    """Whichever rank has it, and wherever in the array."""
    for holder in range(world.size):
        for op in ("min", "max"):
            x = np.arange(40.0)
            x[3 * holder + 1 :: 7] = np.nan if world.rank == holder else 1.0
            wanted = np.arange(40.0)
            wanted[3 * holder + 1 :: 7] = np.nan
            np.testing.assert_array_equal(world.allreduce(x, op), wanted)


def test_same_bits_everywhere(world):
    """Rounding may depend on the order of ranks, but not on the rank that asks."""
    for count in (10, 3000):
        x = np.random.default_rng(world.rank).standard_normal(count).astype(np.float32)
        total = world.allreduce(x, out=np.empty_like(x))
        for row in world.allgather(total.view(np.uint32)):
            assert (row == total.view(np.uint32)).all()
        again = world.allreduce(x, out=np.empty_like(x))
        assert (again.view(np.uint32) == total.view(np.uint32)).all()
