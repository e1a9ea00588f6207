"""Every way of an allreduce between nodes, the MPI library's own collectives, and blocks over nodes: 1 to 8 ranks.

A group serves many calls, because forming one costs more than they do.
"""

import itertools
import re
from pathlib import Path

import cases
import numpy as np
import pytest
from cases import Case, plain_of
from reference import assert_same, combined

from accdp_comm import Communicator, MismatchError, UsageError, _core, bcast_compressed, settings

ROWS = [name for name, _ in _core.reduce_algorithms()]
# One of each kind of arithmetic; what differs between ways is how bytes are cut and in which order they meet.
DATATYPES = ["bool", "int16", "uint64", "float16", "bfloat16", "float32", "complex128"]
WIDE_DATATYPES = ["int16", "float16", "float64"]  # of more ranks than there are cores for
SHORT_FLOATS = ("float16", "bfloat16")


def formed(comm, topology: str, **values: str) -> Communicator:
    with settings.override(topology=topology, **values):
        return Communicator(comm, timeout_s=60)


def skip_on_one_node(topology: str, algorithm: str) -> None:
    if not topology and algorithm != "auto":
        pytest.skip("one node has nothing between nodes")


def check_allreduce(world: Communicator, case: Case) -> None:
    wanted = combined(case.op, case.everybody())
    x, out = case.given(world.rank), case.blank(case.count)
    world.allreduce(x, case.op, out=out)
    assert_same(plain_of(out), wanted, f"allreduce, {case}, out")
    assert_same(plain_of(x), case.plain(world.rank), f"allreduce, {case}, x with out given")
    world.allreduce(x, case.op)
    assert_same(plain_of(x), wanted, f"allreduce, {case}, in place")


@pytest.mark.parametrize("algorithm", ROWS)
def test_allreduce(comm, topology, algorithm):
    skip_on_one_node(topology, algorithm)
    with formed(comm, topology, allreduce=algorithm) as world:
        for datatype in DATATYPES if world.size <= 4 else WIDE_DATATYPES:
            for case in cases.reductions(world.size, datatype):
                if world.size > 4 and (case.op not in ("sum", "avg") or case.count == 0):
                    continue
                if algorithm == "mpi" and datatype in SHORT_FLOATS:
                    with pytest.raises(UsageError, match=f"expected another datatype than {datatype}"):
                        world.allreduce(case.given(world.rank), case.op)
                else:
                    check_allreduce(world, case)


@pytest.mark.parametrize("algorithm", ROWS)
def test_same_bits_everywhere(comm, topology, algorithm):
    """Sums that are rounded, around the sizes at which messages are cut; twice the same on every rank."""
    skip_on_one_node(topology, algorithm)
    with formed(comm, topology, allreduce=algorithm) as world:
        for count in (1, 17, 1025, 40_000):
            x = np.random.default_rng(world.rank).standard_normal(count).astype(np.float32)
            total = world.allreduce(x, "avg", out=np.empty_like(x))
            rows = world.allgather(total.view(np.uint32))
            assert (rows == rows[0]).all(), f"{algorithm}, {count}"
            np.testing.assert_allclose(total, world.allreduce(x.astype(np.float64), "avg"), atol=1e-5)
            again = world.allreduce(x, "avg", out=np.empty_like(x))
            assert (again.view(np.uint32) == total.view(np.uint32)).all()


