"""Where communicators come from, where their ranks are, and how they end."""

from functools import partial

import cases
import numpy as np
import pytest
from mpi4py import MPI
from reference import assert_same

from accdp_comm import Communicator, Error, MismatchError, UsageError, cards, settings


def check(world: Communicator) -> None:
    """A look at every way that bytes take: all to all, from each root, and from rank to rank."""
    case = cases.Case(world.size, "float32", 5000, "sum")
    wanted = sum(case.plain(rank) for rank in range(world.size))
    assert_same(world.allreduce(case.given(world.rank)), wanted, f"allreduce, {case}")
    for root in range(world.size):
        x = case.given(root) if world.rank == root else case.blank(case.count)
        assert_same(world.bcast(x, root), case.plain(root), f"bcast from {root}, {case}")
    assert (world.allgather(np.array([world.rank])).ravel() == np.arange(world.size)).all()
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    got = np.zeros(1, int)
    world.send(np.array([world.rank]), after)
    assert world.recv(got, before) == before and got[0] == before
    world.barrier()


def test_whole_job(comm, topology):
    """Without an argument: all ranks of the launcher, in its order. As often as one likes."""
    for _ in range(3):
        with settings.override(topology=topology), Communicator(timeout_s=60) as world:
            assert (world.rank, world.size) == (comm.rank, comm.size)
            assert list(world.nodes) == (cards.declared_nodes(topology) or [0] * comm.size)
            check(world)


def test_mpi4py_order(comm, topology):
    """The ranks of an mpi4py communicator, in its order, which need not be the world's."""
    backwards = comm.Split(0, -comm.rank)
    with settings.override(topology=topology), Communicator(backwards, timeout_s=60) as world:
        assert world.rank == comm.size - 1 - comm.rank
        assert list(world.nodes) == (cards.declared_nodes(topology) or [0] * comm.size)
        check(world)
    backwards.Free()


@pytest.mark.mpi(min_size=2)
def test_mpi4py_part(comm):
    """Some ranks of the world; the others take no part. On one node, and on a node each."""
    color = comm.rank % 2
    part = comm.Split(color, comm.rank)
    for topology in ("", f"{part.size}x1"):
        if color == 0:
            with settings.override(topology=topology), Communicator(part, timeout_s=60) as world:
                assert (world.rank, world.size) == (comm.rank // 2, (comm.size + 1) // 2)
                check(world)
    part.Free()


def test_not_a_communicator():
    with pytest.raises(UsageError, match="comm is a list: expected a communicator of mpi4py"):
        Communicator([0, 1])
    with pytest.raises(UsageError, match="comm is MPI.COMM_NULL, or was freed: expected a communicator"):
        Communicator(MPI.COMM_NULL)


@pytest.mark.mpi(min_size=2)
def test_not_an_intercommunicator(comm):
    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, (comm.rank + 1) % 2)
    with pytest.raises(UsageError, match=r"comm is an intercommunicator: expected .* comm.Merge\(\)"):
        Communicator(between)
    between.Free()
    half.Free()


@pytest.mark.mpi(min_size=2)
def test_settings_differ(comm):
    """All ranks refuse, and name the odd one; a try with equal settings then goes well."""
    chunk = "8k" if comm.rank == comm.size - 1 else "4k"
    odd = comm.size - 1
    with settings.override(chunk_bytes=chunk), pytest.raises(UsageError) as caught:
        Communicator(comm, timeout_s=60)
    said = f"rank {odd} of {comm.size} has ACCDP_CHUNK_BYTES=8k, but rank 0 has ACCDP_CHUNK_BYTES=4k"
    assert said in str(caught.value)
    with Communicator(comm, timeout_s=60) as world:
        check(world)


@pytest.mark.parametrize(
    ("text", "said"), [("7x9", "declares 63 ranks, but this world has"), ("2x", "expected NODESxRANKS")]
)
@pytest.mark.mpi(min_size=2)
def test_wrong_topology(comm, text, said):
    with settings.override(topology=text), pytest.raises(UsageError, match=f"ACCDP_TOPOLOGY={text}.*{said}"):
        Communicator(comm, timeout_s=60)


