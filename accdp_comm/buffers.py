"""Buffers: an array or tensor becomes (address, count, datatype). Nothing else in accdp looks inside arrays.

Taken as they are: NumPy arrays (also ml_dtypes' bfloat16 and float8), torch tensors, and what has
``__cuda_array_interface__`` (CuPy, Numba). Other libraries' arrays are taken through DLPack: those in host memory are
written to where they say that they may be, which DLPack's form before 1.0 cannot; those on a CUDA device are taken
where torch is loaded, which can read them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _core
from ._core import Datatype, MismatchError, UsageError

_NAMES = {
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
    "bfloat16": Datatype.bf16,
    "float8_e4m3fn": Datatype.f8e4m3,
    "float8_e5m2": Datatype.f8e5m2,
    "float32": Datatype.f32,
    "float64": Datatype.f64,
    "complex64": Datatype.c64,
    "complex128": Datatype.c128,
}
_DLPACK_HOST = (1, 3)  # kDLCPU and kDLCUDAHost; all other device types are not host memory
_DLPACK_CUDA = 2


@dataclass(slots=True)  # not frozen: to make a frozen one takes longer than a small collective
class Buffer:
    """Contiguous memory and what is in it."""

    pointer: int
    count: int  # elements; bytes where the datatype is `bytes`
    datatype: Datatype
    itemsize: int  # bytes per element of the datatype
    shape: tuple[int, ...]
    owner: Any  # the array itself: keeps the memory alive, and says which library new arrays come from
    kind: str  # the datatype as its library calls it, for errors: also of what is only moved
    order: tuple[int, ...] = ()  # of the dimensions in memory, where that is not C's: of a torch tensor's memory format
    device: int | None = None  # CUDA device; None: host memory
    stream: int = 0  # cudaStream_t in whose order the owner uses device memory

    @property
    def unit(self) -> str:
        """What `count` counts, for errors."""
        return "bytes" if self.datatype == Datatype.bytes else "elements"

    def block(self, start: int, count: int) -> tuple[int, int]:
        """Return (address, count) of ``count`` elements from element ``start`` on."""
        return self.pointer + start * self.itemsize, count

    def overlaps(self, other: Buffer) -> bool:
        """Whether some byte belongs to both."""
        starts, ends = (self.pointer, other.pointer), (self.block(self.count, 0)[0], other.block(other.count, 0)[0])
        return max(starts) < min(ends)

    def is_ordered_with(self, other: Buffer) -> bool:
        """Whether what is done to the one comes before or after what is done to the other: streams know no order."""
        legacy = (0, 1)  # two names of the default stream
        return self.stream == other.stream or (self.stream in legacy and other.stream in legacy)

    def rows(self, counts: list[int]) -> list[tuple[int, int]]:
        """Return the blocks of consecutive runs of rows (first dimension), ``counts[i]`` rows in run i."""
        width = self.count // self.shape[0] if self.shape and self.shape[0] else 0
        blocks, start = [], 0
        for count in counts:
            blocks.append(self.block(start * width, count * width))
            start += count
        return blocks


def describe(x: Any, name: str, *, writable: bool, device: bool = False, any_order: bool = False) -> Buffer:
    """Return where an array's elements are and what they are.

    Args:
        x: NumPy array, torch tensor, or any object with ``__dlpack__`` or ``__cuda_array_interface__``; contiguous (C
            order).
        name: Of the argument, for errors.
        writable: Whether the operation writes to it.
        device: Whether memory of a CUDA device will do.
        any_order: Whether a torch tensor may have another memory format, such as channels_last. Its elements are then
            in that order, and ``owner`` is a view of it that has them in C order.
    Raises:
        UsageError: Not an array, not contiguous, not in such memory, read-only though written to, or Python objects.
    """
    plain = _core.plain_array(x, writable)
    if plain is not None:
        kind = _name_of_numpy(x.dtype) if isinstance(x, np.ndarray) else _name_of_torch(x.dtype)
        return Buffer(*plain, tuple(x.shape), x, kind)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _tensor(x, name, writable, device, any_order)
    if isinstance(x, np.ndarray):
        return _array(x, x, name, writable)
    is_class = isinstance(x, type)  # which has what its instances have
    if not is_class and hasattr(x, "__cuda_array_interface__"):
        return _cuda_array(x, name, writable, device)
    if not is_class and hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _dlpack(x, name, writable, device)
    what = f"the class {x.__name__}" if is_class else f"a {type(x).__name__}"
    raise UsageError(f"{name} is {what}: expected a NumPy array, a torch tensor or an object with __dlpack__")


def memory_order(tensor: Any) -> tuple[int, ...]:
    """Return the dimensions of a strided torch tensor, outermost in memory first; () where they are in C order.

    And where there is no such order, because its elements are not one after the other in memory.
    """
    if tensor.is_contiguous():
        return ()
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    try:
        return order if tensor.detach().permute(order).is_contiguous() else ()
    except (RuntimeError, TypeError):  # some subclasses of tensors have no views
        return ()


def new_like(x: Buffer, shape: tuple[int, ...]) -> Any:
    """Return a new array of another shape with the datatype of ``x``, in the same memory: torch, CuPy or NumPy."""
    if isinstance(x.owner, np.ndarray):
        return np.empty(shape, x.owner.dtype)
    if hasattr(x.owner, "new_empty"):
        return x.owner.new_empty(shape)
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(x.owner, cupy.ndarray):
        raise UsageError(f"out: expected an array, because no {type(x.owner).__name__} can be made here")
    return cupy.empty(shape, x.owner.dtype)


# Names of datatypes are made anew each time they are asked for, which costs more than a small collective.
@functools.lru_cache(maxsize=256)
def _name_of_numpy(kind: np.dtype[Any]) -> str:
    return kind.name if kind.names is None else str(kind)  # the name of a record says its size alone


@functools.lru_cache(maxsize=256)
def _name_of_torch(kind: Any) -> str:
    """Return the name of a torch datatype or layout."""
    return str(kind).removeprefix("torch.")


def _array(array: np.ndarray[Any, Any], owner: Any, name: str, writable: bool) -> Buffer:
    kind = array.dtype
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, whose mask would stay behind: expected {name}.filled(value)")
    if kind.hasobject:
        raise UsageError(f"{name} has dtype {kind}: Python objects cannot be sent, expected numbers or plain records")
    if not kind.isnative:
        raise UsageError(f"{name} has dtype {kind} in foreign byte order: expected {kind.newbyteorder('=')}")
    if not array.flags.c_contiguous:
        raise _not_contiguous(name, array.shape, array.strides, f"np.ascontiguousarray({name})", writable)
    if writable and not array.flags.writeable:
        raise UsageError(f"{name} is read-only, but the operation writes to it")
    return _buffer(array.ctypes.data, array.size, kind.itemsize, _name_of_numpy(kind), array.shape, owner)


def _not_contiguous(name: str, shape: Any, strides: Any, copy: str, writable: bool) -> UsageError:
    back = ", from which what the operation writes there is then to be copied back" if writable else ""
    where = f"{name} is not contiguous (shape {shape}, strides {strides})"
    return UsageError(f"{where}: expected C order, as of {copy}{back}")


def _tensor(tensor: Any, name: str, writable: bool, device: bool = False, any_order: bool = False) -> Buffer:
    if _name_of_torch(tensor.layout) != "strided":
        raise UsageError(f"{name} has layout {tensor.layout}: expected a dense tensor")
    if tensor.is_nested or tensor.is_quantized:  # rows of any length; numbers that mean nothing without their scale
        kind = "nested" if tensor.is_nested else "quantised"
        raise UsageError(f"{name} is {kind}: expected a dense tensor of numbers")
    if sys.modules["torch"].nn.parameter.is_lazy(tensor):
        raise UsageError(f"{name} is a lazy parameter without elements: expected one after the module's first call")
    is_cuda = device and tensor.device.type == "cuda"
    if tensor.device.type != "cpu" and not is_cuda:
        raise UsageError(f"{name} is on {tensor.device}: expected host memory, as of {name}.cpu()")
    order = memory_order(tensor) if any_order else ()
    lengths = tensor.shape
    if order:
        tensor = tensor.detach().permute(order)
    if not tensor.is_contiguous():
        raise _not_contiguous(name, tuple(tensor.shape), tensor.stride(), f"{name}.contiguous()", writable)
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name} is a lazy conjugate or negation: expected {name}.resolve_conj().resolve_neg()")
    pointer, kind = _address_of(tensor, name), _name_of_torch(tensor.dtype)
    buffer = _buffer(pointer, tensor.numel(), tensor.element_size(), kind, tuple(tensor.shape), tensor)
    buffer.order = tuple(dimension for dimension in order if lengths[dimension] > 1)  # others may be anywhere
    if not is_cuda:
        return buffer
    _need_cuda(name)
    stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    return _on_device(buffer, name, tensor.device.index, stream)


def _address_of(tensor: Any, name: str) -> int:
    """Return where a contiguous tensor's elements are; raises UsageError where they are in no memory."""
    try:
        storage = tensor.untyped_storage()
        # To ask a fake tensor for an address is a warning.
        pointer, room = 0 if storage.device.type == "meta" else tensor.data_ptr(), storage.nbytes()
    except RuntimeError as error:  # under a transformation of torch.func
        raise UsageError(f"{name} has no memory of its own: {error}") from error
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    # Wrappers (DTensor, fake tensors) have a storage without an address; FSDP frees what stands behind an address.
    if tensor.numel() and (not pointer or room < end):
        raise UsageError(
            f"{name}, a {type(tensor).__name__}, has no memory of its own: expected a tensor that holds its elements, "
            "as of to_local() or full_tensor() of a DTensor, or while FSDP has gathered a parameter"
        )
    return int(pointer)


