"""DistributedDataParallel and ZeroRedundancyOptimizer reach what one process with the whole batch reaches."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import assert_same_parameters, batches, make_model, share, shares, train

from accdp_comm import settings


def single(**options) -> nn.Module:
    return train(make_model(), batches(), **options)


@pytest.mark.on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0005},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_equals_training_in_one_process(rank, size, options):
    model = make_model(seed=rank)  # rank 0's parameters count
    ddp = DistributedDataParallel(model, **options)
    train(ddp, shares(rank, size))
    assert_same_parameters(ddp.module, single())


@pytest.mark.on_ranks(2, 4)
def test_gradients_travel_while_backward_goes_on(rank, size):
    """Backward stands still in front of the first layer until the gradients of the last one have been summed."""
    first, last = nn.Linear(600, 600), nn.Linear(600, 600)
    model = nn.Sequential(first, nn.Tanh(), last)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)  # a bucket for each layer
    sums: list[torch.futures.Future] = []

    def hook(state, bucket):
        sums.append(default_hooks.allreduce_hook(state, bucket))
        return sums[-1]

    def hold(_: torch.Tensor) -> None:
        deadline = time.monotonic() + 20
        while not (sums and sums[0].done()) and time.monotonic() < deadline:
            time.sleep(0.001)
        travelled.append(len(sums) == 1 and sums[0].done())

    ddp.register_comm_hook(None, hook)
    travelled: list[bool] = []
    ddp(torch.ones(2, 600)).sum().backward()  # in its first step DDP has one bucket only
    first.register_forward_hook(lambda module, inputs, output: output.register_hook(hold) and None)
    for _ in range(3):
        sums.clear()
        ddp(torch.ones(2, 600) * rank).sum().backward()
        assert len(sums) == 2
    assert travelled == [True] * 3


class Branches(nn.Module):
    """Which of its two branches is used depends on the call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = make_model(1), make_model(2)

    def forward(self, inputs: torch.Tensor, use_second: bool) -> torch.Tensor:
        return self.second(inputs) if use_second else self.first(inputs)


@pytest.mark.on_ranks(2, 3)
def test_unused_parameters(rank, size):
    """In step 1 nobody uses the second branch; in step 2 only the last rank does."""
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    alone = Branches()
    (inputs, _), *_ = batches()
    for users in ([], [size - 1]):
        ddp.zero_grad()
        alone.zero_grad()
        ddp(share(inputs, rank, size), rank in users).sum().backward()
        for other in range(size):
            (alone(share(inputs, other, size), other in users).sum() / size).backward()
        for got, want in zip(ddp.module.parameters(), alone.parameters(), strict=True):
            if want.grad is None:
                assert got.grad is None or not got.grad.any()
            else:
                torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.on_ranks(2, 3)
def test_no_sync_accumulates(rank, size):
    ddp = DistributedDataParallel(make_model())
    data = shares(rank, size)
    with ddp.no_sync():
        for inputs, targets in data[:-1]:
            nn.functional.mse_loss(ddp(inputs), targets).backward()
    own = make_model()
    for inputs, targets in data[:-1]:
        nn.functional.mse_loss(own(inputs), targets).backward()
    for got, want in zip(ddp.module.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)  # so far every rank for itself
    nn.functional.mse_loss(ddp(data[-1][0]), data[-1][1]).backward()
    whole = make_model()
    for inputs, targets in batches():
        nn.functional.mse_loss(whole(inputs), targets).backward()
    for got, want in zip(ddp.module.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.on_ranks(2, 3)
def test_join_with_uneven_inputs(rank, size):
    """Rank r has r + 1 batches. A rank that has run out counts as zero; the divisor stays the number of ranks."""
    ddp = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = shares(rank, size)[: rank + 1]
    with ddp.join():
        for inputs, targets in data:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            optimizer.step()
    alone = make_model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(size):
        optimizer.zero_grad()
        for other in range(step, size):
            inputs, targets = shares(other, size)[step]
            (nn.functional.mse_loss(alone(inputs), targets) / size).backward()
        optimizer.step()
    assert_same_parameters(ddp.module, alone)


def own_allreduce_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = group.allreduce([bucket.buffer()]).get_future()
    return future.then(lambda done: done.value()[0] / group.size())


HOOKS = {
    "own": (own_allreduce_hook, 1e-9),
    "allreduce": (default_hooks.allreduce_hook, 1e-9),
    "fp16": (default_hooks.fp16_compress_hook, 3e-3),
}


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("name", HOOKS)
def test_communication_hooks(rank, size, name):
    hook, tolerance = HOOKS[name]
    ddp = DistributedDataParallel(make_model(), bucket_cap_mb=0.001)
    group = dist.distributed_c10d._get_default_group()
    ddp.register_comm_hook(group if hook is own_allreduce_hook else None, hook)
    train(ddp, shares(rank, size))
    assert_same_parameters(ddp.module, single(), tolerance)


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("buckets", ["one bucket", "several buckets"])
def test_power_sgd_hook_keeps_ranks_together(rank, size, buckets):
    """Which begins collectives in callbacks: of several buckets, beside those that the backward pass begins."""
    several = buckets == "several buckets"
    with settings.override(async_ops="off" if several else "on"):
        group = dist.new_group()
    ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.001 if several else 25)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(ddp, shares(rank, size))
    parameters = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    everyone = [torch.empty_like(parameters) for _ in range(size)]
    dist.all_gather(everyone, parameters)
    assert all(torch.equal(everyone[0], other) for other in everyone)
    assert not torch.equal(parameters, torch.cat([p.detach().flatten() for p in make_model().parameters()]))


