"""allreduce_compressed between declared nodes: exact without a bound, within it with one, alike on all ranks."""

import cases
import numpy as np
import pytest

from accdp_comm import Communicator, MismatchError, UsageError, allreduce_compressed, nvcomp, relative, settings

FLOATS = ["float16", "bfloat16", "float32", "float64"]
COUNTS = [1, 1000, 20_011]
EPS = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


def contribution(rank, datatype, count):
    """Values as gradients have them; what the datatype holds of them."""
    plain = np.random.default_rng([rank, count]).normal(0, 0.02, count)
    return cases.array_of(plain.astype(cases.plain_dtype(datatype)), datatype)


def exact_result(size, datatype, count, op):
    """The result without codec and without rounding, and how large rounding in the datatype can get."""
    every = [cases.plain_of(contribution(rank, datatype, count)).astype(np.float64) for rank in range(size)]
    total = np.sum(every, axis=0)
    most = np.sum(np.abs(every), axis=0)
    divisor = size if op == "avg" else 1
    return total / divisor, 2 * size * EPS[datatype] * most / divisor + (2**-24 if datatype == "float16" else 0)


def bytes_of(array):
    """The memory of an array or tensor."""
    if isinstance(array, np.ndarray):
        return array.tobytes()
    import torch

    return array.view(torch.uint8).numpy().tobytes()


def gathered(world, array):
    """The bytes of every rank's array."""
    return world.allgather(np.frombuffer(bytes_of(array), np.uint8).copy())


@pytest.fixture(params=["4k", "64k"])
def chunks(request):
    """Slots of several sizes: with small ones a message has many segments, with large ones one."""
    with settings.override(chunk_bytes=request.param):
        yield


@pytest.mark.parametrize("codec", ["auto", "fpk", "zhuff"])
@pytest.mark.parametrize("datatype", ["bfloat16", "float32", "int64", "uint8"])
def test_without_a_bound_it_is_an_allreduce(chunks, world, codec, datatype):
    for count in COUNTS:
        for op in ("sum", "max"):
            case = cases.Case(world.size, datatype, count, op)
            x = cases.array_of(case.plain(world.rank), datatype)
            like = cases.array_of(case.plain(world.rank), datatype)
            allreduce_compressed(x, op, group=world, codec=codec)
            world.allreduce(like, op)
            assert bytes_of(x) == bytes_of(like), f"{codec}, {case}"


@pytest.mark.parametrize(("op", "codec"), [("sum", "qpk"), ("avg", "qpk"), ("avg", "qhuff"), ("sum", "auto")])
@pytest.mark.parametrize("bound", [1e-3, relative(0.05)], ids=["absolute", "relative"])
@pytest.mark.parametrize("datatype", FLOATS)
def test_within_the_bound(chunks, world, datatype, bound, op, codec):
    for count in COUNTS:
        x = contribution(world.rank, datatype, count)
        allreduce_compressed(x, op, group=world, error_bound=bound, codec=codec)
        wanted, rounding = exact_result(world.size, datatype, count, op)
        divisor = world.size if op == "avg" else 1
        spread = np.sqrt(
            sum(np.var(cases.plain_of(contribution(r, datatype, count)).astype(np.float64)) for r in range(world.size))
        )
        most = bound if isinstance(bound, float) else bound.value * spread / divisor * (1 + 1e-9)
        off = np.abs(cases.plain_of(x).astype(np.float64) - wanted)
        assert (off <= most + rounding).all(), f"{datatype}, {count} elements: off by {off.max()}, bound {most}"
        every = gathered(world, x)
        assert (every == every[0]).all(), "ranks hold different bits"


