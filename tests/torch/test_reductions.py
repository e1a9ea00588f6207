"""all_reduce, reduce and reduce_scatter against plain torch: every operation, datatype, size and memory layout."""

import pytest
import torch
import torch.distributed as dist
from data import DTYPES, OPS, assert_same, is_defined, op_of, reduced, values

CASES = [(op, name) for op in OPS for name, dtype in DTYPES.items() if is_defined(op, dtype)]
UNDEFINED = [(op, name) for op in OPS for name, dtype in DTYPES.items() if not is_defined(op, dtype)]
# Around the bounds of the algorithms: 16 KiB (done whole by every rank) and 1 MiB (one chunk), in float32.
COUNTS = (0, 1, 3, 1000, 4096, 4097, 262_144, 262_145, 3 * 262_144 + 7)


@pytest.mark.on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize("op", OPS)
def test_all_reduce(rank, size, op):
    for name in (name for case, name in CASES if case == op):
        for count in (1, 37, 9001):
            inputs = [values(other, count, DTYPES[name]) for other in range(size)]
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op_of(op))
            assert_same(tensor, reduced(op, inputs))


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("op", OPS)
def test_reduce_to_every_root_leaves_other_ranks_alone(rank, size, op):
    for name in (name for case, name in CASES if case == op):
        for root in range(size):
            inputs = [values(other, 9001, DTYPES[name], seed=root) for other in range(size)]
            tensor = inputs[rank].clone()
            dist.reduce(tensor, root, op_of(op))
            assert_same(tensor, reduced(op, inputs) if rank == root else inputs[rank])


@pytest.mark.on_ranks(2, 3)
@pytest.mark.parametrize("op", OPS)
def test_reduce_scatter(rank, size, op):
    for name in (name for case, name in CASES if case == op):
        inputs = [[values(other, 2500, DTYPES[name], seed=block) for block in range(size)] for other in range(size)]
        output = torch.empty_like(inputs[rank][rank])
        dist.reduce_scatter(output, inputs[rank], op_of(op))
        expected = reduced(op, [blocks[rank] for blocks in inputs])
        assert_same(output, expected)
        again = torch.empty_like(output)
        dist.reduce_scatter_tensor(again, torch.cat(inputs[rank]), op_of(op))
        assert_same(again, expected)


@pytest.mark.on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize("count", COUNTS)
def test_sizes(rank, size, count):
    inputs = [values(other, count, torch.float32) for other in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    assert_same(tensor, reduced("SUM", inputs))
    tensor = inputs[rank].clone()
    dist.reduce(tensor, size - 1, dist.ReduceOp.MAX)
    assert_same(tensor, reduced("MAX", inputs) if rank == size - 1 else inputs[rank])
    output = torch.empty(count)
    dist.reduce_scatter_tensor(output, inputs[rank].repeat(size))
    assert_same(output, reduced("SUM", inputs))


@pytest.mark.on_ranks(3)
def test_reduce_scatter_of_uneven_blocks(rank, size):
    for sizes in ([0, 1, 2], [70_000, 0, 5], [1, 300_000, 0]):
        inputs = [[values(other, count, torch.int32) for count in sizes] for other in range(size)]
        output = torch.empty(sizes[rank], dtype=torch.int32)
        dist.reduce_scatter(output, inputs[rank])
        assert_same(output, reduced("SUM", [blocks[rank] for blocks in inputs]))


@pytest.mark.on_ranks(2)
def test_layouts(rank, size):
    base = [values(other, (6, 8, 4), torch.float64) for other in range(size)]
    views = {
        "transposed": lambda t: t.transpose(0, 2),
        "strided": lambda t: t[::2, 1::3],
        "a column": lambda t: t[:, 0, 0],
        "zero-dim": lambda t: t[1, 2, 3],
        "no elements": lambda t: t[:0],
        "channels last": lambda t: t.reshape(2, 3, 8, 4).to(memory_format=torch.channels_last),
        "offset": lambda t: t.flatten()[5:77],
    }
    for view in views.values():
        whole = base[rank].clone()
        tensor = view(whole)
        around = whole.clone()
        expected = reduced("SUM", [view(other.clone()) for other in base])
        dist.all_reduce(tensor)
        assert_same(tensor, expected)
        view(around).copy_(tensor)
        assert_same(whole, around)  # what the view does not cover is as it was


@pytest.mark.on_ranks(2, 3)
def test_premultiplied_sum(rank, size):
    inputs = [values(other, 100, torch.float32) for other in range(size)]
    for factor in (0.5, 2.0):
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert_same(tensor, reduced("SUM", [factor * other for other in inputs]))
        tensor = inputs[rank].clone()
        dist.reduce(tensor, 0, dist._make_nccl_premul_sum(factor))
        assert_same(tensor, reduced("SUM", [factor * other for other in inputs]) if rank == 0 else inputs[rank])
    scale = torch.tensor([0.25])
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(scale))
    assert_same(tensor, reduced("SUM", [0.25 * other for other in inputs]))
    output = torch.empty(100)
    dist.reduce_scatter_tensor(output, inputs[rank].repeat(size), dist._make_nccl_premul_sum(0.5))
    assert_same(output, reduced("SUM", [0.5 * other for other in inputs]))
    half = torch.full((4,), 2.0, dtype=torch.bfloat16)
    dist.all_reduce(half, dist._make_nccl_premul_sum(scale * 2))  # a float32
    assert half.tolist() == [size] * 4
    halves = torch.full((4,), 2 + 2j, dtype=torch.complex32)
    dist.reduce(halves, 0, dist._make_nccl_premul_sum(0.5))
    assert rank or torch.view_as_real(halves).tolist() == [[size, size]] * 4