@pytest.mark.on_ranks(4)
def test_post_local_sgd_averages_in_subgroups_and_then_over_all(rank, size):
    ddp = DistributedDataParallel(make_model())
    pairs, _ = dist.new_subgroups(2)
    ddp.register_comm_hook(PostLocalSGDState(None, pairs, start_localSGD_iter=1), post_localSGD_hook)
    train(ddp, shares(rank, size))
    parameters = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    everyone = [torch.empty_like(parameters) for _ in range(size)]
    dist.all_gather(everyone, parameters)
    assert torch.equal(everyone[0], everyone[1]) and torch.equal(everyone[2], everyone[3])
    assert not torch.equal(everyone[0], everyone[2]), "pairs see different batches after the first step"
    PeriodicModelAverager(period=2).average_parameters(ddp.parameters())
    averaged = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    torch.testing.assert_close(averaged, torch.stack(everyone).mean(0))


@pytest.mark.on_ranks(2)
def test_buffers_are_broadcast(rank, size):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).double()
    ddp = DistributedDataParallel(model)
    for inputs, _ in shares(rank, size):
        ddp(inputs).sum().backward()
    ddp(shares(rank, size)[0][0])
    mean = model[1].running_mean.clone()
    everyone = [torch.empty_like(mean) for _ in range(size)]
    dist.all_gather(everyone, mean)
    assert model[1].num_batches_tracked == 5 and all(other.any() for other in everyone)


@pytest.mark.on_ranks(3, fresh=True)
def test_a_parameter_that_differs_in_shape_is_found_at_once(rank, size):
    model = nn.Linear(5, 3 + (rank == 1))
    if rank == 1:
        with pytest.raises(RuntimeError, match="params.0. in this process with sizes .* not to match"):
            DistributedDataParallel(model)
        dist.destroy_process_group()
    else:
        # The short broadcasts in between need nothing from rank 1; the gradients do.
        with pytest.raises(dist.DistBackendError, match="rank 1 .* left the group"):
            ddp = DistributedDataParallel(model)
            ddp(torch.ones(2, 5)).sum().backward()


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("overlap", [False, True])
def test_zero_redundancy_optimizer(rank, size, overlap):
    ddp = DistributedDataParallel(make_model(), gradient_as_bucket_view=overlap)

    def make(parameters, lr):
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr, parameters_as_bucket_view=overlap)

    train(ddp, shares(rank, size), make)
    assert_same_parameters(ddp.module, single(make_optimizer=torch.optim.Adam))


@pytest.mark.on_ranks(2)
def test_zero_redundancy_optimizer_collects_its_state_and_joins(rank, size):
    ddp = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.1)
    with Join([ddp, optimizer]):
        for inputs, targets in shares(rank, size)[: 2 + rank]:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(ddp.parameters()))
    dist.barrier()
