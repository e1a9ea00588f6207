"""Messages between nodes around the length at which they are cut into pieces. 1 to 8 ranks."""

import numpy as np
import pytest

from accdp_comm import Communicator, allreduce_compressed, bcast_compressed, settings

PIECE = 60 << 10  # csrc/mpi/mpi_wire.cpp
HEAD, RECORD, SIGNATURE = 64, 16, 64


def noise(nbytes: int, seed: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), np.uint8).copy()


def received(rank: int, root: int, nbytes: int) -> np.ndarray:
    """What this rank hands to a broadcast."""
    return noise(nbytes, root) if rank == root else np.zeros(nbytes, np.uint8)


@pytest.fixture
def world(comm, topology):
    with settings.override(topology=topology, chunk_bytes="1M"), Communicator(comm, timeout_s=60) as world:
        yield world


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("more", [-16, 0, 16])
def test_frames_of_unknown_length(world, topology, pieces, more):
    """What cannot be made smaller lies in a frame as it is, so that the frame's length is known here."""
    nbytes = pieces * PIECE - HEAD - RECORD + more
    for root in range(world.size):
        data = received(world.rank, root, nbytes).view(np.float32)
        result = bcast_compressed(data, root, group=world, codec="fpk", chunk_bytes=256 << 10)
        assert (data.view(np.uint8) == noise(nbytes, root)).all(), f"from {root}"
        if topology and world.rank == root:
            assert result.wire_bytes == pieces * PIECE + more


@pytest.mark.parametrize("nbytes", [PIECE - SIGNATURE, PIECE, (96 << 10) - 1, 96 << 10, (96 << 10) + 1])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_goes_along_with_signatures(world, nbytes, more):
    for root in range(world.size):
        data = received(world.rank, root, nbytes + more)
        world.bcast(data, root)
        assert (data == noise(nbytes + more, root)).all(), f"bcast from {root}"
        total = world.allreduce(np.full(nbytes + more, root, np.uint8), "max")
        assert (total == root).all()


def test_many_are_under_way(world):
    """Frames of reductions, which nobody completes in the order in which they were sent."""
    count = 3 << 20
    mine = np.random.default_rng(world.rank).standard_normal(count).astype(np.float32).round(3)
    wanted = world.allreduce(mine.astype(np.float64), out=np.empty(count))
    allreduce_compressed(mine, group=world, codec="fpk")
    assert np.allclose(mine, wanted, atol=1e-5)
