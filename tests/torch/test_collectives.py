"""Collectives that move data: broadcast, gathers, scatters, all_to_all, barrier, objects; every datatype and layout."""

import time

import pytest
import torch
import torch.distributed as dist
from data import MOVED_DTYPES, assert_same, check_all_came_before_any_left, values

import accdp_comm

# Around the bounds of the algorithms in float32: nothing, one element, 16 KiB, one chunk of 1 MiB, several chunks.
COUNTS = (0, 1, 4097, 262_144, 262_145, 3 * 262_144 + 7)


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("name", MOVED_DTYPES)
def test_every_datatype(rank, size, name):
    dtype = MOVED_DTYPES[name]
    inputs = [values(other, (5, 7), dtype) for other in range(size)]
    for root in range(size):
        tensor = inputs[rank].clone()
        dist.broadcast(tensor, root)
        assert_same(tensor, inputs[root])
        gathered = [torch.empty_like(tensor) for _ in range(size)] if rank == root else None
        dist.gather(inputs[rank], gathered, root)
        for other, block in enumerate(gathered or []):
            assert_same(block, inputs[other])
        dist.scatter(tensor, inputs if rank == root else None, root)
        assert_same(tensor, inputs[rank])
    blocks = [torch.empty_like(inputs[0]) for _ in range(size)]
    dist.all_gather(blocks, inputs[rank])
    for block, expected in zip(blocks, inputs, strict=True):
        assert_same(block, expected)
    whole = torch.empty((5 * size, 7), dtype=dtype)
    dist.all_gather_into_tensor(whole, inputs[rank])
    assert_same(whole, torch.cat([block.view(torch.uint8) for block in inputs]).view(dtype))
    received = torch.empty_like(whole)
    dist.all_to_all_single(received, whole)
    assert_same(received[:5], inputs[rank])
    assert_same(received[-5:], inputs[rank])
    blocks = [torch.empty_like(inputs[0]) for _ in range(size)]
    dist.all_to_all(blocks, inputs)
    for block in blocks:
        assert_same(block, inputs[rank])


@pytest.mark.on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize("count", COUNTS)
def test_sizes(rank, size, count):
    inputs = [values(other, count, torch.float32) for other in range(size)]
    for root in {0, size - 1}:
        tensor = inputs[rank].clone()
        dist.broadcast(tensor, root)
        assert_same(tensor, inputs[root])
        gathered = [torch.empty(count) for _ in range(size)] if rank == root else None
        dist.gather(inputs[rank], gathered, root)
        for other, block in enumerate(gathered or []):
            assert_same(block, inputs[other])
        dist.scatter(tensor, inputs if rank == root else None, root)
        assert_same(tensor, inputs[rank])
    blocks = [torch.empty(count) for _ in range(size)]
    dist.all_gather(blocks, inputs[rank])
    for block, expected in zip(blocks, inputs, strict=True):
        assert_same(block, expected)
    whole, received = torch.empty(count * size), torch.empty(count * size)
    dist.all_gather_into_tensor(whole, inputs[rank])
    assert_same(whole, torch.cat(inputs))
    dist.all_to_all_single(received, whole)
    assert_same(received, inputs[rank].repeat(size))
    row, got = torch.full((1, 2 * size), float(rank)), torch.empty(1, 2 * size)  # one row, of which each takes a part
    dist.all_to_all_single(got, row)
    assert_same(got, torch.arange(float(size)).repeat_interleave(2)[None])


@pytest.mark.on_ranks(1, 2, 3, 4)
def test_uneven_all_gather(rank, size):
    for counts in ([0, 1, 2, 3], [70_000, 0, 5, 300_000], [1, 1, 0, 2]):
        inputs = [values(other, counts[other], torch.int32) for other in range(size)]
        blocks = [torch.empty(counts[other], dtype=torch.int32) for other in range(size)]
        dist.all_gather(blocks, inputs[rank])
        for block, expected in zip(blocks, inputs, strict=True):
            assert_same(block, expected)


