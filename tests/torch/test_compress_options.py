"""dist.broadcast made compressed by pg_options or the environment."""

import copy
import datetime
import os
import pickle

import pytest
import torch
import torch.distributed as dist
from compress_data import (
    EXACT,
    FLOATS,
    LOSSY,
    assert_within,
    hostile,
    takes,
    words_of,
)
from compress_data import weights as make_weights
from compress_group import ROWS, calls_of, same_everywhere, tensor_of
from data import MOVED_DTYPES, assert_same, values
from rank_process import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import assert_same_parameters, batches, make_model, shares, train

import accdp_comm
from accdp_comm import MismatchError, Options, UsageError, relative, settings

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
    join(rank, size, str(tmp_path / "store"), pg_options=Options(codec="zstd", chunk_bytes=8192, deterministic=True))
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
    if rank == 0:
        part._get_backend(torch.device("cpu")).set_deterministic(True)
    part.allreduce([tensor]).wait()  # ranks that differ in it disagree: so the other one has it from the group


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("codec", ["auto", *LOSSY])
def test_replicas_are_alike_with_a_bound(rank, size, codec):
    """Root takes what the others get."""
    group = dist.new_group(pg_options=Options(codec=codec, error_bound=1e-3))
    for name in FLOATS:
        for make in (make_weights, hostile):
            for root in range(size):
                sent = make(name, 50_000, root)
                tensor = tensor_of(sent if rank == root else sent ^ 1, name)
                dist.broadcast(tensor, root, group=group)
                same_everywhere(tensor)
                assert_within(words_of(tensor), sent, name, 1e-3, f"{codec}, {name} from {root}")
                if codec in LOSSY and takes(ROWS[codec], name) and make is make_weights and name == "float32":
                    changed = tensor_of(sent, name) != tensor
                    assert changed.any() or codec == "bitcomp_lossy"
    counters = torch.arange(5000) * (rank == 0)
    dist.broadcast(counters, 0, group=group)
    assert torch.equal(counters, torch.arange(5000))
    # What is no contiguous tensor takes the others' values on root, too.
    base = torch.linspace(0, 1 + rank, 50_000).reshape(200, 250)
    dist.broadcast(base.t(), 0, group=group)
    same_everywhere(base)


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


@pytest.mark.on_ranks(2)
def test_root_may_send_integers_whose_memory_is_shared(rank, size):
    """A bound is none to them; of floats root takes what the others decode, and has no room for it."""
    group = dist.new_group(pg_options=Options(codec="qpk", error_bound=1e-3))
    x = torch.arange(3).expand(2, 3) if rank == 0 else torch.zeros(2, 3, dtype=torch.int64)
    dist.broadcast(x, 0, group=group)
    assert x.tolist() == [[0, 1, 2]] * 2
    if rank == 0:
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            dist.broadcast(torch.ones(3).expand(2, 3), 0, group=group)


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
        "calls = {row['op']: row['calls'] for row in accdp_comm.stats()}; import json;"
        "print(json.dumps(calls)); dist.destroy_process_group()"
    )
    command = [*jobs.mpiexec_command(2), os.sys.executable, "-c", script]
    result = jobs.run(command, env={"ACCDP_CODEC": codec})
    assert result.returncode == 0 and len(result.reports) == 2, str(result)
    assert all((calls["bcast_compressed"], calls.get("bcast")) == (1, None) for calls in result.reports), str(result)


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ("gzip", "ACCDP_CODEC=gzip: expected .*zstd"),
        ("qpk", "ACCDP_CODEC=qpk: expected a lossless codec"),
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
print(json.dumps({"rank": rank}))
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
        ({"error_bound": relative(0.01)}, r"error_bound=relative\(0.01\): expected an absolute bound"),
        ({"error_bound": "0.1"}, "error_bound: expected a finite number > 0 or relative.number., got '0.1'"),
        ({"chunk_bytes": 5000}, "chunk_bytes=5000: expected 4096 to 16777216, a multiple of 4096"),
        ({"chunk_bytes": 0}, "chunk_bytes=0: expected 4096 to 16777216, a multiple of 4096"),
        ({"chunk_bytes": 1 << 100}, "chunk_bytes=.*: expected 4096 to 16777216"),
        ({"deterministic": "no"}, "deterministic: expected True, False or None, got 'no'"),
        ({"chunk_bytes": -1}, "chunk_bytes=-1: expected 4096 to 16777216, a multiple of 4096"),
    ],
    ids=str,
)
def test_wrong_options(options, said):
    """Refused where they are written, before any group is made."""
    with pytest.raises(UsageError, match=said):
        Options(**options)


@pytest.mark.parametrize("renew", [copy.copy, copy.deepcopy, lambda options: pickle.loads(pickle.dumps(options))])
def test_options_are_copied_with_all_they_hold(renew):
    options = Options(codec="qpk", error_bound=1e-3, chunk_bytes=1 << 16, deterministic=False)
    options._timeout, options.group_name, options.global_ranks_in_group = datetime.timedelta(seconds=7), "g", [0, 2]
    made = renew(options)
    assert made is not options and type(made) is Options and vars(made) == vars(options)
    assert (made._timeout, made.group_name, made.global_ranks_in_group) == (options._timeout, "g", [0, 2])
    assert made.backend == "accdp"


def test_what_options_leave_to_the_settings():
    with settings.override(codec="zhuff"):
        assert Options(deterministic=True).codec == "zhuff"
        assert Options("lz4").codec == "lz4"
        assert Options(error_bound=0.1).codec == Options(chunk_bytes=1 << 16).codec == "auto"
    with settings.override(codec="gzip"), pytest.raises(UsageError, match="ACCDP_CODEC=gzip: expected auto, none"):
        Options()


@pytest.mark.on_ranks(2, fresh=True)
def test_options_of_another_kind(rank, size):
    with pytest.raises(
        (UsageError, ValueError, RuntimeError),
        match="rank [0-9]+ of [0-9]+: pg_options is a dict: expected accdp_comm.Options",
    ):
        dist.new_group(pg_options={"codec": "zstd"})


@pytest.mark.on_ranks(2, fresh=True)
def test_options_that_differ(rank, size):
    """Told at the first broadcast at the latest, on all ranks."""
    with pytest.raises((UsageError, MismatchError, dist.DistBackendError), match="disagree|differ|but rank"):
        group = dist.new_group(pg_options=Options(codec="zstd" if rank else "zhuff"))
        dist.broadcast(torch.ones(3000), 0, group=group)
