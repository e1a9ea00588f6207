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
        with pytest.raises(UsageError, match="op=barriers"):
            comm.plan("barriers", 100)
        with pytest.raises(UsageError, match="x: expected an array or a number from 0 to 2.48, got 10000"):
            comm.plan("bcast", 10**30)


def test_works():
    for works in (None, 1.5, object()):
        with pytest.raises(UsageError, match="works: expected a list of works, got "):
            waitall(works)
    with Communicator() as comm:
        work = comm.isend(np.ones(3), 0)
        with pytest.raises(UsageError, match=r"works\[1\]: expected a work of isend\(\) or irecv\(\), got 'x'"):
            waitall([work, "x"])
        waitall([work, comm.irecv(np.empty(3), 0)])


@pytest.mark.parametrize("samples", [None, "8", -1, math.nan, [8]], ids=str)
def test_steps(samples):
    with pytest.raises(UsageError, match=re.escape(f"step: samples={samples!r}, expected a number >= 0")):
        step(samples)