def _cuda_array(x: Any, name: str, writable: bool, device: bool) -> Buffer:
    if not device:
        raise UsageError(f"{name}, a {type(x).__name__}, is on a CUDA device: expected host memory")
    _need_cuda(name)
    # CuPy tells the stream of the device that is current, which may be another than the array's.
    where = getattr(x, "device", None)
    with where if isinstance(where, contextlib.AbstractContextManager) else contextlib.nullcontext():
        facts = x.__cuda_array_interface__
    shape, kind, (pointer, is_read_only) = tuple(facts["shape"]), np.dtype(facts["typestr"]), facts["data"]
    strides, expected = facts.get("strides"), kind.itemsize
    for length, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if length > 1 and stride != expected and 0 not in shape:
            raise _not_contiguous(name, shape, tuple(strides), "a copy", writable)
        expected *= length
    if facts.get("mask") is not None:
        raise UsageError(f"{name}, a {type(x).__name__}, is masked, and its mask would stay behind: expected no mask")
    if writable and is_read_only:
        raise UsageError(f"{name} is read-only, but the operation writes to it")
    if not kind.isnative:
        raise UsageError(f"{name} has dtype {kind} in foreign byte order: expected {kind.newbyteorder('=')}")
    # Libraries with types that NumPy lacks call them by name (CuPy's bfloat16 is "V2" here).
    named = str(getattr(x, "dtype", kind.name))
    buffer = _buffer(pointer or 0, math.prod(shape), kind.itemsize, named if named in _NAMES else kind.name, shape, x)
    # None says that nothing is pending; our own work then goes into the legacy default stream, number 1.
    return _on_device(buffer, name, _device_of(pointer or 0, x, name), facts.get("stream") or 1)