@pytest.mark.parametrize("codec", ["qpk", "qhuff", "bitcomp_lossy"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_what_is_left_out_can_be_added_again(world, op, codec):
    count = 20_011
    x, left = contribution(world.rank, "float32", count), np.full(count, np.nan, np.float32)
    if reason := {row["name"]: row["why_not"] for row in nvcomp.codecs()}[codec]:
        pytest.skip(reason)
    allreduce_compressed(x, op, group=world, error_bound=1e-3, codec=codec, residual=left)
    world.allreduce(left)
    divisor = world.size if op == "avg" else 1
    wanted, rounding = exact_result(world.size, "float32", count, op)
    assert (np.abs(x + left.astype(np.float64) / divisor - wanted) <= 4 * rounding + 1e-9).all()
    assert len(set(world.nodes)) == 1 or np.abs(left).max() > 1e-5, "nothing was left out, so this shows nothing"


def test_every_tensor_has_its_own_relative_bound(world):
    """A tensor of small values beside one of large ones keeps its digits."""
    small = np.random.default_rng(world.rank).normal(0, 1e-6, 5000)
    large = np.random.default_rng(world.rank).normal(0, 1.0, 5000)
    x = np.concatenate([small, large]).astype(np.float32)
    every = world.allgather(x.copy()).astype(np.float64).sum(axis=0)
    allreduce_compressed(x, group=world, error_bound=relative(0.01), parts=[5000, 5000], codec="qpk")
    off = np.abs(x - every)
    assert off[:5000].max() < 1e-7 and off[5000:].max() < 0.1


@pytest.mark.parametrize("codec", ["qpk", "qhuff"])
def test_special_values_arrive(world, codec):
    x = np.zeros(9000, np.float32)
    x[:4] = [np.nan, np.inf, -np.inf, 1e-40]
    allreduce_compressed(x, group=world, error_bound=1e-3, codec=codec)
    assert np.isnan(x[0]) and x[1] == np.inf and x[2] == -np.inf and np.abs(x[3:]).max() <= 1e-3


def test_what_nobody_would_encode_goes_as_in_any_allreduce(world):
    """No frames, so no heads; and where one rank would encode, all take part in it."""
    for zeros_on in (None, world.size - 1):
        noise = np.random.default_rng(world.rank).integers(-(2**31), 2**31, 100_000, np.int32)
        x = np.zeros_like(noise) if world.rank == zeros_on else noise
        like = x.copy()
        result = allreduce_compressed(x, group=world)
        world.allreduce(like)
        assert (x == like).all()
        if zeros_on is None:
            assert result.codec == "none" and result.wire_bytes == result.logical_bytes, str(result)


def test_deterministic_groups_encode_nothing(comm, topology):
    """What is encoded are sums of nodes, which depend on where the ranks are."""
    with settings.override(topology=topology), Communicator(comm, timeout_s=60, deterministic=True) as world:
        x = contribution(world.rank, "float32", 20_011)
        like = x.copy()
        world.allreduce(like, "avg")
        for codec in ("auto", "none"):
            y = x.copy()
            result = allreduce_compressed(y, "avg", group=world, codec=codec)
            assert bytes_of(y) == bytes_of(like) and result.codec == "none" and result.algorithm == "rank_order"
        for wrong in ({"codec": "fpk"}, {"error_bound": 1e-3}):
            with pytest.raises(UsageError, match="deterministic=True: expected neither an error_bound nor a codec"):
                allreduce_compressed(x, group=world, **wrong)


def test_ranks_that_disagree(world):
    if world.size == 1:
        pytest.skip("one rank agrees with itself")
    x, left = np.ones(5000, np.float32), np.full(5000, 3, np.float32)
    bound = 0.1 if world.rank == 0 else 0.2
    with pytest.raises(MismatchError, match="codec, chunk size or error bound"):
        allreduce_compressed(x, group=world, error_bound=bound, residual=left)
    assert (x == 1).all() and (left == 3).all()


def test_wrong_arguments(world):
    x, where = np.zeros(10, np.float32), f"rank {world.rank} of {world.size}: "
    with pytest.raises(UsageError, match=where + "error_bound: expected None for max of float32"):
        allreduce_compressed(x, "max", group=world, error_bound=0.1)
    with pytest.raises(UsageError, match=where + "error_bound: expected None for sum of int32"):
        allreduce_compressed(np.zeros(10, np.int32), group=world, error_bound=0.1)
    with pytest.raises(UsageError, match=where + "op: expected one of sum"):
        allreduce_compressed(x, "mean", group=world)
    with pytest.raises(UsageError, match=where + "tensor: expected a datatype that can be reduced, got str32"):
        allreduce_compressed(np.array(["a"]), group=world)
    with pytest.raises(UsageError, match=where + "parts: expected counts that add up to 10, got \\[5, 6\\]"):
        allreduce_compressed(x, group=world, parts=[5, 6])
    for parts in ([5.5, 5.5], [-1, 11], 10, ["10"]):  # a fraction is not cut off
        with pytest.raises(UsageError, match=where + "parts: expected counts >= 0, whole numbers, got"):
            allreduce_compressed(x, group=world, parts=parts)
    with pytest.raises(UsageError, match=where + "op: expected one of sum"):
        allreduce_compressed(x, ["sum"], group=world)
    with pytest.raises(UsageError, match=where + "residual: expected float32 of 10 elements, got 10 float64"):
        allreduce_compressed(x, group=world, residual=np.zeros(10))
    both = np.zeros(15, np.float32)
    for left in (both[:10], both[5:]):
        with pytest.raises(UsageError, match=where + "residual: expected memory beside that of tensor"):
            allreduce_compressed(both[:10], group=world, residual=left)
    with pytest.raises(UsageError, match="qpk: expected an error_bound"):
        allreduce_compressed(x, group=world, codec="qpk")
