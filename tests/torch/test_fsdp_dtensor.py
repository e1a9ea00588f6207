"""fully_shard, DTensor and DeviceMesh, functional collectives, torch.compile and checkpoints, all on CPU."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from data import assert_same, values
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training import assert_same_parameters, batches, make_model, shares, train


def sharded(mesh, seed: int = 0) -> nn.Module:
    model = make_model(seed)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def assert_gathered(model: nn.Module, expected: nn.Module) -> None:
    whole = make_model()
    whole.load_state_dict({name: tensor.full_tensor() for name, tensor in model.state_dict().items()})
    assert_same_parameters(whole, expected)


@pytest.mark.on_ranks(1, 2, 3, 4)
def test_fully_shard_equals_training_in_one_process(rank, size):
    model = sharded(init_device_mesh("cpu", (size,)))
    train(model, shares(rank, size), torch.optim.Adam)
    assert isinstance(next(model.parameters()), DTensor)
    assert_gathered(model, train(make_model(), batches(), torch.optim.Adam))


@pytest.mark.on_ranks(4)
def test_hybrid_sharding_over_a_two_dimensional_mesh(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh)
    train(model, shares(rank, size))
    assert_gathered(model, train(make_model(), batches()))


@pytest.mark.on_ranks(4)
def test_device_mesh_and_its_parts(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    for name, expected in (("rows", [rank % 2, rank % 2 + 2]), ("columns", [rank // 2 * 2, rank // 2 * 2 + 1])):
        group = mesh[name].get_group()
        assert dist.get_backend(group) == "accdp" and dist.get_process_group_ranks(group) == expected
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(expected)


@pytest.mark.on_ranks(2, 3, 4)
def test_dtensor_redistributions(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    for rows in (12, 7, 2):  # even, uneven, fewer than some worlds have ranks
        whole = values(0, (rows, 8), torch.float64)
        placements = [Replicate(), Shard(0), Shard(1)]
        for before in placements:
            tensor = distribute_tensor(whole, mesh, [before])
            for after in placements:
                assert_same(tensor.redistribute(placements=[after]).full_tensor(), whole)
        mine = values(rank, (rows, 8), torch.float64)
        total = sum(values(other, (rows, 8), torch.float64) for other in range(size))
        partial = DTensor.from_local(mine, mesh, [Partial()])
        for after in placements:
            assert_same(partial.redistribute(placements=[after]).full_tensor(), total)
    product = distribute_tensor(whole, mesh, [Shard(0)]) @ distribute_tensor(whole.T, mesh, [Replicate()])
    assert_same(product.full_tensor(), whole @ whole.T)


@pytest.mark.on_ranks(2)
def test_tensor_parallel_and_distributed_module(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    (inputs, _), *_ = batches()
    expected = make_model()(inputs)
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(model(inputs), expected)
    copied = distribute_module(make_model(), mesh)
    torch.testing.assert_close(copied(distribute_tensor(inputs, mesh)).full_tensor(), expected)


@pytest.mark.on_ranks(2, 3)
def test_functional_collectives(rank, size):
    group = dist.group.WORLD
    inputs = [values(other, (2 * size, 3), torch.float32) for other in range(size)]
    mine, total = inputs[rank], sum(inputs)
    assert_same(functional.all_reduce(mine, "sum", group) + 0, total)
    assert_same(functional.all_gather_tensor(mine, 0, group) + 0, torch.cat(inputs))
    assert_same(functional.all_gather_tensor(mine, 1, group) + 0, torch.cat(inputs, 1))
    assert_same(functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0, total.chunk(size)[rank])
    assert_same(functional.broadcast(mine, 1, group) + 0, inputs[1])
    exchanged = functional.all_to_all_single(mine, None, None, group) + 0
    assert_same(exchanged, torch.cat([other.chunk(size)[rank] for other in inputs]))
    first, second = functional.all_reduce_coalesced([mine, 2 * mine], "sum", group)
    assert_same(first + 0, total)
    assert_same(second + 0, 2 * total)
    moved = functional.permute_tensor(mine.flatten(), [(r + 1) % size for r in range(size)], group) + 0
    assert_same(moved, inputs[rank - 1].flatten())
    assert_same(mine, inputs[rank])  # functional: the argument is as it was


@pytest.mark.on_ranks(2)
def test_gradients_through_collectives(rank, size):
    tensor = torch.full((3,), rank + 1.0, requires_grad=True)
    gathered = functional.all_gather_tensor_autograd(tensor, 0, dist.group.WORLD)
    (gathered * torch.arange(6.0)).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [2 * (3.0 * rank + i) for i in range(3)]  # of both ranks' losses


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_collectives(rank, size, compiler):
    def step(tensor: torch.Tensor) -> torch.Tensor:
        tensor = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(tensor + 1, 0, dist.group.WORLD).sum(0)

    compiled = torch.compile(step, backend=compiler, fullgraph=True)
    inputs = [values(other, (4, 4), torch.float32) for other in range(size)]
    for _ in range(2):
        assert_same(compiled(inputs[rank]), size * (2 * sum(inputs) + 1).sum(0))


@pytest.mark.on_ranks(2)
def test_compiled_ddp(rank, size):
    ddp = DistributedDataParallel(make_model())
    compiled = torch.compile(ddp, backend="aot_eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for inputs, targets in shares(rank, size):
        optimizer.zero_grad()
        nn.functional.mse_loss(compiled(inputs), targets).backward()
        optimizer.step()
    assert_same_parameters(ddp.module, train(make_model(), batches()))


@pytest.mark.on_ranks(2, 4)
def test_checkpoint_of_a_sharded_model(rank, size, tmp_path):
    mesh = init_device_mesh("cpu", (size,))
    trained, other = train(sharded(mesh), shares(rank, size)), sharded(mesh, seed=5)
    checkpoint.save({"model": get_model_state_dict(trained), "step": 4}, checkpoint_id=str(tmp_path / "saved"))
    state = {"model": get_model_state_dict(other), "step": 0}
    checkpoint.load(state, checkpoint_id=str(tmp_path / "saved"))
    set_model_state_dict(other, state["model"])
    assert state["step"] == 4
    assert_gathered(other, train(make_model(), batches()))


@pytest.mark.on_ranks(2)
def test_checkpoint_saved_in_the_background(rank, size, tmp_path):
    state = {"tensor": torch.full((3,), 1.0), "mine": {f"rank {rank}": torch.tensor([float(rank)])}}
    mixed = dist.new_group(backend="gloo")  # torch saves in the background over a Gloo group of its own choice
    checkpoint.async_save(state, checkpoint_id=str(tmp_path / "saved"), process_group=mixed).result()
    read = {"tensor": torch.zeros(3), "mine": {f"rank {rank}": torch.zeros(1)}}
    checkpoint.load(read, checkpoint_id=str(tmp_path / "saved"))
    assert read["tensor"].tolist() == [1.0] * 3 and read["mine"][f"rank {rank}"].item() == rank


@pytest.mark.on_ranks(2, 3)
def test_pipeline_of_stages(rank, size):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6).double() for _ in range(size)]
    rows = values(0, (8, 6), torch.float64)
    whole = nn.Sequential(*layers)(rows)
    schedule = ScheduleGPipe(PipelineStage(layers[rank], rank, size, torch.device("cpu")), n_microbatches=4)
    result = schedule.step(*([rows] if rank == 0 else []))
    if rank == size - 1:
        torch.testing.assert_close(result, whole)
