"""The communication hook that averages gradients compressed between nodes."""

import copy
import gc
import pickle
import sys
from pathlib import Path

import jobs
import pytest
import torch
import torch.distributed as dist

from accdp_comm import UsageError, relative
from accdp_comm.hooks import _add, compressed_allreduce

CHILD = str(Path(__file__).with_name("hooks_child.py"))


@pytest.mark.parametrize("topology", ["2x1", "2x2"])
def test_between_declared_nodes(topology):
    ranks = 2 if topology == "2x1" else 4
    result = jobs.run(
        [*jobs.mpiexec_command(ranks), sys.executable, CHILD], env={"ACCDP_TOPOLOGY": topology}, timeout=100
    )
    assert result.returncode == 0 and len(result.reports) == ranks, str(result)


class Bucket:
    """What the hook asks of DDP's buckets."""

    def __init__(self, *parameters):
        self._parameters = parameters

    def parameters(self):
        return list(self._parameters)

    def buffer(self):
        return torch.zeros(sum(parameter.numel() for parameter in self._parameters))


@pytest.mark.on_ranks(1)
def test_what_was_left_out_follows_its_parameter_into_other_buckets(rank, size):
    """DDP sorts parameters into other buckets after the first step; and what no bucket has any more is not kept."""
    hook = compressed_allreduce(relative(0.1))
    one, two, three = torch.zeros(2), torch.zeros(3), torch.zeros(1)
    first = hook._residual_of(Bucket(one, two), [2, 3])
    first.copy_(torch.arange(5.0))
    hook._residual_of(Bucket(three), [1]).fill_(9)
    moved = hook._residual_of(Bucket(two, three), [3, 1])
    assert moved.tolist() == [2, 3, 4, 9]
    assert hook._residual_of(Bucket(one), [2]).tolist() == [0, 1]
    assert hook._residual_of(Bucket(two, three), [3, 1]) is moved
    assert len(hook._buckets) == 2


@pytest.mark.on_ranks(1)
def test_what_was_left_out_goes_into_checkpoints(rank, size):
    model = torch.nn.Linear(3, 2)
    hook = compressed_allreduce(relative(0.1))
    bucket, counts = Bucket(model.weight, model.bias), [6, 2]
    assert hook.state_dict(model) == {}
    hook._residual_of(bucket, counts).copy_(torch.arange(8.0))
    saved = hook.state_dict(model)
    assert saved["weight"].tolist() == [0, 1, 2, 3, 4, 5] and saved["bias"].tolist() == [6, 7]
    hook.load_state_dict(model, {})
    assert hook._residual_of(bucket, counts).tolist() == [0] * 8
    hook.load_state_dict(model, saved)
    assert hook._residual_of(bucket, counts).tolist() == list(range(8))
    other = compressed_allreduce(relative(0.1))
    with pytest.raises(UsageError, match="state\\['bias'\\]: expected no such name, got 2 of torch.float32"):
        other.load_state_dict(torch.nn.Linear(3, 2, bias=False), saved)
    with pytest.raises(UsageError, match="state\\['weight'\\]: expected a tensor of 9 floats, got 6 of torch.float32"):
        other.load_state_dict(torch.nn.Linear(3, 3), saved)
    with pytest.raises(UsageError, match="state\\['weight'\\]: expected a tensor of 9 floats, got a NoneType"):
        other.load_state_dict(torch.nn.Linear(3, 3), {"weight": None})
    with pytest.raises(UsageError, match="state\\['weight'\\]: expected a tensor of 9 floats, got 9 of torch.int64"):
        other.load_state_dict(torch.nn.Linear(3, 3), {"weight": torch.zeros(9, dtype=torch.int64)})


@pytest.mark.on_ranks(1)
@pytest.mark.parametrize("datatype", [torch.float32, torch.complex64])
def test_checkpoints_of_any_memory_format(rank, size, datatype):
    """A bucket holds what is dense as it lies; what is saved is in the order of elements, and fits every format."""
    gradient = torch.arange(1, 2 * 3 * 2 * 2 + 1).reshape(2, 3, 2, 2).to(datatype)
    if datatype.is_complex:
        gradient = gradient * complex(1, -1)
    formats = {}
    for name in ("contiguous_format", "channels_last"):
        model = torch.nn.Conv2d(3, 2, 2, bias=False, dtype=datatype).to(memory_format=getattr(torch, name))
        lies = gradient.to(memory_format=getattr(torch, name)).as_strided((24,), (1,))
        formats[name] = model, torch.view_as_real(lies).flatten() if datatype.is_complex else lies
    gaps = torch.nn.Module()
    gaps.weight = torch.nn.Parameter(torch.zeros(2, 3, 2, 4, dtype=datatype)[..., ::2])
    formats["gaps"] = gaps, formats["contiguous_format"][1]
    for model, lies in formats.values():
        hook = compressed_allreduce(relative(0.1))
        hook._residual_of(Bucket(model.weight), [len(lies)]).copy_(lies)
        saved = hook.state_dict(model)
        assert torch.equal(saved["weight"], formats["contiguous_format"][1])
        for other, wanted in formats.values():
            hook.load_state_dict(other, saved)
            assert torch.equal(hook._residual_of(Bucket(other.weight), [len(wanted)]), wanted)


