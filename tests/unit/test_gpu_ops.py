"""bench/gpu_ops.py: what it asks of a reduction, and that it sees wrong ones. Its ranks run in test_gpu_check.py."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_ops


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("dtype", gpu_ops.TYPES, ids=str)
def test_what_is_asked_is_exact_in_every_order(dtype, size):
    """Or a check would fail where the ranks add up in another one."""
    for op, (combine, _) in gpu_ops.OPS.items():
        if not gpu_ops.has(dtype, op):
            continue
        parts = [gpu_ops.numbers(rank, 50, dtype, op) for rank in range(size)]
        wanted = gpu_ops.reduced(parts, dtype, op)
        assert wanted.dtype == dtype
        assert not gpu_ops.difference(gpu_ops.reduced(parts[::-1], dtype, op), wanted)
        for part in parts:  # nothing is lost on the way into the type
            wide = torch.complex128 if dtype.is_complex else torch.float64
            assert np.array_equal(gpu_ops.tensor(part, dtype).to(wide).numpy(), part)
        if op in ("sum", "prod") and dtype is not torch.bool and (dtype.is_floating_point or dtype.is_complex):
            total = parts[0].astype(complex)
            for part in parts[1:]:
                total = combine(total, part)
            assert np.array_equal(wanted.to(torch.complex128).numpy(), total), op


def check(wrong, size=2):
    """What is said of ranks whose every call gives what `wrong` makes of the right result."""
    said = []

    def call(x, op):
        parts = [gpu_ops.numbers(rank, x.numel(), x.dtype, op) for rank in range(size)]
        return wrong(gpu_ops.reduced(parts, x.dtype, op), op)

    def expect(holds, what):
        if not holds:
            said.append(what)

    calls = {"allreduce": call, "reduce": lambda x, op: None}
    made = gpu_ops.check_type(calls, expect, (0, size), torch.int64, lambda x: x)
    assert made == len(gpu_ops.OPS) * (len(gpu_ops.COUNTS) + 1)
    return said


def test_wrong_results_are_told():
    def off_at_the_end(result, op):
        if op == "max":
            result[-1] += 1
        return result

    assert check(lambda result, op: result) == []
    assert check(off_at_the_end) == [
        f"allreduce max of {count} torch.int64: 1 of {count} elements, the first at {count - 1}"
        for count in gpu_ops.COUNTS
    ]
    assert len(check(lambda result, op: result[:-1])) == len(gpu_ops.OPS) * len(gpu_ops.COUNTS)
    zero, other = torch.zeros(2), torch.tensor([0.0, -0.0])
    assert gpu_ops.difference(zero, other) == "1 of 2 elements, the first at 1"
    assert not gpu_ops.difference(torch.complex(zero, zero), torch.complex(other, other))
    assert gpu_ops.difference(zero, zero.double()) == "2 of torch.float32 instead of 2"


def test_time_that_is_up_ends_it_on_all_ranks(monkeypatch):
    import contextlib

    class Comm:
        rank, size = 1, 2

        def __init__(self):
            self.turns = 0

        def bcast(self, flag):  # rank 0's clock counts
            self.turns += 1
            flag[0] = self.turns == 3
            return flag

    class Checks:
        names: list[str] = []

        @contextlib.contextmanager
        def one(self, name):
            self.names.append(name)
            yield

        def expect(self, holds, what):
            pass

    monkeypatch.setattr(gpu_ops, "check_type", lambda *_, **__: 7)
    found = gpu_ops.check_all(Comm(), Checks(), "cpu", {}, "Communicator")
    assert Checks.names == [f"Communicator, reductions of {dtype}" for dtype in gpu_ops.TYPES[:2]]
    assert (found["calls"], found["datatypes"], found["not_done"]) == (14, 2, "15 of 17 datatypes")
