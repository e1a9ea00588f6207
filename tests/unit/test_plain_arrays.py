"""The core takes the usual arrays as they are (_core.Group.try_*), and leaves all others alone."""

import dataclasses

import numpy as np
import pytest

from accdp_comm import Communicator, UsageError, _core
from accdp_comm.buffers import describe

torch = pytest.importorskip("torch")

NAMES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMPY_ONLY = ["bool", "uint16", "uint32", "uint64", "complex64", "complex128"]


@pytest.fixture(scope="module")
def alone():
    with Communicator() as comm:
        yield comm


@pytest.mark.parametrize("name", NAMES + NUMPY_ONLY)
def test_numpy_arrays_are_taken(alone, name):
    x, out = np.ones((2, 3), name), np.zeros((3, 2), name)
    op = "band" if name == "bool" else "prod"
    assert alone._core.try_allreduce(x, op, out)
    assert out.dtype == x.dtype and (out == 1).all()
    assert alone._core.try_bcast(x, 0)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch < 2.10 has no such table")
@pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
def test_tensors_are_taken(alone, name):
    x = torch.arange(6, dtype=getattr(torch, name)).reshape(2, 3)
    out = torch.zeros_like(x)
    assert alone._core.try_allreduce(x, "sum", out)
    assert (out == x).all()
    assert alone._core.try_allreduce(x[1:], "sum", out[:1])
    assert (out[0] == x[1]).all() and (out[1] == x[1]).all()


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch < 2.10 has no such table")
def test_parameters_are_taken(alone):
    x, out = torch.nn.Parameter(torch.arange(3.0)), torch.nn.Parameter(torch.zeros(3))
    assert alone._core.try_allreduce(x, "sum", out)
    assert (out == x).all()


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(
    "x", [np.ones((2, 3), np.int16), torch.ones(2, 3, dtype=torch.bfloat16)], ids=["numpy", "torch"]
)
def test_what_the_core_and_the_slow_way_say_of_an_array_is_the_same(x, writable, monkeypatch):
    quick = describe(x, "x", writable=writable)
    monkeypatch.setattr(_core, "plain_array", lambda x, writable: None)
    slow = describe(x, "x", writable=writable)
    assert quick.owner is slow.owner
    assert dataclasses.replace(quick, owner=None) == dataclasses.replace(slow, owner=None)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_scalars_and_empty_arrays_are_taken(alone, shape):
    assert alone._core.try_bcast(np.ones(shape), 0)
    assert alone._core.try_bcast(torch.ones(shape), 0) or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def read_only():
    array = np.ones(3)
    array.flags.writeable = False
    return array


OTHERS = {
    "list": [1.0],
    "nothing": None,
    "strided": np.ones(6)[::2],
    "fortran": np.ones((2, 3), order="F"),
    "byte order": np.ones(3, ">f8"),
    "objects": np.array([None]),
    "records": np.zeros(3, [("a", "i4")]),
    "long double": np.ones(3, np.longdouble),
    "read-only": read_only(),
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
    "strided tensor": torch.ones(3, 4).t(),
    "expanded tensor": torch.ones(1).expand(4),
    "sparse tensor": torch.ones(3, 3).to_sparse(),
    "meta tensor": torch.ones(3, device="meta"),
    "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
    "negation": torch._neg_view(torch.ones(3)),
    "subclass": torch.ones(3).as_subclass(type("Tensor", (torch.Tensor,), {})),
    "lazy parameter": torch.nn.UninitializedParameter(),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "zero tensor": torch._efficientzerotensor(3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(alone, name):
    before = alone._core.sequence
    assert not alone._core.try_allreduce(OTHERS[name], "sum", None)
    assert alone._core.sequence == before


@pytest.mark.parametrize(
    "call",
    [
        lambda group, x: group.try_bcast(x, 1),
        lambda group, x: group.try_bcast(x, -1),
        lambda group, x: group.try_bcast(x, "0"),
        lambda group, x: group.try_bcast(x, True),
        lambda group, x: group.try_bcast(x, 1 << 70),
        lambda group, x: group.try_allreduce(x, "add", None),
        lambda group, x: group.try_allreduce(x, None, None),
        lambda group, x: group.try_allreduce(x, "band", None),
        lambda group, x: group.try_allreduce(x, "sum", np.ones(4)),
        lambda group, x: group.try_allreduce(x, "sum", np.ones(3, "f4")),
        lambda group, x: group.try_reduce(x, "sum", 0, read_only()),
        lambda group, x: group.try_allgather(x, None),
        lambda group, x: group.try_allgather(x, [x]),
        lambda group, x: group.try_gather(x, 0, np.ones(6)),
        lambda group, x: group.try_scatter(x, np.ones(2), 0),
        lambda group, x: group.try_reduce_scatter(np.ones(()), "sum", np.ones(())),
        lambda group, x: group.try_alltoall(x, None),
        lambda group, x: group.try_send(x, 0, -1),
        lambda group, x: group.try_send(x, 0, 1 << 31),
    ],
)
def test_wrong_arguments_are_left_to_who_can_tell(alone, call):
    before = alone._core.sequence
    assert call(alone._core, np.ones(3)) is False
    assert alone._core.sequence == before


def test_every_operation_takes_plain_arrays(alone):
    x, group = np.arange(3.0), alone._core
    for call in (
        lambda out: group.try_allreduce(x, "sum", out),
        lambda out: group.try_reduce(x, "max", 0, out),
        lambda out: group.try_allgather(x, out),
        lambda out: group.try_gather(x, 0, out),
        lambda out: group.try_scatter(x, out, 0),
        lambda out: group.try_reduce_scatter(x, "sum", out),
        lambda out: group.try_alltoall(x, out),
        lambda out: group.try_send(x, 0, 3) and group.try_recv(out, 0, 3) == 0,
    ):
        out = np.zeros(3)
        assert call(out) is True
        assert (out == x).all()
    assert group.try_recv(read_only(), 0, 0) == -1


def test_freed_memory_is_left_alone(alone):
    """As FSDP frees parameters between their uses; a part of one has an address even then."""
    whole, out = torch.ones(4), torch.zeros(2)
    part = whole[2:]
    whole.untyped_storage().resize_(0)
    assert not alone._core.try_allreduce(part, "sum", out)
    with pytest.raises(UsageError, match="has no memory of its own"):
        alone.bcast(part, 0)


def test_what_a_signal_handler_raises_is_not_lost(alone):
    """Under a mode, of a default device say, torch runs Python when it is asked about a tensor: handlers run there."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.is_neg:
                raise KeyboardInterrupt
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with Mode(), pytest.raises(KeyboardInterrupt):
        alone.allreduce(x)
