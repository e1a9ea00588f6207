"""Buffers: an array or tensor becomes (address, count, datatype). Nothing else in accdp looks inside arrays.

Taken as they are: NumPy arrays (also ml_dtypes' bfloat16 and float8) and torch CPU tensors. Other libraries' arrays are
taken through DLPack where they are in host memory, for reading only: DLPack's older form, which most libraries speak,
cannot say whether an array may be written to.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._core import Datatype, UsageError

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
    "float32": Datatype.f32,
    "float64": Datatype.f64,
    "complex64": Datatype.c64,
    "complex128": Datatype.c128,
}
_DLPACK_HOST = (1, 3)  # kDLCPU and kDLCUDAHost; all other device types are not host memory


@dataclass(frozen=True)
class Buffer:
    """Contiguous host memory and what is in it."""

    pointer: int
    count: int  # elements; bytes where the datatype is `bytes`
    datatype: Datatype
    itemsize: int  # bytes per element of the datatype
    shape: tuple[int, ...]
    owner: Any  # the array itself: keeps the memory alive, and says which library new arrays come from

    def block(self, start: int, count: int) -> tuple[int, int]:
        """Return (address, count) of ``count`` elements from element ``start`` on."""
        return self.pointer + start * self.itemsize, count

    def rows(self, counts: list[int]) -> list[tuple[int, int]]:
        """Return the blocks of consecutive runs of rows (first dimension), ``counts[i]`` rows in run i."""
        width = self.count // self.shape[0] if self.shape and self.shape[0] else 0
        blocks, start = [], 0
        for count in counts:
            blocks.append(self.block(start * width, count * width))
            start += count
        return blocks


def describe(x: Any, name: str, *, writable: bool) -> Buffer:
    """Return where an array's elements are and what they are.

    Args:
        x: NumPy array, torch tensor, or any object with ``__dlpack__``; contiguous (C order), in host memory.
        name: Of the argument, for errors.
        writable: Whether the operation writes to it.
    Raises:
        UsageError: Not an array, not contiguous, not in host memory, read-only though written to, or Python objects.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _tensor(x, name)
    if isinstance(x, np.ndarray):
        return _array(x, x, name, writable)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _dlpack(x, name, writable)
    raise UsageError(
        f"{name} is a {type(x).__name__}: expected a NumPy array, a torch tensor or an object with __dlpack__"
    )


def new_like(x: Buffer, shape: tuple[int, ...]) -> Any:
    """Return a new array of another shape with the datatype of ``x``: a torch tensor for a tensor, else NumPy."""
    if isinstance(x.owner, np.ndarray):
        return np.empty(shape, x.owner.dtype)
    return x.owner.new_empty(shape)


def _array(array: np.ndarray[Any, Any], owner: Any, name: str, writable: bool) -> Buffer:
    kind = array.dtype
    if kind.hasobject:
        raise UsageError(f"{name} has dtype {kind}: Python objects cannot be sent, expected numbers or plain records")
    if not kind.isnative:
        raise UsageError(f"{name} has dtype {kind} in foreign byte order: expected {kind.newbyteorder('=')}")
    if not array.flags.c_contiguous:
        raise UsageError(
            f"{name} is not contiguous (shape {array.shape}, strides {array.strides}): "
            f"expected C order, as of np.ascontiguousarray({name})"
        )
    if writable and not array.flags.writeable:
        raise UsageError(f"{name} is read-only, but the operation writes to it")
    return _buffer(array.ctypes.data, array.size, kind.itemsize, kind.name, array.shape, owner)


def _tensor(tensor: Any, name: str) -> Buffer:
    if str(tensor.layout) != "torch.strided":
        raise UsageError(f"{name} has layout {tensor.layout}: expected a dense tensor")
    if tensor.device.type != "cpu":
        raise UsageError(f"{name} is on {tensor.device}: expected host memory, as of {name}.cpu()")
    if not tensor.is_contiguous():
        raise UsageError(
            f"{name} is not contiguous (shape {tuple(tensor.shape)}, strides {tensor.stride()}): "
            f"expected {name}.contiguous()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name} is a lazy conjugate or negation: expected {name}.resolve_conj().resolve_neg()")
    kind = str(tensor.dtype).removeprefix("torch.")
    return _buffer(tensor.data_ptr(), tensor.numel(), tensor.element_size(), kind, tuple(tensor.shape), tensor)


def _dlpack(x: Any, name: str, writable: bool) -> Buffer:
    device = x.__dlpack_device__()[0]
    if int(device) not in _DLPACK_HOST:
        raise UsageError(f"{name} is on a device (DLPack device type {int(device)}): expected host memory")
    try:
        array = np.from_dlpack(x)
    except (RuntimeError, BufferError, TypeError) as error:
        # NumPy has no bfloat16 of its own; torch reads it, but takes every DLPack array for writable.
        torch = sys.modules.get("torch")
        if torch is None or writable:
            raise UsageError(f"{name}, a {type(x).__name__}, could not be read through DLPack: {error}") from error
        return _tensor(torch.from_dlpack(x), name)
    return _array(array, array, name, writable)


def _buffer(pointer: int, count: int, itemsize: int, kind: str, shape: tuple[int, ...], owner: Any) -> Buffer:
    if datatype := _NAMES.get(kind):
        return Buffer(pointer, count, datatype, itemsize, shape, owner)
    return Buffer(pointer, count * itemsize, Datatype.bytes, 1, shape, owner)  # moved, never reduced
