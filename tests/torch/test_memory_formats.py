"""Compressed operations on tensors whose elements lie in another order than C's, as those of a channels_last model."""

import contextlib

import pytest
import torch
from compress_group import same_everywhere
from torch import nn

from accdp_comm import Communicator, MismatchError, UsageError, WeightSync, allreduce_compressed, bcast_compressed
from accdp_comm.buffers import memory_order


def model_of(seed: int, memory_format: torch.memory_format = torch.channels_last) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 32, (1, 3))).to(
        memory_format=memory_format
    )


@contextlib.contextmanager
def group_of(kind: str):
    """torch's default group, or a Communicator."""
    if kind == "torch":
        yield None
    else:
        with Communicator() as comm:
            yield comm


BOTH = pytest.mark.parametrize("kind", ["torch", "communicator"])


@pytest.mark.on_ranks(1, 2, 3)
@BOTH
def test_broadcast(rank, size, kind):
    with group_of(kind) as group:
        root, wanted = size - 1, model_of(size - 1).state_dict()
        model = model_of(rank)
        state = model.state_dict()
        assert not state["0.weight"].is_contiguous()
        result = bcast_compressed(state, root, group=group)
        assert result.logical_bytes == sum(x.nbytes for x in state.values())
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, wanted[name]) and tensor.stride() == wanted[name].stride(), name

        torch.manual_seed(rank)
        old = {name: tensor.clone() for name, tensor in state.items()}
        if rank == root:
            with torch.no_grad():
                model[0].weight += torch.randn_like(model[0].weight)
        bcast_compressed(
            list(model.parameters()), root, group=group, reference=[old[n] for n, _ in model.named_parameters()]
        )
        same_everywhere(*model.parameters())
        assert not torch.equal(model[0].weight, wanted["0.weight"])
        # Of parameters that are watched by autograd the places stay.
        assert model[0].weight.is_leaf and model[0].weight.requires_grad

        weight = torch.randn(8, 5, 7, generator=torch.Generator().manual_seed(rank)).permute(2, 0, 1)
        sent = torch.randn(8, 5, 7, generator=torch.Generator().manual_seed(root)).permute(2, 0, 1)
        bcast_compressed(weight, root, group=group, error_bound=0.01, async_op=True).wait()
        assert (weight - sent).abs().max() <= 0.01


@pytest.mark.on_ranks(2, 3)
@BOTH
def test_allreduce(rank, size, kind):
    with group_of(kind) as group:
        every = [model_of(each)[0].weight.detach() for each in range(size)]
        total = torch.stack(every).sum(0)
        mine, left = every[rank], torch.full_like(every[0], 9.0)
        assert left.stride() == mine.stride() != mine.contiguous().stride()
        allreduce_compressed(mine, group=group, error_bound=0.001, residual=left)
        assert (mine - total).abs().max() <= 0.001 + 1e-6 and left.abs().max() <= 0.001
        allreduce_compressed(mine, "max", group=group)
        same_everywhere(mine)


@pytest.mark.on_ranks(2)
@BOTH
def test_weight_sync(rank, size, kind):
    with group_of(kind) as group:
        state = dict(model_of(rank).state_dict())
        sync = WeightSync(state, codec="zstd", group=group)
        full = sync.sync()

        def step() -> int:
            if rank == 0:
                state["0.weight"][::8] *= 1.01
            result = sync.sync()
            same_everywhere(*state.values())
            return result.wire_bytes

        assert step() < 0.5 * full.wire_bytes and step() < 0.5 * full.wire_bytes
        # Of tensors in another format there is no version before.
        state.update({name: tensor.contiguous() for name, tensor in state.items()})
        assert step() > 0.9 * full.wire_bytes
        assert step() < 0.5 * full.wire_bytes


@pytest.mark.on_ranks(2)
@BOTH
def test_all_ranks_have_the_same_format(rank, size, kind):
    with group_of(kind) as group:
        odd = rank == 1
        model = model_of(rank, torch.contiguous_format if odd else torch.channels_last)
        before = model[0].weight.detach().clone()
        for call in (
            lambda: bcast_compressed(model.state_dict(), group=group),
            lambda: allreduce_compressed(model[0].weight.detach(), group=group),
        ):
            with pytest.raises(MismatchError):
                call()
            assert torch.equal(model[0].weight, before)


@pytest.mark.on_ranks(1)
def test_what_is_refused(rank, size):
    weight = model_of(0)[0].weight.detach()
    with pytest.raises(UsageError, match=r"reference: expected the memory format of tensor, got another one"):
        bcast_compressed(weight, reference=weight.contiguous())
    with pytest.raises(UsageError, match=r"residual: expected the memory format of tensor, got another one"):
        allreduce_compressed(weight, error_bound=0.1, residual=torch.empty(weight.shape))
    with pytest.raises(UsageError, match=r"tensor is not contiguous"):  # parts are cut in C order
        allreduce_compressed(weight, parts=[weight.numel()])
    for sparse in (torch.zeros(4, 4)[:, :2], torch.zeros(3).expand(2, 3), torch.zeros(8)[::2]):
        assert memory_order(sparse) == ()
        with pytest.raises(UsageError, match="tensor is not contiguous"):
            bcast_compressed(sparse)


def test_order_in_memory():
    assert memory_order(torch.zeros(2, 3, 4, 5)) == ()
    assert memory_order(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
    assert memory_order(torch.zeros(2, 3).t()) == (1, 0)
    assert memory_order(torch.zeros(())) == ()