@pytest.mark.on_ranks(1, 2, 3, 4)
def test_uneven_and_empty_all_to_all(rank, size):
    tables = {
        "even": lambda source, target: 2,
        "triangle": lambda source, target: source + 2 * target,
        "only to rank 0": lambda source, target: 3 if target == 0 else 0,
        "only from the last": lambda source, target: 70_001 if source == size - 1 else 0,
        "nothing at all": lambda source, target: 0,
    }
    for rows in tables.values():

        def block(source: int, target: int, rows=rows) -> torch.Tensor:
            return values(source, (rows(source, target), 3), torch.float64, seed=target)

        outgoing = [block(rank, target) for target in range(size)]
        expected = [block(source, rank) for source in range(size)]
        received = [torch.empty_like(tensor) for tensor in expected]
        dist.all_to_all(received, outgoing)
        for got, want in zip(received, expected, strict=True):
            assert_same(got, want)
        whole = torch.empty_like(torch.cat(expected))
        dist.all_to_all_single(whole, torch.cat(outgoing), [len(t) for t in expected], [len(t) for t in outgoing])
        assert_same(whole, torch.cat(expected))
    even = torch.empty(size, 3)
    dist.all_to_all_single(even, torch.full((size, 3), rank + 1.0), [1] * size, None)
    assert even[:, 0].tolist() == [other + 1.0 for other in range(size)]


@pytest.mark.on_ranks(2)
def test_several_tensors_of_each_rank(rank, size):
    """By the group's own methods, whose lists torch's functions fill with one."""
    group = dist.distributed_c10d._get_default_group()
    pair = [torch.full((3,), rank + 1.0), torch.full((3,), 10.0)]
    group.allreduce(pair).wait()
    assert [tensor.tolist() for tensor in pair] == [[10 * size + size * (size + 1) / 2] * 3] * 2
    pair, options = [torch.zeros(2), torch.full((2,), float(rank))], dist.BroadcastOptions()
    options.rootRank, options.rootTensor = size - 1, 1
    group.broadcast(pair, options).wait()
    assert [tensor.tolist() for tensor in pair] == [[size - 1.0] * 2] * 2
    blocks = [[torch.zeros(2) for _ in range(2 * size)] for _ in pair]
    work = group.allgather(blocks, [torch.full((2,), rank + 1.0), torch.full((2,), rank + 10.0)])
    of_future = work.get_future().wait()
    gathered = [[value] * 2 for other in range(size) for value in (other + 1.0, other + 10.0)]
    for found in (blocks, of_future):
        assert [[tensor.tolist() for tensor in part] for part in found] == [gathered] * 2


@pytest.mark.on_ranks(2)
def test_layouts(rank, size):
    base = [values(other, (6, 8, 4), torch.int16) for other in range(size)]
    views = {
        "transposed": lambda t: t.transpose(0, 2),
        "strided": lambda t: t[::2, 1::3],
        "a column": lambda t: t[:, 0, 0],
        "zero-dim": lambda t: t[1, 2, 3],
        "no elements": lambda t: t[:0],
        "offset": lambda t: t.flatten()[5:77],
    }
    for view in views.values():
        inputs = [view(other) for other in base]
        whole = base[rank].clone()
        dist.broadcast(view(whole), 1)
        expected = base[rank].clone()
        view(expected).copy_(inputs[1])
        assert_same(whole, expected)  # and what the view does not cover is as it was
        places = [torch.zeros(6, 8, 4, dtype=torch.int16) for _ in range(size)]
        blocks = [view(place) for place in places]
        dist.all_gather(blocks, inputs[rank])
        for block, want in zip(blocks, inputs, strict=True):
            assert_same(block, want)
        dist.all_to_all(blocks, inputs)
        for block in blocks:
            assert_same(block, inputs[rank])
        dist.scatter(blocks[0], inputs if rank == 0 else None)
        assert_same(blocks[0], inputs[rank])
        dist.gather(inputs[rank], blocks if rank == 1 else None, 1)
        for block, want in zip(blocks if rank == 1 else [], inputs, strict=rank == 1):
            assert_same(block, want)


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="this torch has no gather_single")
@pytest.mark.on_ranks(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.uint8], ids=str)
def test_gather_into_one_tensor(rank, size, dtype):
    inputs = [values(other, (2, 3), dtype) for other in range(size)]
    for root in range(size):
        output = torch.empty((2 * size, 3), dtype=dtype) if rank == root else None
        dist.gather_single(inputs[rank], output, root)
        if output is not None:
            assert_same(output, torch.cat(inputs))
        work = dist.gather_single(inputs[rank].t(), output, root, async_op=True)
        work.wait()
        if output is not None:
            assert_same(output.view(size, 3, 2), torch.stack([other.t() for other in inputs]))
    if rank == 1:  # nobody else has begun it
        with pytest.raises(RuntimeError, match=r"gather_single.*\(expected 18 elements, got 17\)"):
            dist.gather_single(inputs[rank], torch.empty(17, dtype=dtype), 1)