@pytest.mark.on_ranks(2)
def test_a_nan_reaches_every_rank_through_min_and_max(rank, size):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
            for owner in range(size):
                tensor = torch.ones(20, dtype=dtype)
                if rank == owner:
                    tensor[7] = float("nan")
                dist.all_reduce(tensor, op)
                assert tensor.isnan().nonzero().tolist() == [[7]], tensor


@pytest.mark.on_ranks(2, 3)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex32_is_added_by_its_parts(rank, size):
    for op in ("SUM", "AVG"):
        mine = torch.full((size * 5,), complex(rank + 1, -rank), dtype=torch.complex32)
        wanted = complex(size * (size + 1) / 2, -size * (size - 1) / 2) / (size if op == "AVG" else 1)
        expected = torch.full((size * 5,), wanted, dtype=torch.complex32)
        kept = mine.clone()
        dist.reduce(kept, 0, op_of(op))
        assert_same(torch.view_as_real(kept), torch.view_as_real(expected if rank == 0 else mine))
        for blocks in (mine, torch.stack([mine, mine], 1)[:, 0]):  # and where they are not contiguous
            output = torch.empty(5, dtype=torch.complex32)
            dist.reduce_scatter(output, [block.clone() for block in mine.split(5)], op_of(op))
            assert_same(torch.view_as_real(output), torch.view_as_real(expected[:5]))
            dist.reduce_scatter_tensor(output, blocks, op_of(op))
            assert_same(torch.view_as_real(output), torch.view_as_real(expected[:5]))


@pytest.mark.on_ranks(2)
def test_undefined_reductions_are_refused_at_the_call_and_harm_nothing(rank, size):
    for op, name in UNDEFINED:
        with pytest.raises((ValueError, RuntimeError), match=r"ReduceOp|op=|does not support"):
            dist.all_reduce(torch.ones(3, dtype=DTYPES[name]), op_of(op))
    with pytest.raises(RuntimeError, match="Cannot use ReduceOp.BAND with non-integral dtype Float"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(RuntimeError, match="PREMUL_SUM of dtype Int, expected a floating point or complex one"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(0.5))
    with pytest.raises(RuntimeError, match="dtype ComplexHalf is only moved, expected one that can be reduced"):
        dist.reduce(torch.ones(3, dtype=torch.complex32), 0, op=dist.ReduceOp.PRODUCT)
    with pytest.raises(RuntimeError, match="dtype Float8_e4m3fnuz is only moved, expected one that can be reduced"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fnuz))
    total = torch.ones(3)
    dist.all_reduce(total)
    assert_same(total, torch.full((3,), 2.0))


@pytest.mark.on_ranks(2, 3)
def test_sums_of_sparse_tensors(rank, size):
    def sparse(other: int) -> torch.Tensor:
        rows = torch.arange(other + 1)  # as many entries as the rank's number, and one more
        return torch.sparse_coo_tensor(torch.stack([rows, rows * 0]), rows + 1.0, (5, 2))

    tensor = sparse(rank)
    dist.all_reduce(tensor)
    assert tensor.is_sparse
    assert_same(tensor.to_dense(), reduced("SUM", [sparse(other).to_dense() for other in range(size)]))
    assert tensor.is_coalesced() and tensor.indices().shape == (2, size)
    with pytest.raises(RuntimeError, match="only works with ReduceOp.SUM"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


@pytest.mark.on_ranks(3)
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((5, 3), r"rank 2 has a sparse tensor of sizes \(5, 3\) with 2 sparse .*, expected sizes \(5, 2\) with 2"),
        ((5,), r"sizes \(5\) with 1 sparse"),
    ],
)
def test_sparse_tensors_of_other_sizes(rank, size, shape, said):
    mine = torch.sparse_coo_tensor(torch.zeros(2, 1), [1.0], (5, 2))
    if rank == 2:
        mine = torch.sparse_coo_tensor(torch.zeros(len(shape), 1), [1.0], shape)
    before = mine.to_dense()
    with pytest.raises(dist.DistBackendError, match=said):
        dist.all_reduce(mine)
    assert_same(mine.to_dense(), before)
    total = torch.ones(1)
    dist.all_reduce(total)  # the group goes on
    assert total.item() == size