def _device_of(pointer: int, x: Any, name: str) -> int:
    # First the array, as CuPy's know: to ask about an address makes a context on the thread's current device, and an
    # empty array has none to ask about. Without an owner that knows, that one counts as on the current device.
    known = getattr(getattr(x, "device", None), "id", None)
    return known if isinstance(known, int) else _core.device_of(pointer, name)


def _on_device(buffer: Buffer, name: str, device: int, stream: int) -> Buffer:
    """Say where a buffer is; refuse one that kernels could not read, whose fault would reach all clients of MPS."""
    numbers = 2 if buffer.datatype in (Datatype.c64, Datatype.c128) else 1
    expected = buffer.itemsize // numbers
    if buffer.count and buffer.pointer % expected:
        raise UsageError(
            f"{name} is at address {buffer.pointer:#x} of a CUDA device: expected a multiple of {expected} bytes for "
            f"{buffer.kind}, as in a copy of it"
        )
    return replace(buffer, device=device, stream=stream)


def _need_cuda(name: str) -> None:
    if not hasattr(_core, "device_of"):  # cuda_report() would ask the driver, for each array
        raise UsageError(f"{name} is on a CUDA device, but this accdp was built without CUDA (docs/gpu.md)")


def _dlpack(x: Any, name: str, writable: bool, device: bool) -> Buffer:
    kind = int(x.__dlpack_device__()[0])
    if device and kind == _DLPACK_CUDA and "torch" in sys.modules:
        return _tensor(_to_torch(x, name, writable), name, writable, device)
    if kind not in _DLPACK_HOST:
        raise UsageError(f"{name} is on a device (DLPack device type {kind}): expected host memory")
    try:
        array = _from_dlpack(x, writable)
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        # NumPy has no bfloat16 of its own; torch reads it, but takes every DLPack array for writable.
        torch = sys.modules.get("torch")
        if torch is None or writable:
            use = "written to" if writable else "read"
            raise UsageError(f"{name}, a {type(x).__name__}, could not be {use} through DLPack: {error}") from error
        return _tensor(_to_torch(x, name, writable), name, writable)
    return _array(array, array, name, writable)


