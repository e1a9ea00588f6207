"""Wrong arguments: an error that says rank, argument, what was expected and given, before anything is sent.

One rank alone makes the wrong call. Had a byte of it gone out, the right calls after it could not succeed.
"""

import numpy as np
import pytest

from accdp_comm import UsageError

X = np.ones(12)
READ_ONLY = np.ones(12)
READ_ONLY.flags.writeable = False

# Name -> (call of a communicator c, part of the message).
WRONG = {
    "list": (lambda c: c.allreduce([1.0, 2.0]), "x is a list: expected a NumPy array"),
    "none": (lambda c: c.bcast(None), "x is a NoneType"),
    "strided": (lambda c: c.allreduce(X[::2]), "x is not contiguous"),
    "fortran": (lambda c: c.bcast(np.ones((2, 3), order="F")), "x is not contiguous"),
    "read-only": (lambda c: c.allreduce(READ_ONLY), "x is read-only"),
    "read-only out": (lambda c: c.allreduce(X, out=READ_ONLY), "out is read-only"),
    "objects": (lambda c: c.bcast(np.array([None])), "Python objects cannot be sent"),
    "byte order": (lambda c: c.bcast(np.ones(3, ">f8")), "foreign byte order"),
    "root": (lambda c: c.bcast(X, c.size), "root: expected a rank from 0 to"),
    "negative root": (lambda c: c.reduce(X, root=-1), "root: expected a rank from 0 to"),
    "root of text": (lambda c: c.gather(X, root="0"), "root: expected a rank from 0 to"),
    "fractional root": (lambda c: c.scatter(X, X, root=0.0), "root: expected a rank from 0 to"),
    "op": (lambda c: c.allreduce(X, "add"), "op: expected one of sum, avg, prod, min, max, band, bor, bxor, got 'add'"),
    "bits of floats": (lambda c: c.allreduce(X, "band"), "op: expected an operation that float64 has, got 'band'"),
    "order of complex": (lambda c: c.reduce(X * 1j, "max"), "op: expected an operation that complex128 has, got 'max'"),
    "average of bools": (lambda c: c.allreduce(X > 0, "avg"), "avg"),
    "sum of texts": (lambda c: c.allreduce(np.array(["a"])), "x: expected a datatype that can be reduced, got str32"),
    "sum of dates": (
        lambda c: c.allreduce(np.zeros(2, "M8[s]")),
        r"x: expected a datatype that can be reduced, got datetime64\[s\]",
    ),
    "list as op": (lambda c: c.allreduce(X, ["sum"]), r"op: expected one of sum, .*, got \['sum'\]"),
    "count of out": (lambda c: c.allreduce(X, out=np.ones(11)), "out: expected 12 elements, as many as x, got 11"),
    "dates of another unit": (
        lambda c: c.allgather(np.zeros(1, "M8[s]"), out=np.zeros((c.size, 1), "M8[D]")),
        r"out: expected datatype datetime64\[s\], got datetime64\[D\]",
    ),
    "records of other fields": (
        lambda c: c.allgather(np.zeros(1, [("a", "i4")]), out=np.zeros((c.size, 1), [("a", "f4")])),
        r"out: expected datatype \[\('a', '<i4'\)\], got \[\('a', '<f4'\)\]",
    ),
    "datatype of out": (lambda c: c.allreduce(X, out=np.ones(12, "f4")), "out: expected datatype float64, got float32"),
    "count of allgather": (lambda c: c.allgather(X, out=np.ones(5)), "elements, got 5"),
    "list of allgather": (lambda c: c.allgather(X, out=[X] * (c.size + 1)), "a list of .*, one per rank, got"),
    "block of allgather": (
        lambda c: c.allgather(X, out=[np.ones(3)] * c.size),
        r"out\[\d\]: expected 12 elements, as many as x, got 3",
    ),
    "datatype of a block": (
        lambda c: c.allgather(X, out=[np.ones(12, "i8")] * c.size),
        r"out\[0\]: expected datatype float64, got int64",
    ),
    "first dimension": (lambda c: c.reduce_scatter(np.ones(())), "x: expected a first dimension that is a multiple of"),
    "part of reduce_scatter": (
        lambda c: c.reduce_scatter(np.ones(4 * c.size), out=np.ones(5)),
        "out: expected 4 elements, this rank's part of x, got 5",
    ),
    "list of reduce_scatter": (lambda c: c.reduce_scatter([X] * (c.size + 2)), "x: expected a list of"),
    "datatype of reduce_scatter's out": (
        lambda c: c.reduce_scatter(np.ones(c.size), out=np.ones(1, "f4")),
        "out: expected datatype float64, got float32",
    ),
    "datatype of out, as large": (
        lambda c: c.allreduce(X, out=np.ones(12, "i8")),
        "out: expected datatype float64, got int64",
    ),
    "datatype of reduce_scatter's out, as large": (
        lambda c: c.reduce_scatter(np.ones(2 * c.size), out=np.ones(2, "i8")),
        "out: expected datatype float64, got int64",
    ),
    "datatype of a list's out, as large": (
        lambda c: c.reduce_scatter([np.ones(2, "i8")] * c.size, out=np.ones(2)),
        "out: expected datatype int64, got float64",
    ),
    "longer list of reduce_scatter": (
        lambda c: c.reduce_scatter([X] * (c.size + 1), out=np.ones(12)),
        "x: expected a list of",
    ),
    "fractional counts": (
        lambda c: c.alltoall(np.ones(c.size), send_counts=[1.9] * c.size),
        r"send_counts: expected counts >= 0, whole numbers, got \[1.9",
    ),
    "counts of text": (
        lambda c: c.alltoall(np.ones(c.size), recv_counts=["1"] * c.size),
        r"recv_counts: expected counts >= 0, whole numbers, got \['1'",
    ),
    "one count": (lambda c: c.alltoall(X, send_counts=12), "send_counts: expected counts >= 0, whole numbers, got 12"),
    "fractional color": (lambda c: c.split(1.5), "color: expected an integer of 64 bits, got 1.5"),
    "large color": (lambda c: c.split(1 << 63), "color: expected an integer of 64 bits, got 9223372036854775808"),
    "key of text": (lambda c: c.split(0, "a"), "key: expected an integer of 64 bits, got 'a'"),
    "counts of alltoall": (lambda c: c.alltoall(X, send_counts=[5] * c.size), "counts that add up to the rows of x"),
    "negative counts": (lambda c: c.alltoall(X, send_counts=[-1] * c.size), "send_counts: expected counts >= 0"),
    "number of counts": (lambda c: c.alltoall(X, send_counts=[12] * (c.size + 1)), "send_counts: expected a list of"),
    "out of alltoall": (
        lambda c: c.alltoall(np.ones(c.size), np.ones(c.size + 1), [1] * c.size, [1] * c.size),
        "out: expected .* elements",
    ),
    "dst": (lambda c: c.send(X, c.size), "dst: expected a rank from 0 to"),
    "src": (lambda c: c.recv(X, -2), "src: expected a rank from 0 to [0-9]+, or -1 for any, got -2"),
    "read-only reduce": (lambda c: c.reduce(READ_ONLY, root=c.rank), "x is read-only"),
    "negative tag": (lambda c: c.send(X, 0, -1), "tag: expected a number from 0 to 2147483647, got -1"),
    "large tag": (lambda c: c.recv(X, 0, 1 << 31), "tag: expected a number from 0 to 2147483647"),
    "read-only recv": (lambda c: c.recv(READ_ONLY, 0), "x is read-only"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(world, name):
    call, said = WRONG[name]
    if world.rank == world.size - 1:
        with pytest.raises(UsageError, match=said) as caught:
            call(world)
        assert str(caught.value).startswith(f"rank {world.rank} of {world.size}: ")
    assert (X == 1).all() and (READ_ONLY == 1).all()
    assert (world.allreduce(np.ones(5)) == world.size).all()
    assert (world.allgather(np.array([world.rank])).ravel() == np.arange(world.size)).all()


@pytest.mark.mpi(min_size=2)
def test_refused_where_there_are_others(world):
    rows = np.ones(2 * world.size + 1)
    if world.rank == 1:
        with pytest.raises(UsageError, match="x is read-only"):
            world.bcast(READ_ONLY, root=0)
        with pytest.raises(UsageError, match="multiple of"):
            world.alltoall(rows, np.ones_like(rows))
    if world.rank == 0:
        with pytest.raises(UsageError, match="datatype"):
            world.scatter(np.ones(2 * world.size, "i8"), np.ones(2), root=0)
    assert (READ_ONLY == 1).all() and (world.allreduce(np.ones(5)) == world.size).all()


def test_refused_on_root_only(world):
    """What only root needs is looked at on root only."""
    out = np.zeros(3)
    if world.rank == 0:
        with pytest.raises(UsageError, match="x is a NoneType"):
            world.scatter(None, out)
        with pytest.raises(UsageError, match="x: expected .* = .* elements, got 1"):
            world.scatter(np.ones(1), out)
    x = np.arange(3.0 * world.size) if world.rank == 0 else "ignored"
    assert (world.scatter(x, out) == np.arange(3.0) + 3 * world.rank).all()
    assert world.reduce(np.ones(3), out=out if world.rank == 0 else "ignored") is (out if world.rank == 0 else None)
    assert world.rank != 0 or (out == world.size).all()


def test_what_is_only_read_may_be_read_only(world):
    """x of a call that gives its result elsewhere."""
    assert (world.allreduce(READ_ONLY, out=np.empty(12)) == world.size).all()
    assert (world.allgather(READ_ONLY) == 1).all()
    world.send(READ_ONLY, world.rank)
    assert world.recv(np.empty(12), world.rank) == world.rank
    if world.rank == 0:
        world.bcast(READ_ONLY)
    else:
        assert (world.bcast(np.zeros(12)) == 1).all()
