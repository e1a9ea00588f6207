"""Test inputs that every rank can make for every other rank, and what collectives make of them, in plain torch."""

from __future__ import annotations

import functools
import time

import torch
import torch.distributed as dist

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64),
        *(torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
# Only moved, never added.
MOVED_DTYPES = DTYPES | {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

_COMBINE = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def is_defined(op: str, dtype: torch.dtype) -> bool:
    """Whether torch and the backend have this reduction for the datatype."""
    if op in ("BAND", "BOR", "BXOR"):
        return not (dtype.is_floating_point or dtype.is_complex)
    if dtype.is_complex:
        return op in ("SUM", "AVG")
    return not (op == "AVG" and dtype is torch.bool)


def values(rank: int, shape: tuple[int, ...] | int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small integers (1 to 3, for bool 0 and 1) in any datatype: what four ranks make of them is exact in all."""
    shape = (shape,) if isinstance(shape, int) else shape
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    integers = torch.randint(1, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(integers.double(), integers.double() - 2).to(dtype)
    return integers.to(torch.float32).to(dtype)


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The reduction of all ranks' tensors, computed in the widest type of their kind."""
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    total = functools.reduce(_COMBINE[op], [tensor.to(wide) for tensor in tensors])
    if op == "AVG":
        if wide is torch.int64:
            total = total // len(tensors)
        else:  # real numbers: the complex quotient rounds differently
            parts = torch.view_as_real(total) if dtype.is_complex else total
            parts /= len(tensors)
    return total.to(dtype)


def op_of(name: str) -> dist.ReduceOp.RedOpType:
    """torch's reduction of that name."""
    return getattr(dist.ReduceOp, name)


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Same datatype, shape and bits."""
    assert got.dtype == expected.dtype and got.shape == expected.shape, (got.dtype, got.shape, expected.shape)
    if got.dtype.itemsize == 1:
        got, expected = got.view(torch.uint8), expected.view(torch.uint8)
    if not torch.equal(got, expected):
        wrong = (got != expected).flatten().nonzero().flatten()
        first = int(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {got.numel()} elements differ, first at {first}: {got.flatten()[first]}, "
            f"expected {expected.flatten()[first]}"
        )


def reason_of(work: dist.Work) -> str:
    """What ``work.exception()`` says, "" for none. torch 2.11 cannot hand it to Python; wait() raises it there."""
    try:
        error = work.exception()
    except TypeError as gap:
        assert torch.__version__ < "2.13" and "exception_ptr" in str(gap)
        try:
            work.wait()
        except dist.DistBackendError as failure:
            error = failure
        else:
            return ""
    return "" if error is None else str(error)


def check_all_came_before_any_left(came: float) -> None:
    """Of a barrier that this rank, and all others on this machine, came to at ``came`` (time.monotonic())."""
    mine = torch.tensor([came, time.monotonic()], dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    assert max(times[0] for times in everyone) <= min(times[1] for times in everyone), everyone
