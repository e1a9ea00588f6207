"""bcast_compressed with torch groups, and dist.broadcast made compressed by pg_options or the environment."""

import datetime
import os

import pytest
import torch
import torch.distributed as dist
from compress_data import (
    EXACT,
    FLOATS,
    LOSSY,
    array_of,
    assert_same_bits,
    assert_within,
    codec_rows,
    hostile,
    takes,
    words_of,
)
from compress_data import weights as make_weights
from data import MOVED_DTYPES, assert_same, values
from rank_process import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import assert_same_parameters, batches, make_model, shares, train

import accdp_comm
from accdp_comm import MismatchError, Options, UsageError, WeightSync, bcast_compressed, relative, settings

ROWS = {row["name"]: row for row in codec_rows()}
# By torch's and by our own names; what torch has not got is left out.
DTYPES = [name for name in MOVED_DTYPES if not name.startswith("float8")]


def calls_of(op: str) -> int:
    """How many of an operation this process has done since the last reset."""
    return {row["op"]: row["calls"] for row in accdp_comm.stats()}.get(op, 0)


def tensor_of(words, name: str) -> torch.Tensor:
    made = array_of(words, name)
    return made if isinstance(made, torch.Tensor) else torch.from_numpy(made)


def same_everywhere(*tensors: torch.Tensor, group=None) -> None:
    """All ranks have the same bits, the root too."""
    for tensor in tensors:
        mine = tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, mine.clone(), group=group)
        for other in everyone:
            assert torch.equal(other, everyone[0])


# -- bcast_compressed ------------------------------------------------------------------------------------------------


@pytest.mark.on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
def test_default_group(rank, size, codec):
    for name in DTYPES:
        for count in (0, 1, 5000, 300_001):
            root = count % size
            sent = hostile(name, count) if count < 5000 else make_weights(name, count)
            tensor = tensor_of(sent if rank == root else sent ^ 1, name)
            result = bcast_compressed(tensor, root, codec=codec)
            assert_same_bits(tensor, sent, f"{codec}, {count} {name} from {root}")
            assert result.logical_bytes == sent.nbytes
            if size > 1 and codec in EXACT and count > 5000 and takes(ROWS[codec], name):
                assert result.codec == codec and result.wire_bytes < sent.nbytes, str(result)


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("name", MOVED_DTYPES)
def test_every_datatype(rank, size, name):
    """float8 too, which has no codec of its own and goes as bytes."""
    sent = [values(other, (50, 70), MOVED_DTYPES[name]) for other in range(size)]
    for root in range(size):
        tensor = sent[rank].clone()
        bcast_compressed(tensor, root, codec="zstd")
        assert_same(tensor, sent[root])


@pytest.mark.on_ranks(4)
def test_subgroup(rank, size):
    """Roots count in the group, whose order need not be the world's."""
    group = dist.new_group([3, 1, 2])
    ranks = dist.get_process_group_ranks(group) if rank else []
    if rank:
        for root in range(3):
            tensor = torch.full((4000,), float(rank))
            result = bcast_compressed(tensor, root, group=group, codec="zstd")
            assert (tensor == ranks[root]).all() and result.logical_bytes == 16_000
    else:
        with pytest.raises((UsageError, ValueError, TypeError, AttributeError)):
            bcast_compressed(torch.ones(1), group=group)
    tensor = torch.full((4000,), rank)
    bcast_compressed(tensor, 2)
    assert (tensor == 2).all()


