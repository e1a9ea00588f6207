"""Arrays and tensors become (address, count, datatype), or are refused in one sentence."""

import sys
import types
import warnings

import numpy as np
import pytest

from accdp_comm import Communicator, allreduce_compressed, bcast_compressed, buffers
from accdp_comm._core import Datatype, UsageError
from accdp_comm.arguments import Arguments
from accdp_comm.buffers import describe, new_like

torch = pytest.importorskip("torch")

NUMPY = {
    "bool": Datatype.bool_,
    "uint8": Datatype.u8,
    "int8": Datatype.i8,
    "uint16": Datatype.u16,
    "int16": Datatype.i16,
    "uint32": Datatype.u32,
    "int32": Datatype.i32,
    "uint64": Datatype.u64,
    "int64": Datatype.i64,
    "float16": Datatype.f16,
    "float32": Datatype.f32,
    "float64": Datatype.f64,
    "complex64": Datatype.c64,
    "complex128": Datatype.c128,
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_and_torch_datatypes(name):
    array = np.zeros((2, 3), name)
    tensor = torch.zeros((2, 3), dtype=getattr(torch, name))
    for x, pointer in ((array, array.ctypes.data), (tensor, tensor.data_ptr())):
        buffer = describe(x, "x", writable=True)
        assert (buffer.pointer, buffer.count, buffer.datatype) == (pointer, 6, NUMPY[name])
        assert (buffer.shape, buffer.itemsize) == ((2, 3), array.itemsize)


def test_bfloat16_and_float8_are_numbers():
    half = describe(torch.zeros(5, dtype=torch.bfloat16), "x", writable=True)
    assert (half.count, half.datatype, half.itemsize) == (5, Datatype.bf16, 2)
    eighth = describe(torch.zeros(5, dtype=torch.float8_e4m3fn), "x", writable=True)
    assert (eighth.count, eighth.datatype, eighth.itemsize) == (5, Datatype.f8e4m3, 1)
    assert describe(torch.zeros(5, dtype=torch.float8_e5m2), "x", writable=True).datatype == Datatype.f8e5m2
    assert describe(torch.zeros(5, dtype=torch.float8_e4m3fnuz), "x", writable=True).datatype == Datatype.bytes


def test_records_and_times_are_moved_as_bytes():
    for kind in ("datetime64[s]", "U3", [("a", "i4"), ("b", "f8")]):
        array = np.zeros(4, kind)
        buffer = describe(array, "x", writable=True)
        assert (buffer.count, buffer.datatype) == (array.nbytes, Datatype.bytes)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_scalars_and_empty_arrays(shape):
    for x in (np.zeros(shape), torch.zeros(shape)):
        assert describe(x, "x", writable=True).count == int(np.prod(shape))


def test_views_point_into_their_base():
    base = np.arange(12.0).reshape(3, 4)
    assert describe(base[1:], "x", writable=True).pointer == base.ctypes.data + 32
    tensor = torch.arange(12).reshape(3, 4)
    assert describe(tensor[1:], "x", writable=True).pointer == tensor.data_ptr() + 32


def test_rows_follow_each_other():
    buffer = describe(np.zeros((5, 3), np.float32), "x", writable=False)
    start = buffer.pointer
    assert buffer.rows([2, 0, 3]) == [(start, 6), (start + 24, 0), (start + 24, 9)]


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


class Wrapper(torch.Tensor):
    """A tensor whose elements are another's, as DTensor's and a fake tensor's are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        pass

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        # Whoever calls anything of it instead of refusing it has taken it for a tensor with memory.
        raise AssertionError(f"{function} of a wrapper")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0, 2.0], "x is a list: expected a NumPy array"),
        (3.0, "x is a float"),
        (None, "x is a NoneType"),
        (np.zeros((3, 4))[:, 1], r"x is not contiguous \(shape \(3,\), strides \(32,\)\)"),
        (np.zeros((3, 4)).T, "x is not contiguous"),
        (
            torch.zeros(3, 4).t(),
            r"x is not contiguous .* expected C order, as of x.contiguous\(\), from .* copied back",
        ),
        (torch.zeros(1).expand(4), "x is not contiguous"),
        (torch.zeros(3, 3).to_sparse(), "x has layout torch.sparse_coo"),
        (torch.zeros(3, device="meta"), r"x is on meta: expected host memory, as of x.cpu\(\)"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "x is a lazy conjugate"),
        (np.array([object()]), "x has dtype object"),
        (np.zeros(3, ">f4"), "x has dtype >f4 in foreign byte order"),
        (read_only(), "x is read-only"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), r"x is a masked array.* expected x.filled\(value\)"),
        (torch._efficientzerotensor(3), "x, a Tensor, has no memory of its own"),
        (Wrapper(torch.ones(3)), "x, a Wrapper, has no memory of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_in_one_sentence(x, message):
    with pytest.raises(UsageError, match=message):
        describe(x, "x", writable=True)


@pytest.mark.filterwarnings("ignore")  # torch may drop both one day
def test_tensors_that_are_more_than_their_elements_are_refused():
    with pytest.raises(UsageError, match="x is nested: expected a dense tensor"):
        describe(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "x", writable=True)
    with pytest.raises(UsageError, match="x is quantised: expected a dense tensor"):
        describe(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "x", writable=True)


@pytest.mark.parametrize("start", [0, 2])
def test_freed_memory_is_refused(start):
    """As FSDP frees parameters between their uses; a view has an address even then."""

    def freed():  # in no variable: torch cannot print one, and pytest would at a failure
        whole = torch.ones(4)
        part = whole[start:]
        whole.untyped_storage().resize_(0)
        return part

    with pytest.raises(UsageError, match="x, a Tensor, has no memory of its own"):
        describe(freed(), "x", writable=True)


@pytest.mark.parametrize("any_order", [False, True])
def test_lazy_parameters_are_refused(any_order):
    with pytest.raises(UsageError, match="x is a lazy parameter without elements: expected one after"):
        describe(torch.nn.LazyLinear(3).weight, "x", writable=True, any_order=any_order)


def test_tensors_in_another_order_that_have_no_views():
    class WithoutViews(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.Tensor.permute:
                raise TypeError("no implementation of permute")
            return super().__torch_function__(function, types, args, kwargs or {})

    across = torch.ones(2, 3).t()
    with pytest.raises(UsageError, match=r"expected C order, as of x.contiguous\(\)$"):
        describe(across, "x", writable=False)
    assert describe(across, "x", writable=True, any_order=True).order == (1, 0)
    with pytest.raises(UsageError, match="x is not contiguous"):
        describe(across.as_subclass(WithoutViews), "x", writable=True, any_order=True)


def test_fake_tensors_are_refused_without_a_warning():
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode()
    with fake, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UsageError, match="x, a FakeTensor, has no memory of its own"):
            describe(torch.ones(3), "x", writable=True)


def test_refused_under_a_transformation_of_torch():
    def row(x):
        with pytest.raises(UsageError, match="x has no memory of its own: "):
            describe(x, "x", writable=True)
        return x

    torch.func.vmap(row)(torch.ones(3, 4))


def test_read_only_arrays_may_be_read():
    assert describe(read_only(), "x", writable=False).count == 3


class Foreign:
    """An array of some other library, known by DLPack alone, in its older form unless ``speaks_1_0``."""

    def __init__(self, inner, device=(1, 0), speaks_1_0=False):
        self.inner, self.device, self.speaks_1_0 = inner, device, speaks_1_0

    def __dlpack__(self, **options):
        return self.inner.__dlpack__(**(options if self.speaks_1_0 else {}))

    def __dlpack_device__(self):
        return self.device


def test_dlpack_arrays_are_read():
    inner = torch.arange(6, dtype=torch.int32)
    buffer = describe(Foreign(inner), "x", writable=False)
    assert (buffer.pointer, buffer.count, buffer.datatype) == (inner.data_ptr(), 6, Datatype.i32)


def test_dlpack_bfloat16_is_read_where_torch_is_there():
    inner = torch.ones(4, dtype=torch.bfloat16)
    buffer = describe(Foreign(inner), "x", writable=False)
    assert (buffer.pointer, buffer.count, buffer.datatype) == (inner.data_ptr(), 4, Datatype.bf16)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this NumPy reads the older DLPack only")
def test_dlpack_arrays_are_written_where_they_say_that_they_may_be():
    inner = np.zeros(3, np.float32)
    buffer = describe(Foreign(inner, speaks_1_0=True), "x", writable=True)
    assert (buffer.pointer, buffer.count) == (inner.ctypes.data, 3)
    inner.flags.writeable = False
    with pytest.raises(UsageError, match="x is read-only"):
        describe(Foreign(inner, speaks_1_0=True), "x", writable=True)


def test_older_dlpack_arrays_are_not_written_and_not_fetched_from_devices():
    with pytest.raises(UsageError, match="x is read-only"):
        describe(Foreign(torch.zeros(3)), "x", writable=True)
    with pytest.raises(UsageError, match=r"x is on a device \(DLPack device type 2\)"):
        describe(Foreign(torch.zeros(3), (2, 0)), "x", writable=False)


class Copied(Foreign):
    """An array that hands out a copy of what it has, unless it is told not to."""

    def __dlpack__(self, *, copy=None, **options):
        if copy is False:
            raise BufferError("this array has to be copied")
        return self.inner.copy().__dlpack__(**options)


def test_nothing_is_written_into_what_dlpack_has_copied():
    inner = np.arange(3, dtype=np.float32)
    assert describe(Copied(inner), "x", writable=False).count == 3
    with pytest.raises(UsageError, match="x, a Copied, could not be written to through DLPack: .*has to be copied"):
        describe(Copied(inner), "x", writable=True)


def test_what_nobody_can_read_through_dlpack_is_refused():
    class Unreadable(Foreign):
        def __dlpack__(self, **_):
            raise BufferError("not today")

    with pytest.raises(UsageError, match="x, a Unreadable, could not be used through DLPack: not today"):
        describe(Unreadable(np.ones(1)), "x", writable=False)


def test_blocks_keep_what_dlpack_has_copied():
    with Communicator() as comm:
        x = [Copied(np.arange(300_000, dtype=np.float32))]
        assert comm.reduce_scatter(x).tolist() == list(range(300_000))
        out = np.empty(300_000, np.float32)
        assert comm.scatter(x, out).tolist() == list(range(300_000))


def test_new_arrays_are_of_the_same_library():
    array = new_like(describe(np.zeros(3, np.int16), "x", writable=False), (2, 3))
    assert isinstance(array, np.ndarray) and (array.shape, array.dtype) == ((2, 3), np.int16)
    tensor = new_like(describe(torch.zeros(3, dtype=torch.bfloat16), "x", writable=False), (2, 3))
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), torch.bfloat16)


# ---- CUDA devices, without one --------------------------------------------------------------------------------------


class OnDevice:
    """What CuPy's arrays say about themselves."""

    def __init__(self, dtype="float32", **facts):
        self.dtype = dtype
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
        } | facts