@pytest.mark.on_ranks(3)
def test_all_gather_into_any_shape_that_fits(rank, size):
    mine = values(rank, (2, 3), torch.float32)
    everything = torch.stack([values(other, (2, 3), torch.float32) for other in range(size)])
    for shape in ((size, 2, 3), (2 * size, 3), (6 * size,)):
        output = torch.empty(shape)
        dist.all_gather_into_tensor(output, mine)
        assert_same(output, everything.reshape(shape))
    with pytest.raises((RuntimeError, ValueError), match="size"):
        dist.all_gather_into_tensor(torch.empty(5), mine)


@pytest.mark.on_ranks(2, 3)
def test_all_gather_coalesced(rank, size):
    shapes = [(2, 2), (0,), (5,), (3, 1, 2)]

    def inputs(other: int) -> list[torch.Tensor]:
        return [values(other, shape, torch.float32, seed=i) for i, shape in enumerate(shapes)]

    outputs = [[torch.empty_like(tensor) for tensor in inputs(0)] for _ in range(size)]
    assert dist.all_gather_coalesced(outputs, inputs(rank)) is None
    again = [[torch.empty_like(tensor) for tensor in inputs(0)] for _ in range(size)]
    dist.all_gather_coalesced(again, inputs(rank), async_op=True).wait()
    for lists in (outputs, again):
        for other, blocks in enumerate(lists):
            for block, expected in zip(blocks, inputs(other), strict=True):
                assert_same(block, expected)


@pytest.mark.on_ranks(1, 2, 4)
def test_objects(rank, size):
    thing = {"rank": rank, "text": "x" * (10 + 5000 * rank), "nested": [None, (1, 2.5)]}
    everyone = [{"rank": r, "text": "x" * (10 + 5000 * r), "nested": [None, (1, 2.5)]} for r in range(size)]
    gathered: list = [None] * size
    dist.all_gather_object(gathered, thing)
    assert gathered == everyone
    for root in range(size):
        collected: list | None = [None] * size if rank == root else None
        dist.gather_object(thing, collected, root)
        assert collected == (everyone if rank == root else None)
        objects = [thing, rank] if rank == root else [None, None]
        dist.broadcast_object_list(objects, root)
        assert objects == [everyone[root], root]
        mine: list = [None]
        dist.scatter_object_list(mine, everyone if rank == root else None, root)
        assert mine == [everyone[rank]]
    if size > 1 and rank < 2:
        if rank == 0:
            dist.send_object_list(["a", thing], 1)
        else:
            received = [None, None]
            assert dist.recv_object_list(received, 0) == 0
            assert received == ["a", everyone[0]]


@pytest.mark.on_ranks(2, 3)
def test_barrier_waits_for_the_last_rank(rank, size):
    for late in range(size):
        if rank == late:
            time.sleep(0.1)
        came = time.monotonic()
        dist.barrier()
        check_all_came_before_any_left(came)
    counts = torch.zeros(1)
    for _ in range(50):
        dist.barrier()
    dist.all_reduce(counts)
    assert counts.item() == 0


