"""Buffers of a benchmark, in host memory or on a GPU; filled from and read back as NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import host_memory
from .operations import Refused

# Names for -T and what NumPy calls them. OMB has the first three, the last two are nccl-tests' words.
DATATYPES = {
    "mpi_char": "int8",
    "mpi_int": "int32",
    "mpi_float": "float32",
    "mpi_double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
}
_EXACT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return NumPy's datatype for one of DATATYPES.

    Raises:
        Refused: It is bfloat16, and the package that adds it to NumPy is missing.
    """
    if datatype != "bfloat16":
        return np.dtype(DATATYPES[datatype])
    try:
        import ml_dtypes
    except ImportError as error:
        raise Refused("-T bfloat16: NumPy has it from ml_dtypes: pip install -r requirements/bench.txt") from error
    return np.dtype(ml_dtypes.bfloat16)


def exact_bits(dtype: np.dtype[Any]) -> int:
    """Return up to how many bits whole numbers are exact in a float type; 0 for other types."""
    return _EXACT_BITS.get(dtype.name, 0)


class Memory(Protocol):
    """Where buffers are."""

    is_device: bool  # calls return before their work on the device has ended

    def new(self, count: int, dtype: np.dtype[Any]) -> Any:
        """Return an array or tensor of ``count`` elements, its pages touched."""

    def fill(self, buffer: Any, values: NDArray[Any]) -> None:
        """Copy values into a buffer of the same count and datatype."""

    def read(self, buffer: Any) -> NDArray[Any]:
        """Return what is in a buffer."""

    def finish(self) -> None:
        """Wait until everything started on the device has ended."""


class HostArrays:
    """NumPy arrays."""

    is_device = False

    def new(self, count: int, dtype: np.dtype[Any]) -> Any:
        buffer = np.empty(count, dtype)
        buffer.view(np.uint8).fill(0)  # zeros() would leave all pages to be the same one
        return buffer

    def fill(self, buffer: Any, values: NDArray[Any]) -> None:
        np.copyto(buffer, values)

    def read(self, buffer: Any) -> NDArray[Any]:
        return buffer

    def finish(self) -> None:
        pass


class Tensors:
    """torch tensors on one device."""

    def __init__(self, device: str):
        import torch

        self._torch, self._device = torch, torch.device(device)
        self.is_device = self._device.type == "cuda"

    def new(self, count: int, dtype: np.dtype[Any]) -> Any:
        kind = getattr(self._torch, dtype.name)
        return self._torch.empty(count, dtype=kind, device=self._device).fill_(0)

    def fill(self, buffer: Any, values: NDArray[Any]) -> None:
        # As bytes: torch takes no bfloat16 of NumPy's.
        buffer.view(self._torch.uint8).copy_(self._torch.from_numpy(values.view(np.uint8)))
        self.finish()

    def read(self, buffer: Any) -> NDArray[Any]:
        name = str(buffer.dtype).removeprefix("torch.")
        datatype = next(key for key, value in DATATYPES.items() if value == name)
        return buffer.cpu().view(self._torch.uint8).numpy().view(dtype_of(datatype))

    def finish(self) -> None:
        if self.is_device:
            self._torch.cuda.synchronize(self._device)


def use_gpu(local_rank: int) -> str:
    """Choose this rank's GPU and return its name for torch: ranks of a node go round the GPUs.

    Raises:
        Refused: There is no GPU, or no torch that knows it.
    """
    try:
        import torch
    except ImportError as error:
        raise Refused(f"-d cuda: its buffers are torch tensors, and torch is missing: {error}") from error
    if not torch.cuda.is_available():
        raise Refused("-d cuda: torch finds no CUDA device here")
    device = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(device)
    return f"cuda:{device}"


def free_bytes(device: str) -> int:
    """Return how many bytes can still be had on a device of torch's name, "cpu" being this host.

    Raises:
        Refused: The host does not say.
    """
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if left := host_memory.left():
        return min(one.bytes for one in left)
    raise Refused("/proc/meminfo does not say how much memory is available")


def gpu_id(device: str) -> str:
    """Return what tells a GPU from all others of its node."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)
