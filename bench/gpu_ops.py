"""Every reduction of every datatype, against what NumPy makes of the same inputs; part of bench/gpu_rank.py.

Inputs are small integers, exact in the type as are all results of up to 8 ranks, so that bits are compared; of types
of 4 bytes and more they are moved up to where the upper half of a number counts, too. They follow no period.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from gpu_checks import Checks, Expect

from accdp_comm import Communicator, UsageError

COUNTS = (1, 33, 4099)  # elements: less than a vector, with a tail, and a slice for each rank
WITHIN_S = 8.0  # for the datatypes of a kind of calls; those that are left then are told
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
TYPES = (torch.bool, *SIGNED, *UNSIGNED, *FLOATS, *COMPLEX)
OPS: dict[str, tuple[np.ufunc, dist.ReduceOp.RedOpType]] = {
    "sum": (np.add, dist.ReduceOp.SUM),
    "avg": (np.add, dist.ReduceOp.AVG),
    "prod": (np.multiply, dist.ReduceOp.PRODUCT),
    "min": (np.minimum, dist.ReduceOp.MIN),
    "max": (np.maximum, dist.ReduceOp.MAX),
    "band": (np.bitwise_and, dist.ReduceOp.BAND),
    "bor": (np.bitwise_or, dist.ReduceOp.BOR),
    "bxor": (np.bitwise_xor, dist.ReduceOp.BXOR),
}

Reduce = Callable[[torch.Tensor, str], "torch.Tensor | None"]  # of this rank's input, by that operation


def has(dtype: torch.dtype, op: str) -> bool:
    """Whether there is such a reduction. Said here, too: one that the package lost would not be missed else."""
    if op in ("band", "bor", "bxor"):
        return dtype not in (*FLOATS, *COMPLEX)
    if op in ("min", "max"):
        return dtype not in COMPLEX
    return not (op == "avg" and dtype is torch.bool)


def numbers(rank: int, count: int, dtype: torch.dtype, op: str) -> np.ndarray:
    """What a rank gives, as int64, bool or complex128."""
    draw = np.random.default_rng([rank, count])
    if dtype is torch.bool:
        return draw.integers(0, 2, count).astype(bool)
    if op == "prod":
        values = draw.integers(1, 3, count)
    elif dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = draw.integers(-1, 2, count)  # every sum of eight has three bits
    else:
        values = draw.integers(0 if dtype in UNSIGNED else -5, 8, count)
        if dtype in (*SIGNED, *UNSIGNED) and dtype.itemsize >= 4:
            values <<= 8 * dtype.itemsize - 12
    return values - 1j * np.roll(values, 1) if dtype in COMPLEX else values


def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values).to(dtype, copy=True)  # calls write over it


def reduced(parts: Sequence[np.ndarray], dtype: torch.dtype, op: str) -> torch.Tensor:
    """What all ranks' inputs give, in host memory."""
    total = functools.reduce(OPS[op][0], parts)
    if op != "avg":
        return tensor(total, dtype)
    if dtype in COMPLEX:
        real = tensor(np.stack([total.real, total.imag], -1), dtype.to_real()) / len(parts)
        return torch.view_as_complex(real)
    if dtype in FLOATS:  # one quotient, of float32 where the type is shorter
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return (tensor(total, wide) / len(parts)).to(dtype)
    return tensor(np.sign(total) * (np.abs(total) // len(parts)), dtype)  # towards zero


def difference(found: torch.Tensor, wanted: torch.Tensor) -> str:
    """Where they differ; empty where their bits do not. Not every type has comparisons on every device."""
    if found.dtype != wanted.dtype or found.numel() != wanted.numel():
        return f"{found.numel()} of {found.dtype} instead of {wanted.numel()}"
    if found.dtype in COMPLEX:  # a product's zeros have a sign that depends on the order
        found, wanted = found + 0, wanted + 0
    wrong = (found.reshape(-1, 1).view(torch.uint8) != wanted.reshape(-1, 1).view(torch.uint8)).any(1).nonzero()
    return f"{len(wrong)} of {wanted.numel()} elements, the first at {int(wrong[0])}" if len(wrong) else ""


def check_type(
    calls: dict[str, Reduce],
    expect: Expect,
    place: tuple[int, int],
    dtype: torch.dtype,
    to_device: Callable[[torch.Tensor], torch.Tensor],
    to_host: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu,
    lacks: Sequence[str] = (),
) -> int:
    """Check all reductions of a datatype; returns how many calls were made.

    Args:
        calls: "allreduce", with all counts; others with the last one: "reduce", which returns nothing off its root, and
            "reduce_scatter", whose blocks are all the same.
        place: Rank and number of ranks.
        to_device, to_host: Copy to the device and back.
        lacks: Operations that are not there.
    """
    rank, size = place
    made = 0
    for op, (name, call) in itertools.product(OPS, calls.items()):
        if not has(dtype, op) or op in lacks:
            continue
        for count in COUNTS if name == "allreduce" else COUNTS[-1:]:
            parts = [numbers(other, count, dtype, op) for other in range(size)]
            found = call(to_device(tensor(parts[rank], dtype)), op)
            made += 1
            if found is not None:
                wrong = difference(to_host(found), reduced(parts, dtype, op))
                expect(not wrong, f"{name} {op} of {count} {dtype}: {wrong}")
    return made


def of_communicator(comm: Communicator) -> dict[str, Reduce]:
    root = comm.size - 1

    def reduce(x: torch.Tensor, op: str) -> torch.Tensor | None:
        result = comm.reduce(x, op, root=root)
        return result if comm.rank == root else None

    return {
        "allreduce": lambda x, op: comm.allreduce(x, op, out=torch.empty_like(x)),
        "reduce": reduce,
        # A list, since not every type can be stacked on every device.
        "reduce_scatter": lambda x, op: comm.reduce_scatter([x] * comm.size, op, out=torch.empty_like(x)),
    }


def of_torch() -> dict[str, Reduce]:
    rank, size = dist.get_rank(), dist.get_world_size()

    def allreduce(x: torch.Tensor, op: str) -> torch.Tensor:
        dist.all_reduce(x, OPS[op][1])
        return x

    def reduce(x: torch.Tensor, op: str) -> torch.Tensor | None:
        dist.reduce(x, size - 1, OPS[op][1])
        return x if rank == size - 1 else None

    def reduce_scatter(x: torch.Tensor, op: str) -> torch.Tensor:
        part = torch.empty_like(x)
        dist.reduce_scatter(part, [x] * size, OPS[op][1])
        return part

    return {"allreduce": allreduce, "reduce": reduce, "reduce_scatter": reduce_scatter}


def check_refusals(comm: Communicator, expect: Expect, device: str) -> None:
    """What is not there is refused on every rank, before anything is sent."""
    for dtype, op in itertools.product(TYPES, OPS):
        if has(dtype, op):
            continue
        try:
            comm.allreduce(torch.ones(3, device=device).to(dtype), op)
        except UsageError:
            continue
        expect(False, f"{op} of {dtype} was not refused")


def torch_lacks(dtype: torch.dtype) -> Sequence[str]:
    """Operations that torch itself refuses."""
    return ("prod",) if dtype in COMPLEX else ()


def check_all(comm: Communicator, checks: Checks, device: str, calls: dict[str, Reduce], who: str) -> dict:
    """Check all datatypes, each by itself, as long as the time lasts; returns what to write down of it."""
    began, made, done = time.monotonic(), 0, 0
    is_late = np.zeros(1, np.uint8)
    place = (comm.rank, comm.size)
    for dtype in TYPES:
        is_late[0] = time.monotonic() - began > WITHIN_S
        if comm.bcast(is_late)[0]:  # rank 0 decides: all go on, or none
            break
        lacks = torch_lacks(dtype) if who == "torch backend" else ()
        with checks.one(f"{who}, reductions of {dtype}"):
            made += check_type(calls, checks.expect, place, dtype, lambda x: x.to(device), lacks=lacks)
        done += 1
    found = {"calls": made, "datatypes": done, "s": round(time.monotonic() - began, 1)}
    return found | ({"not_done": f"{len(TYPES) - done} of {len(TYPES)} datatypes"} if done < len(TYPES) else {})
