"""Every rank of a job of test_hooks.py: gradients averaged compressed between declared nodes (ACCDP_TOPOLOGY)."""

import json
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import assert_same_parameters, batches, make_model, shares, train

from accdp_comm import allreduce_compressed, relative
from accdp_comm.hooks import compressed_allreduce

STEPS = 60


def lossless_equals_training_in_one_process(rank, size):
    ddp = DistributedDataParallel(make_model(seed=rank), bucket_cap_mb=0.0005)
    hook = compressed_allreduce(codec="fpk")
    ddp.register_comm_hook(None, hook)
    train(ddp, shares(rank, size))
    assert_same_parameters(ddp.module, train(make_model(), batches()))
    assert hook.last is not None and hook.last.algorithm != "flat"


def wide_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))


def fit(model: nn.Module, rank: int, size: int) -> float:
    """Learn a linear map from this rank's rows; returns the loss over all rows at the end."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 64, generator=generator)
    targets = inputs @ torch.randn(64, 8, generator=generator) / 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.chunk(size)[rank]), targets.chunk(size)[rank]).backward()
        optimizer.step()
    with torch.no_grad():
        return nn.functional.mse_loss(model(inputs), targets).item()


def with_feedback_a_coarse_bound_learns_as_well(rank, size):
    """All replicas stay alike, and what a step leaves out comes with the next."""
    plain = fit(DistributedDataParallel(wide_model()), rank, size)
    for codec in ("auto", "qpk"):  # auto is what people get, and may encode nothing on this machine
        model = DistributedDataParallel(wide_model())
        hook = compressed_allreduce(relative(1.0), codec=codec)
        model.register_comm_hook(None, hook)
        coarse = fit(model, rank, size)
        assert abs(coarse - plain) < 0.05 * plain, (codec, coarse, plain)
        assert_same_on_all_ranks(model, size)
    if rank == 0 or size == 2:
        assert hook.last.ratio > 4, hook.last


def mean_is_off(rank: int, size: int, error_feedback: bool) -> float:
    """Take many steps of the same bfloat16 gradients; return how far their mean is from the exact one at most."""
    torch.manual_seed(rank)
    hook = compressed_allreduce(relative(1.0), error_feedback, codec="qpk")
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, hook)
    every = torch.randn(size, 64, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    exact = every.double().mean(0)
    total = torch.zeros(64, 64, dtype=torch.float64)
    for _ in range(40):
        model.weight.grad = None
        (ddp(torch.eye(64, dtype=torch.bfloat16)).t() * every[rank]).sum().backward()
        total += model.weight.grad.double()
    assert bool(hook.state_dict(model)) == error_feedback
    return (total / 40 - exact).abs().max().item()


def short_gradients_lose_nothing_for_good(rank, size):
    """What steps leave out comes later, unless that is not wanted."""
    off = mean_is_off(rank, size, True)
    assert off < 0.1, f"off by {off} standard deviations, after one step by about 1"
    lost = mean_is_off(rank, size, False)
    assert lost > 0.3, f"off by {lost} only"


def assert_same_on_all_ranks(model: nn.Module, size: int) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    assert all(torch.equal(other, flat) for other in every), "replicas differ"


def allreduce_compressed_of_a_torch_group(rank, size):
    tensor = torch.arange(100_000, dtype=torch.float32) * (rank + 1)
    work = allreduce_compressed(tensor, "avg", codec="fpk", async_op=True)
    result = work.wait()
    assert torch.equal(tensor, torch.arange(100_000, dtype=torch.float32) * (size + 1) / 2)
    assert 0 < result.wire_bytes < result.logical_bytes and result.codec == "fpk", result
    numbers = torch.full((10,), rank + 2)
    allreduce_compressed(numbers, "prod")
    assert numbers.eq(math.prod(range(2, size + 2))).all()


def main() -> None:
    dist.init_process_group("accdp")
    rank, size = dist.get_rank(), dist.get_world_size()
    lossless_equals_training_in_one_process(rank, size)
    with_feedback_a_coarse_bound_learns_as_well(rank, size)
    short_gradients_lose_nothing_for_good(rank, size)
    allreduce_compressed_of_a_torch_group(rank, size)
    print(json.dumps({"rank": rank}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