def test_split(world):
    """By color, ordered by key; ranks without a color get nothing. Parts of parts, and groups that overlap."""
    backwards = world.split(0, key=-world.rank)
    assert backwards.rank == world.size - 1 - world.rank
    parity = world.split(world.rank % 2)
    assert (parity.rank, parity.size) == (world.rank // 2, (world.size + 1 - world.rank % 2) // 2)
    alone = parity.split(parity.rank)
    assert alone.size == 1
    some = world.split(None if world.rank == 0 else 5)
    assert (some is None) == (world.rank == 0)
    for part in (backwards, parity, alone, some, world):
        if part is not None:
            check(part)
    # Interleaved: each has its own order of calls.
    x = np.ones(3)
    for _ in range(5):
        assert (world.allreduce(np.ones(3)) == world.size).all()
        assert (parity.allreduce(np.ones(3)) == parity.size).all()
        assert (backwards.bcast(x, backwards.size - 1) == 1).all()
    for part in (backwards, parity, alone, some):
        if part is not None:
            part.close()
    check(world)


def test_nodes_of_a_part(world):
    """Numbered anew, by the order in which nodes first appear in the part."""
    part = world.split(0, key=-world.rank)
    nodes = list(reversed(world.nodes))
    assert list(part.nodes) == [list(dict.fromkeys(nodes)).index(node) for node in nodes]
    part.close()


def test_default_sizes(comm, topology):
    """With the sizes that users have: around the chunk of 1 MiB and through rings of 256 KiB."""
    sizes = {"chunk_bytes": "1M", "flat_bytes": "16k", "ring_bytes": "256k", "eager_bytes": "8k"}
    with settings.override(topology=topology, **sizes), Communicator(comm, timeout_s=60) as world:
        check(world)
        for count in cases.counts_of("float32"):
            case = cases.Case(world.size, "float32", count, "sum")
            wanted = sum(case.plain(rank) for rank in range(world.size))
            assert_same(world.allreduce(case.given(world.rank)), wanted, f"allreduce, {case}")
            root = world.size - 1
            x = case.given(root) if world.rank == root else case.blank(count)
            assert_same(world.bcast(x, root), case.plain(root), f"bcast, {case}")
            rows = np.stack([case.plain(rank) for rank in range(world.size)])
            assert_same(world.allgather(case.given(world.rank)), rows, f"allgather, {case}")
            parts = [case.plain(rank, world.rank) for rank in range(world.size)]
            given = np.stack([case.plain(world.rank, part) for part in range(world.size)])
            assert_same(world.alltoall(given), np.stack(parts), f"alltoall, {case}")


def test_closed(world):
    world.barrier()
    world.close()
    world.close()
    with pytest.raises(UsageError, match="closed"):
        world.barrier()


@pytest.mark.mpi(min_size=2)
def test_left_by_an_exception(comm, topology):
    """A rank that leaves a with-block by an exception wakes those that wait for it, and they say which it was."""
    leaver = comm.size - 1
    kind, said = (KeyError, "the data set") if comm.rank == leaver else (Error, f"rank {leaver} .*KeyError: 'the data")
    with (
        settings.override(topology=topology),
        pytest.raises(kind, match=said),
        Communicator(comm, timeout_s=60) as world,
    ):
        world.barrier()
        if world.rank == leaver:
            raise KeyError("the data set")
        for _ in range(2):
            world.allreduce(np.ones(10))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["count", "datatype", "root", "operation"])
def test_disagreement(world, what):
    """All ranks raise, before anything is written, and name the odd rank and both sides.

    Who went ahead in a short call does so in the next one.
    """
    odd = world.rank == world.size - 1
    x = np.full(10, 5.0)
    with pytest.raises(MismatchError, match=f"rank {world.size - 1} .* calls .* but rank ") as caught:
        if what == "count":
            world.allreduce(np.full(11, 5.0) if odd else x)
        elif what == "datatype":
            world.allreduce(np.full(10, 5) if odd else x)
        elif what == "root":
            world.bcast(x, 1 if odd else 0)
        elif odd:
            world.barrier()
        else:
            world.bcast(x)
        world.barrier()
    assert (x == 5.0).all()
    with pytest.raises(MismatchError) as again:
        world.barrier()
    reason = str(again.value).partition(": ")[2].partition(" (#")[0]  # on one node the call is named behind it
    assert reason in str(caught.value)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("expected", [0, 1, 3])
def test_alltoall_that_does_not_fit(world, expected):
    """The last rank sends rank 0 two rows, who expects another number: an error at once, on both."""
    last = world.size - 1
    sent, got = [0] * world.size, [0] * world.size
    if world.rank == last:
        sent[0] = 2
    if world.rank == 0:
        got[last] = expected
    world._group.timeout_s = 5
    with pytest.raises(MismatchError):
        world.alltoall(np.ones((sum(sent), 2)), None, sent, got)
        world.barrier()  # where a rank had nothing to do with the two


def test_calls_after_close(comm):
    """Each refuses, on one node and over several: other ranks may not have closed theirs."""
    for topology in ("", f"{comm.size}x1"):
        with settings.override(topology=topology):
            world = Communicator(timeout_s=60)
        world.close()
        x = np.ones(3)
        for call in (world.barrier, partial(world.allreduce, x), partial(world.bcast, x), partial(world.isend, x, 0)):
            with pytest.raises(UsageError, match=f"rank {comm.rank} of {comm.size}: .* is closed on this rank"):
                call()


@pytest.mark.mpi(min_size=2)
def test_what_a_split_tells_is_no_callers_data(comm):
    """Another rank's allgather of as many numbers is a mismatch for both."""
    with Communicator(comm, timeout_s=60) as world:
        said = "in split\\(\\), whose ranks .*ranks disagree" if world.rank == 0 else "ranks disagree"
        with pytest.raises(MismatchError, match=said):
            world.split(0) if world.rank == 0 else world.allgather(np.array([7, 8, 9]))
            world.barrier()


@pytest.mark.mpi(min_size=2)
def test_counts_on_some_ranks_only(world):
    """Those that have none have to tell them first, which is what they do not agree on."""
    x, counts = np.ones(world.size), [1] * world.size
    said = "in alltoall\\(\\) with send_counts and without recv_counts" if world.rank == 0 else "ranks disagree"
    with pytest.raises(MismatchError, match=said):
        world.alltoall(x, send_counts=counts) if world.rank == 0 else world.alltoall(x)
        world.barrier()
