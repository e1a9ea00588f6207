"""Wrong arguments of bcast_compressed and its kin: errors that say rank, argument, what was expected and what given."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accdp_comm import (
    BcastResult,
    Communicator,
    UsageError,
    WeightSync,
    allreduce_compressed,
    bcast_compressed,
    relative,
)

X = np.ones(12, np.float32)
READ_ONLY = np.ones(12, np.float32)
READ_ONLY.flags.writeable = False
ON_META = torch.ones(3, device="meta")

# Name -> (positional arguments, keywords, part of the message).
WRONG = {
    "number": ((1.5,), {}, r"tensor is a float: expected a NumPy array, a torch tensor or an object with __dlpack__"),
    "class": ((np.ndarray,), {}, "tensor is the class ndarray: expected a NumPy array"),
    "class of tensors": (([X, torch.Tensor],), {}, r"tensor\[1\] is the class Tensor: expected"),
    "none": ((None,), {}, r"tensor is a NoneType: expected a NumPy array"),
    "numbers": (([X, 2.5],), {}, r"tensor\[1\] is a float: expected"),
    "numbers by name": (({"w": X, "lr": 0.1},), {}, r"tensor\['lr'\] is a float: expected"),
    "nested": (([X, [X]],), {}, r"tensor\[1\] is a list: expected"),
    "strided": ((X[::2],), {}, r"tensor is not contiguous"),
    "strided tensor": (
        ({"w": torch.ones(4, 8)[:, ::2]},),
        {},
        r"tensor\['w'\] is not contiguous .* expected C order, as of .*contiguous\(\)",
    ),
    "lazy": ((torch.nn.LazyLinear(3).state_dict(),), {}, r"tensor\['weight'\] is a lazy parameter without elements"),
    "objects": ((np.array([None]),), {}, "tensor has dtype object: Python objects cannot be sent"),
    "byte order": ((np.ones(3, ">f8"),), {}, "foreign byte order: expected"),
    "on a device": ((ON_META,), {}, "tensor is on meta: expected host memory"),
    "sparse": ((torch.eye(3).to_sparse(),), {}, "tensor has layout torch.sparse_coo: expected a dense tensor"),
    "root": ((X, 1), {}, "root: expected a rank from 0 to 0, got 1"),
    "negative root": ((X, -1), {}, "root: expected a rank from 0 to 0, got -1"),
    "root of text": ((X, "0"), {}, "root: expected a rank from 0 to 0, got '0'"),
    "fractional root": ((X,), {"root": 0.0}, r"root: expected a rank from 0 to 0, got 0\.0"),
    "codec": ((X,), {"codec": "gzip"}, "codec=gzip: expected auto, none, .*zstd"),
    "codec in capitals": ((X,), {"codec": "ZSTD"}, "codec=ZSTD: expected auto, none"),
    "empty codec": ((X,), {"codec": ""}, "codec=: expected auto, none"),
    "no codec": ((X,), {"codec": None}, "codec.*None"),
    "lossy codec without a bound": ((X,), {"codec": "bitcomp_lossy"}, "codec=bitcomp_lossy: expected an error_bound"),
    "own lossy codec without a bound": ((X,), {"codec": "qpk"}, "codec=qpk: expected an error_bound"),
    "bound of integers": (
        (np.arange(5),),
        {"error_bound": 0.1},
        r"error_bound: expected None, because there are no floats in tensor, got 0\.1",
    ),
    "bound of bools": ((np.ones(5, bool),), {"error_bound": 0.1}, "error_bound: expected None"),
    "bound of complex": ((np.ones(5, complex),), {"error_bound": 0.1}, "error_bound: expected None"),
    "bound of nothing": (([],), {"error_bound": 0.1}, "error_bound: expected None"),
    "bound and reference": (
        (X,),
        {"error_bound": 0.1, "reference": X},
        "error_bound: expected None where a reference is given: .*, got 0.1",
    ),
    "no bound at all": (
        (X,),
        {"error_bound": 0.0},
        r"error_bound: expected a finite number > 0 or relative\(number\), got 0",
    ),
    "switch for a bound": ((X,), {"error_bound": True}, "error_bound: expected a finite number > 0 .*, got True"),
    "negative bound": ((X,), {"error_bound": -1e-3}, r"error_bound: expected a finite number > 0 .*, got -0\.001"),
    "infinite bound": ((X,), {"error_bound": float("inf")}, "error_bound: expected a finite number > 0 .*, got inf"),
    "bound of many digits": ((X,), {"error_bound": 10**5000}, "error_bound: .*, got an integer of many digits"),
    "bound that is no number": ((X,), {"error_bound": float("nan")}, "error_bound: expected .*, got nan"),
    "bound of text": ((X,), {"error_bound": "1%"}, "error_bound: expected .*, got '1%'"),
    "chunk of nothing": ((X,), {"chunk_bytes": 0}, "chunk_bytes=0: expected 4096 to 16777216, a multiple of 4096"),
    "small chunk": ((X,), {"chunk_bytes": 4095}, "chunk_bytes=4095: expected 4096 to 16777216, a multiple of 4096"),
    "odd chunk": ((X,), {"chunk_bytes": 5000}, "chunk_bytes=5000: expected 4096 to 16777216"),
    "large chunk": ((X,), {"chunk_bytes": 32 << 20}, "chunk_bytes=33554432: expected 4096 to 16777216"),
    "chunk beyond numbers": ((X,), {"chunk_bytes": 1 << 100}, "chunk_bytes=[0-9]+: expected 4096 to 16777216"),
    "negative chunk": ((X,), {"chunk_bytes": -4096}, "chunk_bytes=-4096: expected 4096 to 16777216"),
    "chunk of text": ((X,), {"chunk_bytes": "64k"}, "chunk_bytes=.?64k.?: expected 4096 to 16777216"),
    "reference of another count": ((X,), {"reference": X[:11]}, "reference: expected 12 elements, got 11"),
    "reference of another datatype": (
        (X,),
        {"reference": X.view("i4")},
        "reference: expected datatype float32, got int32",
    ),
    "reference that is no array": ((X,), {"reference": 1.0}, "reference is a float: expected a NumPy array"),
    "strided reference": ((X[:6],), {"reference": X[::2]}, "reference is not contiguous"),
    "reference of another structure": (
        (X,),
        {"reference": [X]},
        "reference: expected the structure of tensor, 1 entries, got 1 other entries",
    ),
    "too few references": (
        ([X, X],),
        {"reference": [X]},
        "reference: expected the structure of tensor, 2 entries, got 1",
    ),
    "reference of another name": (({"a": X},), {"reference": {"b": X}}, "reference: expected the structure of tensor"),
    "a reference of another count": (
        ({"a": X, "b": X},),
        {"reference": {"b": X[:3], "a": X}},
        r"reference\['b'\]: expected 12 elements, got 3",
    ),
}


@pytest.fixture(scope="module")
def world():
    with Communicator() as made:
        yield made


@pytest.mark.parametrize("is_async", [False, True], ids=["", "async"])
@pytest.mark.parametrize("name", WRONG)
def test_refused(world, name, is_async):
    positional, keywords, said = WRONG[name]
    with pytest.raises(UsageError) as caught:
        work = bcast_compressed(*positional, group=world, async_op=is_async, **keywords)
        if is_async:
            work.wait()
    assert re.match(f"rank 0 of 1: .*{said}", str(caught.value)), str(caught.value)
    assert (X == 1).all()
    assert bcast_compressed(X, group=world).logical_bytes == X.nbytes  # the communicator is not broken by it


@pytest.mark.parametrize("group", [5, "world", object()])
def test_not_a_group(group):
    with pytest.raises(
        UsageError, match=f"group is a {type(group).__name__}: expected a torch process group or a Comm"
    ):
        bcast_compressed(X, group=group)


@pytest.mark.parametrize("limit", ["1", -1, float("nan"), [1]])
def test_limits_of_a_wait(world, limit):
    work = bcast_compressed(X, group=world, async_op=True)
    with pytest.raises(UsageError, match="timeout_s: expected seconds >= 0 or None, got"):
        work.wait(limit)
    assert work.wait(5).logical_bytes == X.nbytes


def test_everything_but_the_tensor_and_the_root_goes_by_name(world):
    with pytest.raises(TypeError):
        bcast_compressed(X, 0, world)


@pytest.mark.parametrize("codec", ["auto", "none", "zstd", "zhuff"])
def test_a_world_of_one(world, codec):
    """Nothing is sent, nothing is changed."""
    tensors = {"a": np.arange(5000.0), "b": READ_ONLY, "c": torch.arange(7), "d": np.empty(0)}
    for options in ({}, {"reference": tensors}, {"error_bound": 0.5}, {"chunk_bytes": np.int64(4096)}):
        result = bcast_compressed(tensors, group=world, codec=codec, **options)
        assert isinstance(result, BcastResult)
        assert result.logical_bytes == 40_000 + 48 + 56
        assert (tensors["a"] == np.arange(5000.0)).all() and (tensors["c"] == torch.arange(7)).all()
        assert result.ratio > 0 and str(result)


def test_no_part_at_all_has_the_datatype_of_the_tensor(world):
    x = np.empty(0, np.int32)
    assert allreduce_compressed(x, "band", parts=[], group=world).wire_bytes == 0
    with pytest.raises(UsageError, match=r"parts: expected counts that add up to 2, got"):
        allreduce_compressed(np.ones(2, np.int32), "band", parts=[], group=world)


def test_without_a_group():
    """All ranks of the job: this process."""
    assert bcast_compressed(X).logical_bytes == X.nbytes
    assert bcast_compressed(X, async_op=True).wait().logical_bytes == X.nbytes


@pytest.mark.parametrize("value", [0, -1, "0.1", float("inf"), None])
def test_relative_bounds_that_are_none(value):
    with pytest.raises(UsageError, match=f"value: expected a finite number > 0, got {value!r}"):
        relative(value)


def test_bounds_of_any_number(world):
    """NumPy's numbers and integers are numbers too."""
    for bound in (1, np.float64(0.1), np.float32(0.1), np.int64(2), relative(np.float32(0.1)), relative(1)):
        assert bcast_compressed(X, group=world, error_bound=bound).logical_bytes == X.nbytes


def test_weight_sync_of_wrong_tensors(world):
    given = {"w": X}
    sync = WeightSync(given, group=world)
    given["lr"] = 0.1
    with pytest.raises(UsageError, match=r"rank 0 of 1: tensors\['lr'\] is a float"):
        sync.sync()
    with pytest.raises(UsageError, match="root: expected a rank from 0 to 0, got 3"):
        WeightSync(X, 3, group=world).sync()
    with pytest.raises(UsageError, match="codec=gzip"):
        WeightSync(X, group=world, codec="gzip").sync()


class AnyName(dict):
    """Answers to any name, to that of an array's interface, too."""

    __getattr__ = dict.__getitem__


NESTED = {"state": {}, "step": 0}


@pytest.mark.parametrize("given", [NESTED, [X, [X]], iter([X]), SimpleNamespace(state_dict=dict), [AnyName(x=X)]])
def test_what_is_no_flat_list_of_tensors_is_told_how_to_be_one(world, given):
    expected = r"tensors?\S* is a \w+: expected a tensor, or one flat list or mapping of tensors"
    with pytest.raises(UsageError, match="rank 0 of 1: " + expected):
        bcast_compressed(given, group=world)
    with pytest.raises(UsageError, match=expected):
        WeightSync(given)