@pytest.mark.on_ranks(2)
def test_coalesced(rank, size):
    shapes = [(4,), (0,), (3, 5), (70_000,)]
    inputs = [[values(other, shape, torch.float32, seed=i) for i, shape in enumerate(shapes)] for other in range(size)]
    expected = [reduced("SUM", list(together)) for together in zip(*inputs, strict=True)]
    tensors = [tensor.clone() for tensor in inputs[rank]]
    dist.all_reduce_coalesced(tensors)
    for tensor, sum_ in zip(tensors, expected, strict=True):
        assert_same(tensor, sum_)
    mixed = [torch.full((2,), 1.5), torch.full((3,), rank + 1.0), torch.full((2,), 1 + 1j)]
    dist.all_reduce_coalesced(mixed)
    assert [tensor.tolist() for tensor in mixed] == [[3.0, 3.0], [3.0, 3.0, 3.0], [2 + 2j, 2 + 2j]]
    for parts in ((0, 4), (2, 6)), ((2, 6), (0, 4)), ((0, 8), (1, 3), (5, 6)), ((0, 3), (0, 3), (2, 5)):
        whole = torch.arange(8.0)
        dist.all_reduce_coalesced([whole[begin:end] for begin, end in parts])  # which have memory in common
        covered = {i for begin, end in parts for i in range(begin, end)}
        assert whole.tolist() == [i * (2 if i in covered else 1) for i in range(8)]


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_coalescing_manager(rank, size, device):
    shapes = [(4,), (3, 5), (70_000,)]
    inputs = [[values(other, shape, torch.float32, seed=i) for i, shape in enumerate(shapes)] for other in range(size)]
    expected = [reduced("SUM", list(together)) for together in zip(*inputs, strict=True)]
    given = None if device is None else torch.device(device)
    for async_ops in (False, True):
        tensors = [tensor.clone() for tensor in inputs[rank]]
        with dist._coalescing_manager(device=given, async_ops=async_ops) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_ops:
            manager.wait()
        for tensor, sum_ in zip(tensors, expected, strict=True):
            assert_same(tensor, sum_)
        outputs = [torch.empty(size * tensor.numel()) for tensor in tensors]
        scattered = [torch.empty(3) for _ in range(2)]
        with dist._coalescing_manager(device=given, async_ops=async_ops) as manager:
            for output, tensor in zip(outputs, inputs[rank], strict=True):
                dist.all_gather_into_tensor(output, tensor.flatten())
        if async_ops:
            manager.wait()
        for index, output in enumerate(outputs):
            assert_same(output, torch.cat([inputs[other][index].flatten() for other in range(size)]))
        with dist._coalescing_manager(device=given, async_ops=async_ops) as manager:
            for block in scattered:
                dist.reduce_scatter_tensor(block, torch.arange(3.0 * size))
        if async_ops:
            manager.wait()
        for block in scattered:
            assert_same(block, size * torch.arange(3.0 * rank, 3.0 * rank + 3))


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("form", ["list", "tensor"])
def test_backward_sees_that_a_result_took_the_place_of_what_it_needs(rank, size, form, async_op):
    weight, needed = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    product = (weight * needed).sum()
    if form == "list":
        work = dist.reduce_scatter(needed, [torch.ones(2)] * size, async_op=async_op)
    else:
        work = dist.reduce_scatter_tensor(needed, torch.ones(2 * size), async_op=async_op)
    if async_op:
        work.wait()
    assert needed.tolist() == [size] * 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():  # whose tensors have no version
        result = torch.zeros(2)
        dist.reduce_scatter_tensor(result, torch.ones(2 * size))
        assert result.tolist() == [size] * 2
    dist.reduce_scatter_tensor(result, torch.ones(2 * size))  # and outside
    assert result.tolist() == [size] * 2