@pytest.fixture
def cuda(monkeypatch):
    """A build with CUDA whose arrays are all on device 1."""
    monkeypatch.setattr(buffers._core, "device_of", lambda ptr, name: 1, raising=False)


def test_arrays_of_one_call_have_one_stream(cuda):
    """Between streams there is no order; two names of the default one are one stream."""
    args = Arguments(0, 2, device=True)
    args.in_and_out(OnDevice(stream=77), OnDevice(stream=77))
    args.in_and_out(OnDevice(stream=None), OnDevice(stream=1))
    with pytest.raises(UsageError, match="rank 0 of 2: out: expected an array used on stream 0x4d, .* got 0x4e"):
        args.in_and_out(OnDevice(stream=77), OnDevice(stream=78))


def test_the_stream_is_that_of_the_array_s_own_device(cuda):
    """CuPy tells the current stream of the current device."""
    current = []

    class Device:
        id = 1

        def __enter__(self):
            current.append(self.id)

        def __exit__(self, *_):
            current.pop()

    class Array(OnDevice):
        device = Device()

        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            return found | {"stream": 71 if current else 70} if name == "__cuda_array_interface__" else found

    assert describe(Array(), "x", writable=True, device=True).stream == 71 and not current


def test_an_array_that_knows_its_device_is_not_asked_by_its_address(cuda, monkeypatch):
    """That would make a context on whatever device is the thread's current one."""
    assert describe(OnDevice(), "x", writable=True, device=True).device == 1
    monkeypatch.setattr(buffers._core, "device_of", None)
    array = OnDevice()
    array.device = types.SimpleNamespace(id=3)
    assert describe(array, "x", writable=True, device=True).device == 3