@pytest.mark.on_ranks(1)
def test_models_that_are_gone_leave_nothing(rank, size):
    hook = compressed_allreduce(relative(0.1))
    other = torch.nn.Linear(3, 2)
    for parameter in other.parameters():
        hook._residual_of(Bucket(parameter), [parameter.numel()])
    for _ in range(5):
        model = torch.nn.Linear(3, 2)
        for parameter in model.parameters():
            hook._residual_of(Bucket(parameter), [parameter.numel()]).fill_(1)
        assert len(hook._buckets) == len(hook._left) == 4
        del model, parameter
        gc.collect()
    assert len(hook._left) == 2


@pytest.mark.on_ranks(1)
@pytest.mark.parametrize("datatype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rounding_what_is_added_loses_nothing(rank, size, datatype):
    gradients = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(datatype)
    residual = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * 1e-4
    wanted = gradients.double() + residual.double()
    rounded = _add(gradients, residual)
    kept = gradients.double() + (0 if rounded is None else rounded.double())
    assert torch.allclose(kept, wanted, rtol=1e-6, atol=1e-7)
    assert (rounded is None) == (datatype in (torch.float32, torch.float64))


@pytest.mark.on_ranks(1)
@pytest.mark.parametrize("datatype", [torch.bfloat16, torch.float16])
def test_what_is_not_finite_is_not_left_for_the_next_step(rank, size, datatype):
    inf = float("inf")
    residual = torch.tensor([1e-4, 1e-4, 1e-4, 1e-4, 70000.0])
    gradients = torch.tensor([1.0, inf, -inf, inf - inf, 1.0], dtype=datatype)
    rounded = _add(gradients, residual)
    assert rounded is not None and rounded.isfinite().all() and rounded[0] != 0
    assert gradients.isfinite().tolist() == [True, False, False, False, datatype == torch.bfloat16]


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("bound", [None, relative(0.01)])
def test_complex_parameters(rank, size, bound):
    """Buckets hold a complex number as two floats."""
    model = torch.nn.Linear(300, 2, bias=False, dtype=torch.complex64)
    with torch.no_grad():
        model.weight.fill_(1)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    hook = compressed_allreduce(bound)
    parallel.register_comm_hook(None, hook)
    for _ in range(2):
        model.zero_grad()
        parallel(torch.full((1, 300), complex(rank, 1), dtype=torch.complex64)).real.sum().backward()
        assert torch.allclose(model.weight.grad, torch.tensor(complex(0.5, -1)))
    saved = hook.state_dict(model)
    assert [left.numel() for left in saved.values()] == ([] if bound is None else [1200])
    hook.load_state_dict(model, saved)


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
def test_models_with_the_hook_can_be_copied(rank, size, way):
    """As averages of weights do, and launchers that hand models on."""
    copied = {"pickle": lambda one: pickle.loads(pickle.dumps(one))}.get(way, copy.deepcopy)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    hook = compressed_allreduce(relative(0.1), group=dist.group.WORLD)
    model.register_comm_hook(None, hook)
    model(torch.full((1, 3), rank + 1.0)).backward()
    other = copied(model)
    other_hook = copy.copy(hook) if way == "copy" else copied(hook)
    assert other_hook._group is (None if way == "pickle" else dist.group.WORLD)
    assert other_hook.state_dict(model.module) == {}
    other.zero_grad()
    other(torch.full((1, 3), rank + 1.0)).backward()
    gradients = [parameter.grad for parameter in other.parameters()]
    assert torch.cat([gradient.flatten() for gradient in gradients]).tolist() == [1.5, 1.5, 1.5, 1.0]
    bucket = Bucket(*other.parameters())
    other_hook(None, bucket).wait()
    assert other_hook.last is not None and hook.last is not other_hook.last


@pytest.mark.on_ranks(2)
def test_wrong_hooks(rank, size):
    with pytest.raises(UsageError, match="codec=best"):
        compressed_allreduce(codec="best")
    with pytest.raises(UsageError, match="error_bound: expected a finite number > 0"):
        compressed_allreduce(-1.0)
    with pytest.raises(UsageError, match="codec=qpk: expected an error_bound, because it is lossy"):
        compressed_allreduce(codec="qpk")  # here, not in the first backward pass
    with pytest.raises(UsageError, match="group is a str: expected a torch process group or a Communicator"):
        compressed_allreduce(group="world")
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(UsageError, match="its backend is gloo, expected accdp"):
        compressed_allreduce(group=gloo)


def average_with(hook, model, *inputs):
    """The gradients, by parameter, that the hook made of one step."""
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel.register_comm_hook(None, hook)
    parallel(*inputs).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.on_ranks(2, fresh=True)
def test_a_hook_outlives_the_default_group(rank, size, tmp_path):
    hook, model = compressed_allreduce(relative(0.01)), torch.nn.Linear(2, 2)
    for turn in range(2):
        model.zero_grad()
        assert average_with(hook, model, torch.full((1, 2), rank + 1.0))[1].tolist() == [1, 1]
        if turn == 0:
            dist.destroy_process_group()
            dist.init_process_group("accdp", init_method=f"file://{tmp_path}/store", rank=rank, world_size=size)


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("bound", [None, relative(0.01)])
def test_sparse_gradients_are_averaged_as_without_a_hook(rank, size, bound):
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1)
    hook = compressed_allreduce(bound)
    for _ in range(2):
        model.zero_grad()
        sparse, _ = average_with(hook, model, torch.tensor([1, 2 + rank]))
        assert sparse.is_sparse and sparse.to_dense()[:, 0].tolist() == [0, 1, 0.5, 0.5, 0, 0, 0, 0, 0, 0]