@pytest.mark.on_ranks(2, fresh=True)
def test_a_group_of_another_backend(rank, size):
    beside = dist.new_group(backend="gloo")
    with pytest.raises(UsageError, match="group: its backend is gloo, expected accdp, or a Communicator"):
        bcast_compressed(torch.ones(1), group=beside)


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
def test_state_dict(rank, size, codec):
    """As one stream, with its counters; the model's own memory is written."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Embedding(100, 8).to(torch.bfloat16))
    model[1].num_batches_tracked += rank * 7
    torch.manual_seed(0)
    wanted = nn.Sequential(nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Embedding(100, 8).to(torch.bfloat16))
    accdp_comm.reset_stats()
    state = model.state_dict()
    result = bcast_compressed(state, codec=codec)
    assert calls_of("bcast_compressed") == 1
    assert result.logical_bytes == sum(x.nbytes for x in state.values())
    for name, tensor in wanted.state_dict().items():
        assert_same(model.state_dict()[name], tensor)
    same_everywhere(*model.state_dict().values())
    # Lists of parameters are tensors like others, although autograd watches them.
    with torch.no_grad():
        model[0].weight += rank
    bcast_compressed(list(model.parameters()), size - 1, codec=codec)
    assert model[0].weight.requires_grad and model[0].weight.is_leaf
    same_everywhere(*model.parameters())


@pytest.mark.on_ranks(2, 3)
def test_lists_with_reference_and_bound(rank, size):
    old = [make_weights(name, 3000) for name in FLOATS]
    new = [make_weights(name, 3000, 1) for name in FLOATS]
    references = [tensor_of(words, name) for words, name in zip(old, FLOATS, strict=True)]
    mine = [tensor_of(new[i], name) for i, name in enumerate(FLOATS)] if rank == 0 else references
    bcast_compressed(mine, reference=references, codec="zstd")
    for i, name in enumerate(FLOATS):
        assert_same_bits(mine[i], new[i], name)
    for codec in ("auto", *LOSSY):
        mine = [tensor_of(new[i] if rank == 0 else old[i], name) for i, name in enumerate(FLOATS)]
        bcast_compressed(mine, codec=codec, error_bound=1e-3)
        for i, name in enumerate(FLOATS):
            assert_within(words_of(mine[i]), new[i], name, 1e-3, f"{codec}, {name}")
            if rank == 0:
                assert_same_bits(mine[i], new[i], f"root's own {name}")


@pytest.mark.on_ranks(2)
def test_numpy_arrays_over_a_torch_group(rank, size):
    import numpy as np

    record = np.dtype([("id", "u1"), ("value", "<f8")])
    for sent in (
        np.arange(3000.0),
        np.arange(99, dtype=np.uint16),
        np.array([(1, 2.5)] * 40, record),
        np.full(9, "text"),
    ):
        x = sent.copy() if rank == 0 else np.zeros_like(sent)
        x.flags.writeable = rank != 0
        bcast_compressed(x, codec="zstd", reference=np.zeros_like(sent) if sent.dtype.kind in "fu" else None)
        assert (x == sent).all(), sent.dtype


@pytest.mark.on_ranks(2, 3)
def test_async_keeps_its_place_among_other_collectives(rank, size):
    for step in range(10):
        tensors = [torch.full((20_000,), float(step if rank == 0 else -1)) for _ in range(3)]
        total = torch.ones(20_000)
        first = bcast_compressed(tensors[0], codec="zstd", async_op=True)
        summed = dist.all_reduce(total, async_op=True)
        second = bcast_compressed(tensors[1:], codec="none", async_op=True)
        third = dist.broadcast(tensors[0], size - 1, async_op=True)  # of what the first one brought
        results = [second.wait(), first.wait()]
        summed.wait()
        third.wait()
        assert first.is_completed() and second.is_completed()
        assert all((tensor == step).all() for tensor in tensors) and (total == size).all()
        assert [result.logical_bytes for result in results] == [160_000, 80_000]
        assert first.wait() == results[1]  # as often as one likes
        dist.barrier()


@pytest.mark.on_ranks(2, fresh=True)
def test_async_failure_is_told_by_wait(rank, size):
    work = bcast_compressed(torch.ones(300 + rank), async_op=True)
    with pytest.raises((MismatchError, dist.DistBackendError), match="disagree.* rank 1 "):
        work.wait()


@pytest.mark.on_ranks(3, fresh=True)
@pytest.mark.parametrize("what", ["codec", "bound", "reference", "structure", "datatype"])
def test_disagreement(rank, size, what):
    tensor, before = torch.full((3000,), float(rank)), torch.full((3000,), float(rank))
    odd = rank == 1
    call = {
        "codec": lambda: bcast_compressed(tensor, codec="zhuff" if odd else "zstd"),
        "bound": lambda: bcast_compressed(tensor, error_bound=0.1 if odd else None),
        "reference": lambda: bcast_compressed(tensor, reference=torch.full((3000,), 1.0 + odd)),
        "structure": lambda: bcast_compressed([tensor] if odd else {"w": tensor}),
        "datatype": lambda: bcast_compressed(tensor.view(torch.int32) if odd else tensor),
    }[what]
    with pytest.raises((MismatchError, dist.DistBackendError), match="disagree.* rank 1 "):
        call()
    assert torch.equal(tensor, before)


@pytest.mark.on_ranks(2, 3)
def test_weight_sync(rank, size):
    torch.manual_seed(rank)
    model = nn.Linear(300, 200).to(torch.bfloat16)
    state = model.state_dict()
    sync = WeightSync(state, size - 1, codec="zstd")
    full = sync.sync()
    same_everywhere(*state.values())
    for _ in range(3):
        if rank == size - 1:
            with torch.no_grad():
                model.weight[::50] *= 1.01
        small = sync.sync()
        same_everywhere(*state.values())
        assert small.wire_bytes < 0.5 * full.wire_bytes
    if rank == 0:
        sync = WeightSync(state, size - 1, codec="zstd")  # comes back without a memory
    assert sync.sync().wire_bytes > 0.9 * full.wire_bytes
    same_everywhere(*state.values())
    assert sync.sync().wire_bytes < 0.5 * full.wire_bytes


# -- pg_options ------------------------------------------------------------------------------------------------------


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
def test_broadcast_with_options(rank, size, codec):
    group = dist.new_group(pg_options=Options(codec=codec))
    for name in MOVED_DTYPES:
        sent = [values(other, (50, 70), MOVED_DTYPES[name]) for other in range(size)]
        for root in range(size):
            tensor = sent[rank].clone()
            accdp_comm.reset_stats()
            dist.broadcast(tensor, root, group=group)
            assert_same(tensor, sent[root])
            assert (calls_of("bcast_compressed"), calls_of("bcast")) == ((0, 1) if codec == "none" else (1, 0))
    # What is no contiguous tensor goes through a copy, as always.
    base = torch.arange(6000.0).reshape(60, 100) if rank == 0 else torch.zeros(60, 100)
    dist.broadcast(base.t()[::2], 0, group=group)
    wanted = torch.zeros(60, 100)
    wanted.t()[::2] = torch.arange(6000.0).reshape(60, 100).t()[::2]
    assert torch.equal(base, torch.arange(6000.0).reshape(60, 100) if rank == 0 else wanted)


@pytest.mark.on_ranks(2, fresh=True)
def test_broadcast_of_the_default_group_with_options(rank, size, tmp_path):
    dist.destroy_process_group()
    join(rank, size, str(tmp_path / "store"), pg_options=Options(codec="zstd", chunk_bytes=8192))
    accdp_comm.reset_stats()
    tensor = torch.full((30_000,), float(rank))
    dist.broadcast(tensor, 1)
    assert (tensor == 1).all() and calls_of("bcast_compressed") == 1
    # Groups made without options have the environment's, which says nothing.
    dist.broadcast(tensor, 0, group=dist.new_group())
    assert calls_of("bcast") == 1
    # A part of this group is like it.
    accdp_comm.reset_stats()
    world = dist.distributed_c10d._get_default_group()  # dist.split_group() itself wants an accelerator
    part = world.split_group([0, 1], group_name="a part", timeout=datetime.timedelta(seconds=30))
    options = dist.BroadcastOptions()
    options.rootRank = 0
    part.broadcast([tensor], options).wait()
    assert (calls_of("bcast_compressed"), calls_of("bcast")) == (1, 0)


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("error_bound", [1e-3, relative(0.01)], ids=["absolute", "relative"])
@pytest.mark.parametrize("codec", ["auto", *LOSSY])
def test_replicas_are_alike_with_a_bound(rank, size, codec, error_bound):
    """Root takes what the others get."""
    group = dist.new_group(pg_options=Options(codec=codec, error_bound=error_bound))
    for name in FLOATS:
        for make in (make_weights, hostile):
            for root in range(size):
                sent = make(name, 50_000, root)
                tensor = tensor_of(sent if rank == root else sent ^ 1, name)
                dist.broadcast(tensor, root, group=group)
                same_everywhere(tensor)
                if error_bound == 1e-3:
                    assert_within(words_of(tensor), sent, name, 1e-3, f"{codec}, {name} from {root}")
                if codec in LOSSY and takes(ROWS[codec], name) and make is make_weights and name == "float32":
                    changed = tensor_of(sent, name) != tensor
                    assert changed.any() or codec == "bitcomp_lossy"
    counters = torch.arange(5000) * (rank == 0)
    dist.broadcast(counters, 0, group=group)
    assert torch.equal(counters, torch.arange(5000))


class Net(nn.Module):
    """Parameters and buffers of several datatypes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = make_model(seed)
        self.norm = nn.BatchNorm1d(3).double()
        self.register_buffer("steps", torch.full((), seed))
        self.register_buffer("brief", torch.full((100,), seed / 10, dtype=torch.bfloat16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.body(inputs))


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("codec", ["auto", *EXACT])
def test_ddp_begins_with_identical_replicas(rank, size, codec):
    group = dist.new_group(pg_options=Options(codec=codec))
    accdp_comm.reset_stats()
    ddp = DistributedDataParallel(Net(seed=rank), process_group=group)
    assert calls_of("bcast_compressed") > 0 and calls_of("bcast") == 0
    assert_same_parameters(ddp.module, Net(seed=0), tolerance=0)
    same_everywhere(*ddp.module.state_dict().values())
    before = calls_of("bcast_compressed")
    ddp(torch.ones(4, 5, dtype=torch.float64)).sum().backward()
    ddp(torch.ones(4, 5, dtype=torch.float64))  # sends the buffers that the first one changed
    assert calls_of("bcast_compressed") > before


@pytest.mark.on_ranks(2)
def test_ddp_trains_as_without(rank, size):
    group = dist.new_group(pg_options=Options(codec="zstd"))
    ddp = DistributedDataParallel(make_model(seed=rank), process_group=group)
    train(ddp, shares(rank, size))
    assert_same_parameters(ddp.module, train(make_model(), batches()))


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("codec", LOSSY)
def test_ddp_begins_with_identical_replicas_within_a_bound(rank, size, codec):
    group = dist.new_group(pg_options=Options(codec=codec, error_bound=1e-3))
    model = Net(seed=rank).float()
    ddp = DistributedDataParallel(model, process_group=group)
    same_everywhere(*ddp.module.state_dict().values())
    wanted = Net(seed=0).float().state_dict()
    for name, tensor in ddp.module.state_dict().items():
        if tensor.is_floating_point():
            assert (tensor.double() - wanted[name].double()).abs().max() <= 1e-3, name
        else:
            assert torch.equal(tensor, wanted[name]), name


# -- the environment -------------------------------------------------------------------------------------------------


@pytest.mark.on_ranks(2)
def test_setting(rank, size):
    """ACCDP_CODEC as the process found it is the same row as settings.override; groups made under it have it."""
    with settings.override(codec="zstd"):
        group = dist.new_group()
        chosen = dist.new_group(pg_options=Options(codec="none"))
    accdp_comm.reset_stats()
    tensor = torch.full((3000,), float(rank))
    dist.broadcast(tensor, 1, group=group)
    assert (tensor == 1).all() and calls_of("bcast_compressed") == 1 and calls_of("bcast") == 0
    dist.broadcast(tensor, 0, group=chosen)  # what a script says counts more
    assert calls_of("bcast_compressed") == 1 and calls_of("bcast") == 1


@pytest.mark.parametrize("codec", ["zstd", "auto"])
def test_environment(codec):
    import jobs

    script = (
        "import accdp_comm, torch, torch.distributed as dist; dist.init_process_group('accdp');"
        "x = torch.full((9999,), float(dist.get_rank())); dist.broadcast(x, 1); assert (x == 1).all();"
        "calls = {row['op']: row['calls'] for row in accdp_comm.stats()}; import json, os;"
        "os.write(1, (json.dumps(calls) + chr(10)).encode()); dist.destroy_process_group()"
    )
    command = [*jobs.mpiexec_command(2), os.sys.executable, "-c", script]
    result = jobs.run(command, env={"ACCDP_CODEC": codec})
    assert result.returncode == 0 and len(result.reports) == 2, str(result)
    assert all((calls["bcast_compressed"], calls.get("bcast")) == (1, None) for calls in result.reports), str(result)


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ("gzip", "ACCDP_CODEC=gzip: expected .*zstd"),
        ("qpk", "ACCDP_CODEC=qpk.*lossy"),
    ],
)
def test_wrong_environment(codec, said):
    """Refused by the variable's name when the group is made, not by some broadcast later."""
    import re

    import jobs

    script = "import torch.distributed as dist; dist.init_process_group('accdp'); print('made a group')"
    env = {"ACCDP_CODEC": codec, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port())}
    result = jobs.run([os.sys.executable, "-c", script], env=env | {"RANK": "0", "WORLD_SIZE": "1"})
    assert result.returncode != 0 and "made a group" not in result.stdout, str(result)
    assert re.search(said, result.stderr), str(result)