def test_another_thread_has_no_use_for_the_stream_of_a_thread(cuda):
    """Stream 2 of who calls is not stream 2 of who ends an asynchronous operation; other operations may have it."""
    said = "rank 0 of 1: (x|tensor): expected an array not used on its thread's own default stream, got .* stream 2"
    with Communicator() as world:
        for begin in (
            lambda x: bcast_compressed(x, group=world, async_op=True),
            lambda x: allreduce_compressed(x, group=world, async_op=True),
            lambda x: world.irecv(x, 0),
        ):
            with pytest.raises(UsageError, match=said):
                begin(OnDevice(stream=2))
        world._args.in_and_out(OnDevice(stream=2), OnDevice(stream=2))


def test_cuda_array_interface(cuda):
    buffer = describe(OnDevice(stream=77), "x", writable=True, device=True)
    assert (buffer.pointer, buffer.count, buffer.datatype, buffer.shape) == (4096, 6, Datatype.f32, (2, 3))
    assert (buffer.device, buffer.stream) == (1, 77)
    assert buffer.block(3, 2) == (4096 + 12, 2)
    assert describe(OnDevice(stream=None), "x", writable=True, device=True).stream == 1
    assert describe(OnDevice(strides=(12, 4)), "x", writable=True, device=True).count == 6
    one_row = OnDevice(shape=(1, 3), strides=(400, 4))  # as of a slice: where the next row would be does not matter
    assert describe(one_row, "x", writable=True, device=True).count == 3
    half = OnDevice(typestr="<V2")
    half.dtype = "bfloat16"
    assert describe(half, "x", writable=True, device=True).datatype == Datatype.bf16


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (OnDevice(strides=(16, 4)), "x is not contiguous"),
        (OnDevice(data=(4096, True)), "x is read-only"),
        (OnDevice(typestr=">f4"), "foreign byte order"),
        (OnDevice(data=(4098, False)), "x is at address 0x1002 of a CUDA device: expected a multiple of 4 bytes for"),
        (OnDevice(typestr="<c16", data=(4100, False), dtype="complex128"), "expected a multiple of 8 bytes for compl"),
    ],
)
def test_refused_on_device(cuda, x, text):
    with pytest.raises(UsageError, match=text):
        describe(x, "x", writable=True, device=True)