def _to_torch(x: Any, name: str, writable: bool) -> Any:
    try:
        return sys.modules["torch"].from_dlpack(x, copy=False if writable else None)
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise UsageError(f"{name}, a {type(x).__name__}, could not be used through DLPack: {error}") from error


def _from_dlpack(x: Any, writable: bool) -> np.ndarray[Any, Any]:
    if writable:  # in it, not in a copy, which it may hand out where nobody says
        with contextlib.suppress(TypeError):  # it, or NumPy, speaks the older form, whose arrays are read-only
            return np.from_dlpack(x, copy=False)
    return np.from_dlpack(x)


def _buffer(pointer: int, count: int, itemsize: int, kind: str, shape: tuple[int, ...], owner: Any) -> Buffer:
    if datatype := _NAMES.get(kind):
        return Buffer(pointer, count, datatype, itemsize, shape, owner, kind)
    return Buffer(pointer, count * itemsize, Datatype.bytes, 1, shape, owner, kind)  # moved, never reduced


def tell(collective: Callable[[Any], Any], rows: Sequence[Sequence[int]], purpose: str) -> list[list[int]]:
    """Move rows of integers by a collective for a purpose of our own.

    As elements of a datatype that callers' arrays do not have: where a rank makes another call, which happens to be the
    same collective of as many numbers, that is a mismatch, instead of data for the one and numbers for the other.

    Args:
        purpose: Where and why: what the caller has called is not in the words of a mismatch, but this collective.
    """
    given = np.array(rows, np.int64)
    width = given.shape[1]
    try:
        got = collective(given.view(f"V{8 * width}")).view(np.int64)
    except MismatchError as error:
        raise MismatchError(f"{purpose}: {error}") from error
    table: list[list[int]] = got.reshape(-1, width).tolist()
    return table


def counts_of_others(alltoall: Callable[[Any], Any], sent: Sequence[int]) -> list[int]:
    """Return how many elements each rank sends to this one, which tells each how many it sends."""
    purpose = "in alltoall() with send_counts and without recv_counts, which all ranks must call so"
    return [count for (count,) in tell(alltoall, [[count] for count in sent], purpose)]
