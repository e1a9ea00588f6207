"""What is written may lie on what is read, in place or anywhere else: results are those of separate memory."""

import numpy as np
import pytest

COUNTS = (3, 5000)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shift", ["in place", "by one", "by half", "by a block"])
def test_overlapping_input_and_result(world, count, shift):
    size, rank, root = world.size, world.rank, world.size - 1
    at = {"in place": 0, "by one": 1, "by half": count // 2 + 1, "by a block": count}[shift]
    every = [(np.arange(2 * count * size + 2) % 13 + other).astype(np.float32) for other in range(size)]

    def memory():
        """This rank's numbers: all blocks, and a stretch that begins ``at`` elements after them."""
        x = every[rank].copy()
        return x[: count * size], x[at:]

    whole, part = memory()
    world.reduce_scatter(whole, out=part[:count])
    np.testing.assert_array_equal(part[:count], sum(every)[rank * count :][:count])
    whole, part = memory()
    world.allgather(part[:count], whole)
    np.testing.assert_array_equal(whole, np.concatenate([x[at:][:count] for x in every]))
    whole, part = memory()
    world.gather(part[:count], root, whole)
    if rank == root:
        np.testing.assert_array_equal(whole, np.concatenate([x[at:][:count] for x in every]))
    whole, part = memory()
    world.scatter(whole, part[:count], root)
    np.testing.assert_array_equal(part[:count], every[root][rank * count :][:count])
    whole, part = memory()
    world.alltoall(whole, part[: count * size])
    np.testing.assert_array_equal(part[: count * size], np.concatenate([x[rank * count :][:count] for x in every]))
    for into_whole in (False, True):
        whole, part = memory()
        x, out = (part[:count], whole[:count]) if into_whole else (whole[:count], part[:count])
        expected = sum(x[at:][:count] if into_whole else x[:count] for x in every)
        world.allreduce(x, out=out)
        np.testing.assert_array_equal(out, expected)
        whole, part = memory()
        x, out = (part[:count], whole[:count]) if into_whole else (whole[:count], part[:count])
        world.reduce(x, root=root, out=out)
        if rank == root:
            np.testing.assert_array_equal(out, expected)


def test_alltoall_in_place_in_many_steps(world):
    """What comes in one step lies where what goes in the same step was read."""
    count = 700_001
    x = (np.arange(count * world.size) % 131 + world.rank).astype(np.float32)
    world.alltoall(x, x)
    mine = (np.arange(world.rank * count, (world.rank + 1) * count) % 131).astype(np.float32)
    for rank, block in enumerate(x.reshape(world.size, count)):
        np.testing.assert_array_equal(block, mine + rank)
