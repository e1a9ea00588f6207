"""plan() tells what happens: algorithm, lanes, chunks, steps and bytes between nodes of operations that then run."""

import re

import numpy as np
import pytest

from accdp_comm import Communicator, UsageError, _core, settings

SIZES = [0, 64, 1024, 1088, 4096, 40_000, 300_000]  # bytes; the ranks of a test have chunks of 4 KiB


def signature_bytes(op: str, nodes: int, plan) -> int:
    """What the leader of node 0, root, sends of signatures on up to eight nodes: to each, or to children in a tree."""
    by_tree = op == "bcast" and plan.algorithm == "direct" and _core.bcasts_by_tree(plan.nbytes, plan.shape)
    return _core.SIGNATURE_BYTES * ((nodes - 1).bit_length() if by_tree else nodes - 1)


def run(world, op: str, nbytes: int, dtype: type = np.float32) -> dict:
    """Do an operation on so many bytes per rank, check its result; return what it says of itself."""
    count, rank, size = nbytes // np.dtype(dtype).itemsize, world.rank, world.size
    every = (np.arange(count) + 3 * np.arange(size)[:, None]) % 8  # rank by rank: small integers, each rank's its own
    x = every[rank].astype(dtype)
    if op == "bcast":
        got, wanted = world.bcast(x), every[0]
    elif op == "allgather":
        got, wanted = world.allgather(x, np.empty(size * count, dtype)), every
    elif op == "scatter":
        got, wanted = world.scatter(every.astype(dtype) if rank == 0 else None, np.empty_like(x)), every[rank]
    else:
        got = getattr(world, op)(x)
        wanted = every if op == "gather" else every.sum(0)
        if op in ("reduce_scatter", "alltoall"):
            blocks = every.reshape(size, size, -1)  # what each rank has for each
            wanted = blocks.sum(0)[rank] if op == "reduce_scatter" else blocks[:, rank]
    if rank == 0 or op not in ("gather", "reduce"):
        assert np.array_equal(np.ravel(got), np.ravel(wanted)), f"{op} of {nbytes} bytes"
    return world._core.last_run


def sent_by_node(world, wire_bytes: int) -> int:
    """Sum over the ranks of node 0."""
    sent = world.allgather(np.array([wire_bytes]))[:, 0]
    return int(sum(count for count, node in zip(sent, world.nodes, strict=True) if node == 0))


@pytest.mark.parametrize("op", _core.planned_ops())
def test_what_ran_is_what_was_planned(world, op):
    nodes = len(set(world.nodes))
    for size in SIZES:
        nbytes = size // (4 * world.size) * 4 * world.size  # whole blocks
        plan = world.plan(op, nbytes)
        ran = run(world, op, nbytes)
        sent = sent_by_node(world, ran["wire_bytes"])
        where = f"{op} of {nbytes} bytes: ran {ran}\n{plan}"
        chosen = plan.chosen
        assert [ran[name] for name in ("algorithm", "lanes", "chunk_bytes")] == [
            chosen.algorithm,
            chosen.lanes,
            chosen.chunk_bytes,
        ], where
        # What only goes to node 0 along with signatures goes ahead: that one has nothing to tell the others.
        is_direct = op in ("reduce", "gather") and chosen.algorithm == "direct"
        goes_ahead = is_direct and (op == "gather" or _core.reduces_with_signatures(nbytes, world._core.shape))
        assert sent == chosen.wire_bytes + (0 if goes_ahead else signature_bytes(op, nodes, plan)), where
        if world.nodes[world.rank] == 0:
            assert ran["steps"] == chosen.steps, where


@pytest.mark.parametrize("op", ["allreduce", "reduce", "reduce_scatter"])
def test_reductions_in_rank_order(world, op):
    """Of several nodes there is one way, whatever else was asked for; on one node it is the usual one."""
    usual = world.plan(op, 64)
    world._core.deterministic = True
    nodes = len(set(world.nodes))
    for size in (0, 64, 192, 1024, 8192, 65_536):
        nbytes = size * world.size  # as many lines for each rank
        plan = world.plan(op, nbytes)
        ran = run(world, op, nbytes)
        sent = sent_by_node(world, ran["wire_bytes"])
        where = f"{op} of {nbytes} bytes: ran {ran}\n{plan}"
        assert (ran["algorithm"], ran["lanes"]) == (plan.algorithm, plan.chosen.lanes), where
        assert ran["chunk_bytes"] == plan.chosen.chunk_bytes, where
        if world.nodes[world.rank] == 0:
            assert ran["steps"] == plan.chosen.steps, where
        if nodes == 1:
            assert plan.algorithm != "rank_order", where
            continue
        assert sent == plan.chosen.wire_bytes + signature_bytes(op, nodes, plan), where
        assert plan.algorithm == "rank_order" and plan.seconds > 0, where
        assert {way.remark for way in plan.others} == {"sums by node first: not deterministic"}, where
    ways = {way.algorithm for way in (usual.chosen, *usual.others)}
    assert nodes == 1 or {way.algorithm for way in world.plan(op, 64).others} == ways
    assert "rank_order" not in str(world.plan("bcast", 64))


