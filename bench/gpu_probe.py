"""Learn what processes that share GPU 0 can do with each other's memory; a step of bench/gpu_check.py, on 2 ranks.

    accdp run --ranks-per-gpu 2 --gpus 0 --mps on|off bench/gpu_probe.py --out FILE.json

CUDA IPC memory and events: as the package's own first call finds them (csrc/gpu/pool_probe.cpp), in its words. Whether
a stream's wait for a value in such memory (cuStreamWaitValue32) is ended by another process's stream
(cuStreamWriteValue32): with the driver's own calls. Such a wait has no end of its own: where the value does not come,
the rank that waits writes it itself, and where that does not help ends its process. After WITHIN_S every rank ends,
wherever it is. What is found is written as it is found; nothing that a GPU cannot do is a failure here.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accdp_comm import Communicator

WITHIN_S = 40.0
CALL_S = 20.0
HELD_S = 0.05  # that a stream is watched, whether it waits
COMES_S = 2.0  # that a value is waited for
SAID_BYTES = 300
VALUE, MARK = 7, 9
STUCK = "and the stream still waits after a write of its own process"
NOT_READY = 600  # CUDA_ERROR_NOT_READY
IPC_EVENTS = 125  # CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED


class DriverError(Exception):
    """A call of the driver failed."""


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_byte * 64),)


_ADDRESS, _STREAM, _WORD = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32
_OUT = ctypes.POINTER
_CALLS: dict[str, list[Any]] = {  # of cuda.h, with the names that the library has
    "cuCtxGetDevice": [_OUT(ctypes.c_int)],
    "cuDeviceGetAttribute": [_OUT(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuMemAlloc_v2": [_OUT(_ADDRESS), ctypes.c_size_t],
    "cuMemFree_v2": [_ADDRESS],
    "cuMemsetD32Async": [_ADDRESS, _WORD, ctypes.c_size_t, _STREAM],
    "cuMemcpyDtoHAsync_v2": [ctypes.c_void_p, _ADDRESS, ctypes.c_size_t, _STREAM],
    "cuIpcGetMemHandle": [_OUT(Handle), _ADDRESS],
    "cuIpcOpenMemHandle_v2": [_OUT(_ADDRESS), Handle, ctypes.c_uint],
    "cuIpcCloseMemHandle": [_ADDRESS],
    "cuStreamCreate": [_OUT(_STREAM), ctypes.c_uint],
    "cuStreamQuery": [_STREAM],
    "cuStreamWaitValue32_v2": [_STREAM, _ADDRESS, _WORD, ctypes.c_uint],
    "cuStreamWriteValue32_v2": [_STREAM, _ADDRESS, _WORD, ctypes.c_uint],
}


class Driver:
    """The calls of the driver that the probe makes, in the context that is current. Streams wait for no other."""

    def __init__(self, library: str = "libcuda.so.1"):
        self._library = ctypes.CDLL(library)
        for name, types in _CALLS.items():
            getattr(self._library, name).argtypes = types

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or str(status).encode()).decode()}")

    def _made(self, name: str, kind: Any, *arguments: Any) -> Any:
        """Return what a call writes through its first argument."""
        result = kind()
        self._call(name, ctypes.byref(result), *arguments)
        return result

    def attribute(self, number: int) -> int:
        device = self._made("cuCtxGetDevice", ctypes.c_int)
        return self._made("cuDeviceGetAttribute", ctypes.c_int, number, device).value

    def stream(self) -> ctypes.c_void_p:
        return self._made("cuStreamCreate", _STREAM, 1)  # CU_STREAM_NON_BLOCKING

    def allocate(self, nbytes: int) -> int:
        return self._made("cuMemAlloc_v2", _ADDRESS, nbytes).value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def share(self, address: int) -> bytes:
        return bytes(self._made("cuIpcGetMemHandle", Handle, address))

    def open(self, handle: bytes) -> int:
        # 1: CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, which must be there
        return self._made("cuIpcOpenMemHandle_v2", _ADDRESS, Handle.from_buffer_copy(handle), 1).value

    def close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def fill(self, stream: Any, address: int, value: int) -> None:
        self._call("cuMemsetD32Async", address, value, 1, stream)

    def read(self, stream: Any, address: int, into: np.ndarray) -> None:
        self._call("cuMemcpyDtoHAsync_v2", into.ctypes.data, address, into.nbytes, stream)

    def wait_value(self, stream: Any, address: int, value: int) -> None:
        self._call("cuStreamWaitValue32_v2", stream, address, value, 0)  # CU_STREAM_WAIT_VALUE_GEQ

    def write_value(self, stream: Any, address: int, value: int) -> None:
        self._call("cuStreamWriteValue32_v2", stream, address, value, 0)

    def is_done(self, stream: Any) -> bool:
        status = self._library.cuStreamQuery(stream)
        if status not in (0, NOT_READY):
            self._call("cuStreamQuery", stream)
        return status == 0


def comes(gpu: Any, stream: Any, within_s: float) -> bool:
    """Whether a stream is done within that time."""
    end = time.monotonic() + within_s
    while not gpu.is_done(stream):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def first_trouble(comm: Any, mine: str) -> str:
    """Return what the first rank that has trouble says; empty where none has. Ranks keep step whatever fails."""
    said = np.zeros(SAID_BYTES, np.uint8)
    text = mine.encode(errors="replace")[:SAID_BYTES]
    said[: len(text)] = np.frombuffer(text, np.uint8)
    for rank, row in enumerate(comm.allgather(said).reshape(comm.size, -1)):
        if row.any():
            return f"rank {rank}: {bytes(row).rstrip(bytes(1)).decode(errors='replace')}"
    return ""


def exchange_value(gpu: Any, comm: Any) -> str:
    """Whether rank 0's stream, which waits for a value in its own memory, goes on when rank 1's stream writes it.

    Returns "works", or what does not, on both ranks; with STUCK in it, this process must end without ending CUDA.
    """
    return _Exchange(gpu, comm).run()


class _Exchange:
    """Two ranks and a value in memory of rank 0's, step by step."""

    def __init__(self, gpu: Any, comm: Any) -> None:
        self.gpu, self.comm = gpu, comm
        self.trouble = ""  # the first that a rank had, as both know
        self.waiting, self.stream = None, None  # rank 0's that waits; each rank's other one
        self.address, self.holds = 0, False  # of the value; whether the stream was made to wait
        self.handle, self.seen = np.zeros(64, np.uint8), np.zeros(2, np.uint32)

    def run(self) -> str:
        self._step(0, self._prepare)
        self.comm.bcast(self.handle)
        self._step(1, self._open)
        self._step(0, self._wait)
        self._step(1, self._write)
        self._step(0, self._look)
        stuck = first_trouble(self.comm, self._let_go())
        if STUCK in stuck:
            return stuck
        if self.comm.rank == 1 and self.address:
            self.gpu.close(self.address)
        self.comm.barrier()  # nobody has it open when it goes
        if self.comm.rank == 0 and self.address:
            self.gpu.free(self.address)
        return self.trouble or "works"

    def _step(self, rank: int, work: Callable[[], str | None]) -> None:
        """What a rank does next, as long as nobody has trouble; then both know how it went."""
        mine = ""
        if self.comm.rank == rank and not self.trouble:
            try:
                mine = work() or ""
            except DriverError as error:
                mine = str(error)
        self.trouble = self.trouble or first_trouble(self.comm, mine)

    def _prepare(self) -> str | None:
        self.waiting, self.stream = self.gpu.stream(), self.gpu.stream()
        self.address = self.gpu.allocate(2 << 20)
        for at in (self.address, self.address + 4):
            self.gpu.fill(self.stream, at, 0)
        self.handle[:] = np.frombuffer(self.gpu.share(self.address), np.uint8)
        return None if comes(self.gpu, self.stream, COMES_S) else "memory was not cleared"

    def _open(self) -> None:
        self.stream = self.gpu.stream()
        self.address = self.gpu.open(self.handle.tobytes())

    def _wait(self) -> str | None:
        self.gpu.wait_value(self.waiting, self.address, VALUE)
        self.holds = True
        self.gpu.fill(self.waiting, self.address + 4, MARK)
        did_not = "cuStreamWaitValue32 did not hold the stream back"
        return did_not if comes(self.gpu, self.waiting, HELD_S) else None

    def _write(self) -> str | None:
        self.gpu.write_value(self.stream, self.address, VALUE)
        return None if comes(self.gpu, self.stream, COMES_S) else "cuStreamWriteValue32 was not carried out"

    def _look(self) -> str | None:
        if not comes(self.gpu, self.waiting, COMES_S):
            return "the value that another process wrote did not end cuStreamWaitValue32"
        self.gpu.read(self.stream, self.address, self.seen)
        if not comes(self.gpu, self.stream, COMES_S) or self.seen.tolist() != [VALUE, MARK]:
            return f"cuStreamWaitValue32 ended, but memory holds {self.seen.tolist()}"
        return None

    def _let_go(self) -> str:
        """End rank 0's wait where nobody has; return why not, with STUCK in it where nothing does."""
        if self.comm.rank != 0 or not self.holds or comes(self.gpu, self.waiting, 0):
            return ""
        ends = ""
        try:
            self.gpu.write_value(self.stream, self.address, VALUE)
        except DriverError as error:
            ends = str(error)
        return ends if comes(self.gpu, self.waiting, COMES_S) else f"{ends or self.trouble}, {STUCK}"


