"""Wrong arguments of what makes, plans and waits: an error that says argument, what was expected and what given."""

import math
import re

import numpy as np
import pytest

from accdp_comm import Communicator, UsageError, step, waitall

NO_TIME = [None, "10", 0, -1, math.nan, [5], np.ones(2)]


@pytest.mark.parametrize("limit", NO_TIME, ids=str)
def test_time_outs(limit):
    with pytest.raises(UsageError, match=re.escape(f"timeout_s: expected seconds > 0, got {limit!r}")):
        Communicator(timeout_s=limit)


def test_numbers_of_many_digits():
    with pytest.raises(UsageError, match="timeout_s: expected seconds > 0, got an integer of many digits"):
        Communicator(timeout_s=-(10**5000))


@pytest.mark.parametrize("limit", [1, 0.5, np.float32(3), math.inf, 10**400], ids=str)
def test_any_number_above_zero_is_a_time_out(limit):
    with Communicator(timeout_s=limit) as comm:
        assert (comm.allreduce(np.ones(3)) == 1).all()


@pytest.mark.parametrize("value", ["yes", 1, 0.0, [], np.ones(2)], ids=str)
def test_switches(value):
    with pytest.raises(UsageError, match="deterministic: expected True, False or None, got "):
        Communicator(deterministic=value)


def test_plans():
    with Communicator() as comm:
        for op in (None, 3, ["bcast"]):
            with pytest.raises(UsageError, match=re.escape("op: expected one of ") + f".*, got {re.escape(repr(op))}"):
                comm.plan(op, 100)
        with pytest.raises(UsageError, match="rank 0 of 1: op=barriers"):
            comm.plan("barriers", 100)
        with pytest.raises(UsageError, match="x: expected an array or a number from 0 to 2.48, got 10000"):
            comm.plan("bcast", 10**30)
        with pytest.raises(UsageError, match="x: expected elements of at most 2.48 bytes, got 2.* of 100000 bytes"):
            comm.plan("bcast", 1 << 48, "V100000")


def test_integers_of_any_length():
    huge = 10**5000
    with Communicator() as comm:
        for call in (
            lambda: comm.bcast(np.ones(2), huge),
            lambda: comm.isend(np.ones(2), 0, huge),
            lambda: comm.split(huge),
            lambda: comm.alltoall(np.ones(2), send_counts=[huge]),
        ):
            with pytest.raises(UsageError, match="rank 0 of 1: .*, got .*an integer of many digits"):
                call()
        assert waitall([comm.isend(np.ones(2), 0), comm.irecv(np.ones(2), 0)], huge) == [None, 0]
        with pytest.raises(UsageError, match="timeout_s: expected seconds >= 0 or None, got an integer of many digits"):
            comm.irecv(np.ones(2), 0).wait(-huge)
        comm.send(np.ones(2), 0)


def test_what_is_only_moved_is_counted_in_bytes():
    with Communicator() as comm:
        with pytest.raises(UsageError, match="out: expected 1 x 24 = 24 bytes, got 32"):
            comm.allgather(np.zeros(3, "U2"), out=np.zeros(4, "U2"))
        with pytest.raises(UsageError, match=r"out: expected 24 bytes \(3 rows\), got 32"):
            comm.alltoall(np.zeros(3, "U2"), out=np.zeros(4, "U2"))


def test_roots_may_be_any_integers():
    class Index:
        def __index__(self):
            return 0

    x, root = np.ones(2), Index()
    with Communicator() as comm:
        assert comm.reduce(x, root=root) is x and comm.bcast(x, root) is x
        assert comm.gather(x, root).tolist() == [[1, 1]] and comm.scatter(x, np.empty(2), root).tolist() == [1, 1]


def test_rows_to_itself():
    with Communicator() as comm, pytest.raises(UsageError, match=r"rank 0 of 1: recv_counts\[0\]: expected 0, .*got 2"):
        comm.alltoall(np.zeros((0, 3)), None, [0], [2])


def test_works():
    for works in (None, 1.5, object()):
        with pytest.raises(UsageError, match="works: expected a list of works, got "):
            waitall(works)
    with Communicator() as comm:
        work = comm.isend(np.ones(3), 0)
        with pytest.raises(UsageError, match=r"works\[1\]: expected a work of isend\(\) or irecv\(\), got 'x'"):
            waitall([work, "x"])
        waitall([work, comm.irecv(np.empty(3), 0)])


@pytest.mark.parametrize("samples", [None, "8", -1, math.nan, math.inf, [8]], ids=str)
def test_steps(samples):
    with pytest.raises(UsageError, match=re.escape(f"step: samples={samples!r}, expected a number >= 0")):
        step(samples)