# -- through MPI -----------------------------------------------------------------------------------------------------

BETWEEN_NODES = """
import json, os, torch, torch.distributed as dist, accdp_comm
from accdp_comm import Options, bcast_compressed
dist.init_process_group("accdp", pg_options=Options(codec="zstd"))
rank, size = dist.get_rank(), dist.get_world_size()
wanted = torch.arange(400_000) // 1000
for root in range(size):
    x = wanted.clone() if rank == root else torch.zeros_like(wanted)
    result = bcast_compressed(x, root, codec="zstd")
    assert torch.equal(x, wanted)
    assert result.algorithm != "flat", str(result)
    assert result.codec == "zstd" or not result.wire_bytes, str(result)  # a rank that the wire does not come to
    x = wanted.clone() if rank == root else torch.zeros_like(wanted)
    dist.broadcast(x, root)
    assert torch.equal(x, wanted)
    old = wanted.float() if rank == root else x.float()
    x = wanted.float() + 1 if rank == root else old
    result = bcast_compressed([x], root, reference=[old], codec="fpk", async_op=True).wait()
    assert torch.equal(x, wanted.float() + 1)
lossy = dist.new_group(pg_options=Options(codec="qpk", error_bound=0.01))
x = torch.randn(100_001, generator=torch.Generator().manual_seed(rank))
dist.broadcast(x, 0, group=lossy)
everyone = [torch.empty_like(x) for _ in range(size)]
dist.all_gather(everyone, x)
assert all(torch.equal(x, other) for other in everyone)
wanted = torch.randn(100_001, generator=torch.Generator().manual_seed(0))
assert (x.double() - wanted.double()).abs().max() <= 0.01
os.write(1, (json.dumps({"rank": rank}) + "\\n").encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("topology", ["2x1", "2x2", "0,1,0", "4x1"])
def test_between_nodes(topology):
    """Nodes that are declared; what is between them goes through MPI."""
    import jobs

    ranks = {"2x1": 2, "0,1,0": 3}.get(topology, 4)
    command = [*jobs.mpiexec_command(ranks), os.sys.executable, "-c", BETWEEN_NODES]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=100)
    assert result.returncode == 0 and len(result.reports) == ranks, str(result)


# -- wrong options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"codec": "gzip"}, "codec=gzip: expected auto, none, .*zstd"),
        ({"codec": "qpk"}, "codec=qpk: expected an error_bound"),
        ({"error_bound": 0}, "error_bound: expected a finite number > 0"),
        ({"error_bound": -0.1}, "error_bound: expected a finite number > 0"),
        ({"error_bound": float("nan")}, "error_bound: expected a finite number > 0"),
        ({"error_bound": "0.1"}, "error_bound: expected a finite number > 0 or relative.number., got '0.1'"),
        ({"chunk_bytes": 5000}, "chunk_bytes=5000: expected 4096 to 16777216, a multiple of 4096"),
        ({"chunk_bytes": 0}, "chunk_bytes=0: expected 4096 to 16777216, a multiple of 4096"),
        ({"chunk_bytes": -1}, "chunk_bytes=-1: expected 4096 to 16777216, a multiple of 4096"),
    ],
    ids=str,
)
def test_wrong_options(options, said):
    """Refused where they are written, before any group is made."""
    with pytest.raises(UsageError, match=said):
        Options(**options)


@pytest.mark.on_ranks(2, fresh=True)
def test_options_of_another_kind(rank, size):
    with pytest.raises(
        (UsageError, ValueError, RuntimeError), match="pg_options is a dict, expected accdp_comm.Options"
    ):
        dist.new_group(pg_options={"codec": "zstd"})


@pytest.mark.on_ranks(2, fresh=True)
def test_options_that_differ(rank, size):
    """Told at the first broadcast at the latest, on all ranks."""
    with pytest.raises((UsageError, MismatchError, dist.DistBackendError), match="disagree|differ|but rank"):
        group = dist.new_group(pg_options=Options(codec="zstd" if rank else "zhuff"))
        dist.broadcast(torch.ones(3000), 0, group=group)