def ipc_of(device_path: str) -> dict[str, str]:
    """What the package's first call found of CUDA IPC."""
    if not device_path.startswith("shared GPU"):
        return {"ipc_memory": device_path, "ipc_events": "not tried"}
    _, by_host, why = device_path.partition(", ordered by the host (")
    return {"ipc_memory": "works", "ipc_events": why.removesuffix(")") if by_host else "works"}


def probe(
    comm: Any, keep: Callable[[dict[str, Any]], None], device: str, driver: Callable[[], Any], tries_values: bool = True
) -> str:
    """Find out one thing after another; returns what was found of values in IPC memory."""
    import torch

    total = comm.allreduce(torch.ones(1000, device=device))
    keep({"device_path": comm.device_path, **ipc_of(comm.device_path)})
    if not torch.equal(total, torch.full_like(total, comm.size)):
        keep({"failed": "the first allreduce gave a wrong sum"})
    gpu, trouble = None, ""
    try:
        gpu = driver()
        keep({"ipc_events_by_driver": bool(gpu.attribute(IPC_EVENTS))})
    except (DriverError, OSError, AttributeError) as error:  # no library, or one that lacks a function
        trouble = str(error)
    if not tries_values:
        return ""
    found = first_trouble(comm, trouble) or exchange_value(gpu, comm)
    keep({"wait_value": found})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-values", action="store_true", help="leave out values in IPC memory")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(WITHIN_S, exit=True)
    found: dict[str, Any] = {}
    with Communicator(timeout_s=CALL_S) as comm:

        def keep(more: dict[str, Any]) -> None:
            found.update(more)
            if comm.rank == 0:
                part = options.out.with_suffix(".part")
                part.write_text(json.dumps(found))
                part.replace(options.out)

        if STUCK in probe(comm, keep, options.device, Driver, not options.no_values):
            os._exit(1)  # the end of CUDA would wait for the stream
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
