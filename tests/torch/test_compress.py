"""bcast_compressed with torch groups."""

import contextlib
import sys
import time
from datetime import timedelta

import jobs
import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from compress_data import (
    EXACT,
    FLOATS,
    LOSSY,
    assert_same_bits,
    assert_within,
    hostile,
    takes,
    words_of,
)
from compress_data import weights as make_weights
from compress_group import DTYPES, ROWS, calls_of, same_everywhere, tensor_of
from data import MOVED_DTYPES, assert_same, values
from torch import nn

import accdp_comm
from accdp_comm import MismatchError, PeerTimeout, UsageError, WeightSync, allreduce_compressed, bcast_compressed


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


GLOO_BY_DEFAULT = """
import torch, torch.distributed as dist
import accdp_comm
from accdp_comm.hooks import compressed_allreduce
try:
    compressed_allreduce()
except accdp_comm.UsageError as error:
    print("told:", error)
dist.init_process_group("gloo")
try:
    compressed_allreduce()
except accdp_comm.UsageError as error:
    print("told:", error)
x = torch.full((1000,), float(dist.get_rank()))
accdp_comm.bcast_compressed(x, 1)
print("got", x.sum().item())
dist.destroy_process_group()
"""


def test_all_ranks_of_the_job_where_the_default_group_is_another_backends(tmp_path):
    """But a model's gradients are not sent apart from its group."""
    script = tmp_path / "gloo.py"
    script.write_text(GLOO_BY_DEFAULT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    result = jobs.run(command, timeout=60.0)
    assert result.returncode == 0 and result.stdout.count("got 1000.0") == 2, str(result)
    assert result.stdout.count("told: group=None: expected a torch process group whose backend is accdp") == 4, str(
        result
    )


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


@pytest.mark.on_ranks(2)
def test_limit_of_a_wait(rank, size):
    """After it the operation goes on; 0 is a limit, infinity is none."""
    dist.barrier()
    if rank == 0:
        for begin in (bcast_compressed, allreduce_compressed):
            work = begin(torch.ones(300_000), async_op=True)  # not before the other rank comes
            for limit in (0, 0.01):
                with pytest.raises(PeerTimeout, match=f"rank 0 of 2: .* not ended within {limit} s .*still under way"):
                    work.wait(limit)
        dist.distributed_c10d._get_default_store().set("limit_of_a_wait", "seen")
        assert work.wait(float("inf")) == work.wait(1e12) == work.wait(60)
    else:
        dist.distributed_c10d._get_default_store().wait(["limit_of_a_wait"])
        for begin in (bcast_compressed, allreduce_compressed):
            begin(torch.ones(300_000))


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "uint16", "bool", "U3", "M8[s]"])
@pytest.mark.filterwarnings("error")
def test_numpy_arrays(rank, size, name):
    """Also of datatypes that torch does not know by NumPy's name, and read-only ones on root."""
    sent = np.arange(5000).astype(getattr(ml_dtypes, name, None) or name)
    got = np.zeros_like(sent)
    sent.flags.writeable = False
    work = bcast_compressed(sent if rank == 0 else got, async_op=True)
    assert work.wait().logical_bytes == sent.nbytes
    assert rank == 0 or got.tobytes() == sent.tobytes()
    if name == "bfloat16":
        mine = np.full(5000, rank + 1, sent.dtype)
        allreduce_compressed(mine)
        assert (mine == 3).all()


@pytest.mark.on_ranks(2, fresh=True)
def test_async_failure_is_told_by_wait(rank, size):
    work = bcast_compressed(torch.ones(300 + rank), async_op=True)
    with pytest.raises(MismatchError, match="disagree.* rank 1 "):
        work.wait()


@pytest.mark.on_ranks(2, fresh=True)
def test_a_rank_that_does_not_synchronize_weights(rank, size):
    """What WeightSync gathers is named by what the caller has called, too."""
    said = r"in WeightSync.sync\(\), whose ranks .* disagree" if rank == 0 else "disagree"
    with pytest.raises(MismatchError if rank == 0 else dist.DistBackendError, match=said):
        WeightSync(torch.ones(3)).sync() if rank == 0 else dist.all_reduce(torch.ones(3))
        dist.barrier()
    with pytest.raises(MismatchError, match="disagree"):  # as of all that is ours, now that the group is broken
        WeightSync(torch.ones(3)).sync()


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
    with pytest.raises(MismatchError, match="disagree.* rank 1 "):
        call()
    assert torch.equal(tensor, before)


@pytest.mark.on_ranks(2, fresh=True)
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("call", [bcast_compressed, allreduce_compressed])
def test_a_rank_that_does_not_come(rank, size, call, async_op):
    """The same classes as from a Communicator; torch's own operations keep torch's."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def whole() -> None:
        started = call(torch.ones(300), async_op=async_op)
        if async_op:
            started.wait()

    whole()
    if rank == 1:
        time.sleep(1.5)
        return
    backend._set_default_timeout(timedelta(seconds=1))
    for _ in range(2):  # the second time the group is broken
        with pytest.raises(PeerTimeout, match=r"_compressed #2 Timed out after 1 s .* rank 1 "):
            whole()
    with pytest.raises(dist.DistBackendError, match="_compressed #2 Timed out"):
        dist.all_reduce(torch.ones(3))


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("mode", ["inference", "default device"])
def test_weight_sync_in_a_mode_of_torch_s(rank, size, mode):
    """Of one round, on one rank: what it keeps there is as usable as ever, and what it tells others is in the host."""
    x = torch.full((3000,), float(rank))
    sync = WeightSync({"x": x}, codec="zstd")
    modes = {"inference": torch.inference_mode(), "default device": torch.device("meta")}
    with contextlib.nullcontext() if rank else modes[mode]:
        sync.sync()
    for step in range(2):
        if rank == 0:
            x[:7] += 1
        sync.sync()
        assert x[:8].tolist() == [step + 1.0] * 7 + [0]


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


@pytest.mark.on_ranks(2)
def test_compiled_code_calls_it_as_it_is(rank, size):
    """A graph ends before it: torch.compile cannot represent what is in a process group."""
    sync = WeightSync(torch.zeros(2))
    calls = [
        lambda x: bcast_compressed(x),
        lambda x: allreduce_compressed(x),
        lambda x: sync.sync(),
        lambda x: accdp_comm.monitored_barrier(),
        lambda x: accdp_comm.measure(),
    ]
    wanted = [0, 1, rank, rank, rank]
    for call, value in zip(calls, wanted, strict=True):

        def step(x, call=call):
            y = x + 0
            call(y)
            return y * 2

        assert torch.compile(step, backend="eager")(torch.full((2,), float(rank))).tolist() == [2 * value] * 2


@pytest.mark.on_ranks(2)
def test_no_member_of_the_group(rank, size):
    group = dist.new_group([0])
    if rank == 1:
        with pytest.raises(UsageError, match="^rank [0-9]+ of [0-9]+: group: this rank is not a member of it"):
            bcast_compressed(torch.zeros(3), group=group)
    else:
        bcast_compressed(torch.zeros(3), group=group)
