"""Reductions of float8_e4m3fn and float8_e5m2: float32 sums, rounded to nearest, without saturation."""

import pytest
import torch
import torch.distributed as dist

from accdp_comm import Communicator, UsageError

FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


def every_pair(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the numbers there are, NaN and infinities too: ranks 0 and 1 have every pair, the others more of them."""
    numbers = torch.arange(256, dtype=torch.uint8)
    turns = (numbers.repeat_interleave(256), numbers.repeat(256), numbers.flip(0).repeat(256))
    return turns[rank % 3].view(dtype)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Same numbers; a zero of either sign, which min and max of both leave open."""
    assert torch.equal(got.float().isnan(), wanted.float().isnan())
    assert torch.equal(
        got.float().nan_to_num(0, torch.inf, -torch.inf), wanted.float().nan_to_num(0, torch.inf, -torch.inf)
    )


def wide(size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [every_pair(rank, dtype).float() for rank in range(size)]


def rounded(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As torch rounds, but for what is too large, which newer versions of torch saturate: NaN, or infinity in e5m2."""
    result = wide.to(dtype)
    if dtype is torch.float8_e4m3fn:
        result = torch.where(wide.abs() > 464, torch.nan, result.float()).to(dtype)
    else:
        result = torch.where(wide.abs() >= 61440, wide.sign() * torch.inf, result.float()).to(dtype)
    return result


def in_order(tensors: list[torch.Tensor], combine) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = combine(total, tensor)
    return total


@pytest.mark.on_ranks(1, 2, 3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions_round_as_torch_does(rank, size, dtype):
    ways = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}
    for name, combine in ways.items():
        wanted = rounded(in_order(wide(size, dtype), combine), dtype)
        tensor = every_pair(rank, dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        assert_same(tensor, wanted)
        tensor = every_pair(rank, dtype)
        dist.reduce(tensor, size - 1, getattr(dist.ReduceOp, name))
        assert_same(tensor, wanted if rank == size - 1 else every_pair(rank, dtype))
    wanted = rounded(in_order(wide(size, dtype), torch.add) / size, dtype)
    part = torch.empty(len(wanted) // size, dtype=dtype)
    whole = every_pair(rank, dtype)[: len(part) * size]
    dist.reduce_scatter_tensor(part, whole.contiguous(), dist.ReduceOp.AVG)
    assert_same(part, wanted[rank * len(part) : (rank + 1) * len(part)])


@pytest.mark.on_ranks(2)
def test_arrays_and_other_calls(rank, size):
    with Communicator() as comm:
        for dtype in FLOATS:
            x = torch.tensor([1.5, -2.0, 3.0]).to(dtype)
            out = torch.empty_like(x)
            comm.allreduce(x, out=out)
            assert out.tolist() == [3.0, -4.0, 6.0] and x.tolist() == [1.5, -2.0, 3.0]
            with pytest.raises(UsageError, match="op"):
                comm.allreduce(x, "band")
            moved = x if rank == 0 else torch.zeros_like(x)
            comm.bcast(moved, 0)
            assert moved.tolist() == [1.5, -2.0, 3.0]
            every = torch.empty(2 * len(x), dtype=dtype)
            comm.allgather(x, out=every)
            assert every.tolist() == [1.5, -2.0, 3.0] * 2
