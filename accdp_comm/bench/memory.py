"""Buffers of a benchmark, in host memory or on a GPU; filled from and read back as NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .operations import Refused

DATATYPES: dict[str, np.dtype[Any]] = {
    "mpi_char": np.dtype(np.int8),
    "mpi_int": np.dtype(np.int32),
    "mpi_float": np.dtype(np.float32),
    "mpi_double": np.dtype(np.float64),
}


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
        kind = self._torch.from_numpy(np.empty(0, dtype)).dtype
        return self._torch.empty(count, dtype=kind, device=self._device).fill_(0)

    def fill(self, buffer: Any, values: NDArray[Any]) -> None:
        buffer.copy_(self._torch.from_numpy(values))
        self.finish()

    def read(self, buffer: Any) -> NDArray[Any]:
        return buffer.cpu().numpy()

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


def gpu_id(device: str) -> str:
    """Return what tells a GPU from all others of its node."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)
