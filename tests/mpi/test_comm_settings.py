"""A group keeps the settings that its ranks agreed on when it was formed, whatever one of them changes later."""

from collections.abc import Callable

import numpy as np
import pytest

from accdp_comm import Communicator, _core, allreduce_compressed, bcast_compressed, settings

# Another value of each setting that ranks must share than these tests have.
OTHER = {
    "chunk_bytes": "8k",
    "flat_bytes": "2k",
    "ring_bytes": "64k",
    "eager_bytes": "4k",
    "cma": "off",
    "mpi": "on",
    "topology": "1x1",
    "bcast_algorithm": "scatter_allgather",
    "allreduce": "ring",
    "baseline": "mpi",
    "codec": "fpk",
    "codec_chunk_bytes": "4k",
    "deterministic": "on",
    "async_ops": "off",
    "gpu_path": "staged",
    "gpu_slot_bytes": "64k",
    "mpi_cuda": "on",
}
COUNT = 40_000


def test_every_shared_setting_is_tried():
    assert {row.name for row in settings.table() if row.shared} == OTHER.keys()


def bcast(world: Communicator) -> None:
    for count in (1, COUNT):
        x = np.full(count, 1.0 + world.rank, np.float32)
        world.bcast(x)
        assert (x == 1).all()


def bcast_encoded(world: Communicator) -> None:
    """One at once, and two that are queued and carried out by another thread."""
    ramps = [np.arange(COUNT, dtype=np.float32) * (world.rank == 0) for _ in range(3)]
    bcast_compressed(ramps[0], codec="fpk", group=world)
    for work in [bcast_compressed(x, codec="fpk", group=world, async_op=True) for x in ramps[1:]]:
        work.wait()
    assert all((x == np.arange(COUNT)).all() for x in ramps)


def allreduce_encoded(world: Communicator) -> None:
    x = np.ones(COUNT, np.float32)
    allreduce_compressed(x, codec="fpk", group=world)
    assert (x == world.size).all()


def others(world: Communicator) -> None:
    for count in (4, COUNT):
        x = np.ones((world.size, count // world.size), np.float32)
        assert (world.allreduce(x.copy()) == world.size).all()
        assert (world.reduce_scatter(x) == world.size).all()
        assert (world.allgather(x[0].copy()) == 1).all() and (world.alltoall(x) == 1).all()
        for op in _core.planned_ops():
            plans = world.allgather(np.frombuffer(f"{world.plan(op, count)!s:4000}".encode(), np.uint8))
            assert (plans == plans[0]).all(), op


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operate", [bcast, bcast_encoded, allreduce_encoded, others])
def test_changes_of_one_rank_change_nothing(world, operate: Callable[[Communicator], None]):
    world._group.timeout_s = 10
    with settings.override(**(OTHER if world.rank == world.size - 1 else {})):
        operate(world)