@pytest.mark.on_ranks(2)
def test_wrong_arguments_are_refused_at_the_call_and_harm_nothing(rank, size):
    two, three = torch.ones(2), torch.ones(3)
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    calls = {
        "root": lambda: group.broadcast([two], opts=_broadcast_options(root=size)),
        "same length|list|expected 2 tensors": lambda: dist.all_to_all([two], [two, two]),
        "invalid tensor size|size": lambda: dist.gather(two, [two, three] if rank == 0 else None),
        "type": lambda: group.allgather([[two, two.double()]], [two]),
        f"all_to_all_single: rank {rank} of {size}: output splits: expected 2 .* together 2, got .1, 2": (
            lambda: dist.all_to_all_single(two, two, [1, 2], [1, 1])
        ),
        "input splits: .*, got .2.$": lambda: dist.all_to_all_single(two, two, [1, 1], [2]),
        "input: expected a multiple of 2 elements, got 3": lambda: dist.all_to_all_single(three, three),
        "a tensor of 4 elements has no memory": lambda: dist.all_reduce(_freed(4)),
        "a single memory location": lambda: dist.all_reduce(torch.ones(1).expand(3)),
        f"allreduce: rank {rank} of {size}: the tensor at index 0 of those that are written to": lambda: (
            dist.all_reduce(torch.zeros(4).as_strided((2, 2), (1, 1)))
        ),
        f"all_gather_into_tensor: rank {rank} of {size}: .*got 3": lambda: dist.all_gather_into_tensor(three, two),
        f"a list with {size} tensors, got one with 1": lambda: dist.reduce_scatter(two, [two]),
        f"a list with {size} tensors, got 2 lists": lambda: group.reduce_scatter([two], [[two], [two]]),
        "layout|dense": lambda: backend.broadcast(two.to_sparse(), 0),
        "size": lambda: dist.reduce_scatter_tensor(three, three),
        "reduce_scatter_tensor: .*invalid tensor type": lambda: dist.reduce_scatter_tensor(
            two.int(), torch.ones(2 * size)
        ),
        "all_gather_into_tensor: .*invalid tensor type": lambda: dist.all_gather_into_tensor(
            torch.zeros(2 * size).int(), two
        ),
    }
    accdp_comm.reset_stats()
    for words, call in calls.items():
        if words.startswith("invalid tensor size") and rank != 0:
            continue  # only the root has a list that could be wrong
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()
    assert not accdp_comm.stats(), "something was sent"
    dist.all_reduce(two)
    assert_same(two, torch.full((2,), 2.0))
    apart = torch.zeros(40).as_strided((2, 3, 4), (1, 12, 3))  # holes, and dimensions in another order
    dist.broadcast(torch.arange(24.0).reshape(2, 3, 4) if rank == 0 else apart, 0)
    assert rank == 0 or apart.flatten().tolist() == list(range(24))
    shared = torch.full((1,), 5.0)
    dist.broadcast(shared.expand(3) if rank == 0 else (got := torch.zeros(3)), 0)  # which may be read
    assert rank == 0 or got.tolist() == [5, 5, 5]


def _freed(count: int) -> torch.Tensor:
    """A view of memory that was given back, as FSDP does with parameters between their uses."""
    whole = torch.ones(count + 1)
    view = whole[1:]
    whole.untyped_storage().resize_(0)
    return view


def _broadcast_options(root: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return options


@pytest.mark.on_ranks(3)
def test_many_calls_in_a_row_stay_in_order(rank, size):
    state = torch.zeros(8, dtype=torch.int64)
    for step in range(400):
        kind = step % 4
        if kind == 0:
            state += rank
            dist.all_reduce(state, dist.ReduceOp.MAX)
        elif kind == 1:
            dist.broadcast(state, step % size)
        elif kind == 2:
            blocks = [torch.empty_like(state) for _ in range(size)]
            dist.all_gather(blocks, state)
            assert all(torch.equal(block, state) for block in blocks)
        else:
            dist.barrier()
    assert state.tolist() == [2 * 100] * 8


@pytest.mark.on_ranks(2)
def test_lazy_conjugates_are_sent_as_what_they_mean(rank, size):
    z = torch.full((4,), 1 + 2j * (rank + 1))
    out = torch.empty(4, dtype=z.dtype)
    dist.reduce_scatter(out, [z.conj()] * size)
    assert_same(out, torch.full((4,), 2 - 6j))


@pytest.mark.on_ranks(2)
def test_wrong_splits_are_refused_at_the_call(rank, size):
    x = torch.arange(2.0)
    others = [2 * rank, 2 - 2 * rank]  # all goes to the other rank
    for splits, message in (([-1, 3], f"rank {rank} of 2: .* splits: .* none below 0"), (others[::-1], "to itself")):
        with pytest.raises(RuntimeError, match=message):
            dist.all_to_all_single(torch.empty(2), x, others, splits, async_op=True)
    dist.barrier()


@pytest.mark.on_ranks(3)
def test_a_negative_split_among_others(rank, size):
    with pytest.raises(RuntimeError, match="splits: .* none below 0"):
        dist.all_to_all_single(torch.empty(2), torch.arange(2.0), [-1, 2, 1], [-1, 2, 1])
    dist.barrier()