@pytest.mark.parametrize("algorithm", [name for name, _ in _core.bcast_algorithms() if name != "mpi"])
def test_a_bcast_that_the_settings_choose(comm, topology, algorithm):
    with settings.override(topology=topology, bcast_algorithm=algorithm), Communicator(comm, timeout_s=60) as world:
        nodes = len(set(world.nodes))
        if nodes > 1:
            plan = world.plan("bcast", 40_000)
            ran = run(world, "bcast", 40_000)
            assert ran["algorithm"] == plan.algorithm
            if world.nodes[world.rank] == 0:
                assert ran["steps"] == plan.chosen.steps
            sent = sent_by_node(world, ran["wire_bytes"])
            assert sent == plan.chosen.wire_bytes + signature_bytes("bcast", nodes, plan)
    if nodes == 1:  # not before the group is closed: another rank may still be forming it
        pytest.skip("one node: there is no choice")


@pytest.mark.parametrize("algorithm", ["direct", "recursive_doubling", "ring", "pipeline"])
def test_an_allreduce_that_the_settings_choose(comm, topology, algorithm):
    with settings.override(topology=topology, allreduce=algorithm), Communicator(comm, timeout_s=60) as world:
        nodes = len(set(world.nodes))
        for nbytes in (512, 4096) if nodes > 1 else ():
            plan = world.plan("allreduce", nbytes)
            ran = run(world, "allreduce", nbytes)
            assert (ran["algorithm"], plan.algorithm) == (algorithm, algorithm), plan
            assert ran["chunk_bytes"] == plan.chosen.chunk_bytes, plan
            if world.nodes[world.rank] == 0:
                assert ran["steps"] == plan.chosen.steps, plan
            remarks = {way.remark for way in plan.others if way.algorithm != algorithm}
            assert remarks == {"ACCDP_ALLREDUCE says which"}, plan
    if nodes == 1:  # not before the group is closed: another rank may still be forming it
        pytest.skip("one node: there is no choice")


@pytest.mark.parametrize("op", _core.planned_ops())
def test_the_library_s_own(comm, topology, op):
    with settings.override(topology=topology, baseline="mpi", mpi="on"), Communicator(comm, timeout_s=60) as world:
        assert run(world, op, 4 * world.size)["algorithm"] == world.plan(op, 4 * world.size).algorithm
        is_asked = world.size > 1 and op not in ("gather", "scatter")
        assert (world.plan(op, 4 * world.size).algorithm == "mpi") == is_asked


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("algorithm", ["direct", "recursive_doubling", "ring"])
def test_bytes_of_sums_between_leaders(comm, topology, algorithm, dtype):
    """Partial sums of 16-bit floats travel as float32."""
    with settings.override(topology=topology, allreduce=algorithm), Communicator(comm, timeout_s=60) as world:
        nodes = len(set(world.nodes))
        for nbytes in (0, 16, 64, 200, 1024) if nodes > 1 else ():
            plan = world.plan("allreduce", np.zeros(nbytes // np.dtype(dtype).itemsize, dtype))
            sent = sent_by_node(world, run(world, "allreduce", nbytes, dtype)["wire_bytes"])
            assert sent == plan.chosen.wire_bytes + signature_bytes("allreduce", nodes, plan), plan
    if nodes == 1:
        pytest.skip("one node: nothing travels")


def test_all_ranks_agree_on_what_was_measured(world):
    before = world.plan("allreduce", 1 << 20)
    machine = world.measure()
    names = [name for name in vars(_core.Machine) if not name.startswith("_")]
    numbers = np.array([getattr(machine, name) for name in names])
    assert np.all(numbers >= 0) and machine.node_bytes_per_s > 1e6 and len(names) == 6
    assert np.array_equal(world.allgather(numbers), np.tile(numbers, (world.size, 1)))
    after = world.plan("allreduce", 1 << 20)
    assert (before.source, after.source) == ("usual", "measured")
    ran = run(world, "allreduce", 1 << 20)
    assert (ran["algorithm"], ran["lanes"]) == (after.algorithm, after.chosen.lanes)
    if world.size > 1:
        assert after.seconds != before.seconds


def test_arguments(world):
    assert world.plan("bcast", np.zeros((3, 5), np.float64)).nbytes == 120
    assert world.plan("bcast", 10, dtype="float32").nbytes == 40
    assert world.plan("bcast", 10, dtype=[("key", "i4"), ("value", "f8")]).nbytes == 120
    with pytest.raises(UsageError, match="op=barrier: expected one of allreduce, "):
        world.plan("barrier", 4)
    with pytest.raises(UsageError, match=r"x: expected an array or a number from 0 to 2\^48, got -1"):
        world.plan("bcast", -1)
    said = f"rank {world.rank} of {world.size}: x: expected an array or a number from 0 to 2^48, got '64MiB'"
    with pytest.raises(UsageError, match=re.escape(said)):
        world.plan("bcast", "64MiB")
    for odd in ("floats", "f4,(", "1,2,("):
        with pytest.raises(UsageError, match="dtype: expected a NumPy datatype"):
            world.plan("bcast", 1, dtype=odd)