@pytest.mark.parametrize("algorithm", [name for name, _ in _core.bcast_algorithms()])
def test_bcast(comm, topology, algorithm):
    """As it is and compressed, a frame or many; test_comm_compress.py has every root of up to 4 ranks."""
    skip_on_one_node(topology, algorithm)
    with settings.override(bcast_algorithm=algorithm), formed(comm, topology) as world:  # read at each call
        for count, root in itertools.product((1, 12_001), {0, world.size // 2}):
            case = Case(world.size, "float32", count, "sum")
            for codec in ("as it is", "fpk"):
                x = case.given(root) if world.rank == root else case.blank(count)
                if codec == "as it is":
                    world.bcast(x, root)
                else:
                    way = bcast_compressed(x, root, group=world, codec=codec).algorithm
                    assert way == algorithm or algorithm == "auto" or not topology, (way, algorithm)
                assert_same(plain_of(x), case.plain(root), f"{algorithm}, {codec}, {count} from {root}")


@pytest.mark.mpi(min_size=2)
def test_no_mpi(comm):
    """Where a group has no way to MPI the row says so, and nothing was sent."""
    with formed(comm, "", allreduce="mpi") as world:
        with pytest.raises(UsageError, match="expected a group that has MPI"):
            world.allreduce(np.ones(3))
        assert (world.allgather(np.array([world.rank])).ravel() == np.arange(world.size)).all()


@pytest.mark.parametrize("operation", ["allreduce", "reduce", "reduce_scatter", "allgather", "alltoall", "bcast"])
def test_baselines(comm, topology, operation):
    """The MPI library's own collectives give what ours give; it does not ask which ranks share a node."""
    with formed(comm, topology, baseline="mpi", mpi="on") as world:
        for datatype in ("float64",) if topology or comm.size > 4 else ("bool", "int32", "float64", "complex64"):
            for count in (0, 1, 1500):
                case = Case(world.size, datatype, count, "prod" if datatype == "bool" else "avg")
                BASELINES[operation](world, case)
        case = Case(world.size, "float16", 5, "sum")
        if world.size > 1 and operation in ("allreduce", "reduce", "reduce_scatter"):
            with pytest.raises(UsageError, match=f"{operation} by the MPI library: expected another datatype"):
                BASELINES[operation](world, case)
        else:
            BASELINES[operation](world, case)


@pytest.mark.mpi(min_size=2)
def test_a_baseline_of_an_empty_part(comm):
    """It begins where the contributions do; MPI takes no buffer twice, however short."""
    with formed(comm, "", baseline="mpi", mpi="on") as world:
        x = np.arange(4.0)
        blocks = [x[0:0]] * (world.size - 1) + [x]
        out = np.zeros(4) if world.rank == world.size - 1 else x[0:0]
        world.reduce_scatter(blocks, "sum", out=out)
        assert (out == np.arange(4.0)[: out.size] * world.size).all()


def check_reduce(world: Communicator, case: Case) -> None:
    for root in range(world.size):
        x, out = case.given(world.rank), case.blank(case.count)
        world.reduce(x, case.op, root, out=out)
        wanted = combined(case.op, case.everybody()) if world.rank == root else plain_of(case.blank(case.count))
        assert_same(plain_of(out), wanted, f"reduce to {root}, {case}")
        world.reduce(x, case.op, root)
        wanted = wanted if world.rank == root else case.plain(world.rank)
        assert_same(plain_of(x), wanted, f"reduce to {root}, {case}, in place")


def check_reduce_scatter(world: Communicator, case: Case) -> None:
    count = case.count * world.size
    total = combined(case.op, case.everybody(count=count))
    mine = slice(world.rank * case.count, (world.rank + 1) * case.count)
    x = case.given(world.rank, count=count)
    assert_same(plain_of(world.reduce_scatter(x, case.op)), total[mine], f"reduce_scatter, {case}")
    if isinstance(x, np.ndarray):
        world.reduce_scatter(x, case.op, out=x[mine])
        assert_same(x[mine], total[mine], f"reduce_scatter in place, {case}")
    parts = [case.given(world.rank, part, case.count * (part % 3)) for part in range(world.size)]
    wanted = combined(case.op, case.everybody(world.rank, case.count * (world.rank % 3)))
    assert_same(plain_of(world.reduce_scatter(parts, case.op)), wanted, f"reduce_scatter of a list, {case}")


def check_allgather(world: Communicator, case: Case) -> None:
    rows = np.stack(case.everybody())
    assert_same(plain_of(world.allgather(case.given(world.rank))), rows, f"allgather, {case}")
    counts = [case.count * (rank % 3) for rank in range(world.size)]
    blocks = [case.blank(count) for count in counts]
    world.allgather(case.given(world.rank, count=counts[world.rank]), out=blocks)
    for rank, block in enumerate(blocks):
        assert_same(plain_of(block), case.plain(rank, count=counts[rank]), f"allgather, block {rank}, {case}")
    # In place: a rank's block stands where it belongs.
    whole = case.blank(world.size * case.count)
    if isinstance(whole, np.ndarray):
        own = whole[world.rank * case.count : (world.rank + 1) * case.count]
        own[:] = case.plain(world.rank)
        world.allgather(own, out=whole)
        assert_same(whole, rows.reshape(-1), f"allgather in place, {case}")


def check_alltoall(world: Communicator, case: Case) -> None:
    sent = [(world.rank + rank) % 3 * case.count for rank in range(world.size)]
    x = np.concatenate([case.plain(world.rank, rank, count) for rank, count in enumerate(sent)])
    wanted = np.concatenate([case.plain(rank, world.rank, count) for rank, count in enumerate(sent)])
    got = world.alltoall(cases.array_of(x, case.datatype), send_counts=sent)
    assert_same(plain_of(got), wanted, f"alltoall, {case}")


def check_bcast(world: Communicator, case: Case) -> None:
    for root in range(world.size):
        x = case.given(root) if world.rank == root else case.blank(case.count)
        assert_same(plain_of(world.bcast(x, root)), case.plain(root), f"bcast from {root}, {case}")


BASELINES = {
    "allreduce": check_allreduce,
    "reduce": check_reduce,
    "reduce_scatter": check_reduce_scatter,
    "allgather": check_allgather,
    "alltoall": check_alltoall,
    "bcast": check_bcast,
}


@pytest.mark.parametrize("datatype", ["float16", "int64"])
def test_blocks(comm, topology, datatype):
    """Blocks of one size and of several, around a slot and of many segments, with one lane and with several."""
    with formed(comm, topology) as world:
        for count, op in itertools.product((0, 1, 200, 3001), ("sum", "avg")):
            case = Case(world.size, datatype, count, op)
            check_reduce_scatter(world, case)
            check_allgather(world, case)


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operation", ["allreduce", "reduce_scatter", "allgather"])
def test_memory_is_bounded(comm, topology, operation):
    """At any size a call takes less than 64 MiB: here 80 MiB between all ranks, in the sizes that users have."""
    if comm.size > 4 or not topology:
        pytest.skip("up to 4 ranks on several nodes show it, more take long")
    sizes = {"chunk_bytes": "1M", "flat_bytes": "16k", "ring_bytes": "256k", "eager_bytes": "8k"}
    with formed(comm, topology, **sizes) as world:
        block = (80 << 20) // 4 // world.size
        x = np.full(block * world.size, 1.0, np.float32)
        out = np.full(block * (1 if operation == "reduce_scatter" else world.size), 7.0, np.float32)  # touched
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = peak_mib()
        if operation == "allreduce":
            world.allreduce(x, out=out)
        elif operation == "reduce_scatter":
            world.reduce_scatter(x, out=out)
        else:
            world.allgather(x[:block], out=out)
        grown = peak_mib() - before
        assert (out == (1.0 if operation == "allgather" else world.size)).all()
        assert grown < 64, f"{operation}: {grown:.0f} MiB"


@pytest.mark.mpi(min_size=2)
def test_the_odd_rank_is_named(comm, topology):
    """On all ranks, whatever the number of nodes; signatures go from leader to leader in rounds."""
    with formed(comm, topology) as world:
        odd = world.size - 1
        with pytest.raises(MismatchError, match=rf"disagree: rank {odd} \(pid .* of 11 float64 .*but rank "):
            world.barrier()  # a rank that is late would hear of it while it forms the group, or wakes up in here
            world.allreduce(np.ones(11 if world.rank == odd else 10))


@pytest.mark.mpi(min_size=2)
def test_what_differs_is_said_of_an_alltoall_too(comm):
    """Its blocks need not be of one size, so no size of it is compared or told."""
    with (
        Communicator(comm, timeout_s=30) as world,
        pytest.raises(MismatchError, match=r"alltoall of float64 as .*but|but .* alltoall of float64 as "),
    ):
        world.barrier()
        if world.rank:
            world.allreduce(np.ones(3))
        else:
            world.alltoall(np.ones(world.size))