def test_alignment_on_device_is_that_of_numbers(cuda):
    pair = OnDevice(typestr="<c8", data=(4100, False), dtype="complex64")
    assert describe(pair, "x", writable=True, device=True).pointer == 4100
    empty = OnDevice(shape=(0, 3), data=(4098, False))
    assert describe(empty, "x", writable=True, device=True).count == 0
    raw = OnDevice(typestr="<V2", data=(4097, False), dtype="V2")
    assert describe(raw, "x", writable=True, device=True).count == 12


def test_an_empty_array_is_where_its_owner_says(cuda):
    empty = OnDevice(shape=(0, 3), data=(0, False))
    assert describe(empty, "x", writable=True, device=True).device == 1  # as current
    empty.device = types.SimpleNamespace(id=3)  # CuPy's
    assert describe(empty, "x", writable=True, device=True).device == 3


def test_device_memory_where_it_cannot_be_used(monkeypatch):
    with pytest.raises(UsageError, match="x, a OnDevice, is on a CUDA device: expected host memory"):
        describe(OnDevice(), "x", writable=False)
    monkeypatch.delattr(buffers._core, "device_of", raising=False)
    with pytest.raises(UsageError, match="this accdp was built without CUDA"):
        describe(OnDevice(), "x", writable=False, device=True)


def test_arrays_of_one_call_are_in_one_place(cuda):
    here, there = np.zeros((2, 3), np.float32), OnDevice()
    with pytest.raises(UsageError, match="out: expected memory of the host, got CUDA device 1"):
        Arguments(0, 2, device=True).in_and_out(here, there)
    with pytest.raises(UsageError, match="out: expected memory of CUDA device 1, got the host"):
        Arguments(0, 2, device=True).in_and_out(there, here)


def test_new_arrays_come_from_the_library_of_the_old(cuda, monkeypatch):
    buffer = describe(OnDevice(), "x", writable=False, device=True)
    with pytest.raises(UsageError, match="no OnDevice can be made here"):
        new_like(buffer, (4,))
    cupy = types.SimpleNamespace(ndarray=OnDevice, empty=lambda shape, dtype: (shape, dtype))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert new_like(buffer, (4,)) == ((4,), "float32")
