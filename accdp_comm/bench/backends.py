"""The backends of NumPy buffers: accdp's Communicator, and mpi4py. torch's are in torch_backends.py.

A backend turns an operation and buffers into a call without arguments, everything resolved beforehand, so that only
the library is between two readings of the clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from .memory import Memory
from .operations import Operation, Refused, shares
from .world import AccdpWorld, World, import_mpi

Call = Callable[[], object]


@dataclass(frozen=True)
class Buffers:
    """One set of buffers; in place, the result is in ``send``."""

    send: Any
    receive: Any
    acknowledgement: Any  # one element that ends a window of osu_bw


@dataclass(frozen=True)
class Ready:
    """A call and where its result is afterwards; None on ranks that receive nothing."""

    call: Call
    result: Any


class Backend(Protocol):
    """One library behind one name."""

    name: str
    is_in_place: bool  # allreduce and reduce replace their input
    memory: Memory
    barrier: Call | None  # before its calls, and behind the last of a turn; None: the world's

    def collective(self, operation: Operation, buffers: Buffers, root: int) -> Ready:
        """Return the call of a collective on these buffers."""

    def pair(self, operation: Operation, buffers: Buffers, window: int) -> Ready:
        """Return one iteration of latency, bw or bibw between ranks 0 and 1."""

    def report(self) -> dict[str, Any]:
        """Return what the last call said about itself: wire_bytes and codec of compressed broadcasts."""

    def close(self) -> None:
        """Leave what the backend made. Collective."""


class PointToPoint:
    """latency, bw and bibw from four functions: blocking and non-blocking send and receive."""

    barrier: Call | None = None
    rank: int
    send: Callable[[Any], object]
    receive: Callable[[Any], object]
    isend: Callable[[Any], Any]
    ireceive: Callable[[Any], Any]
    wait: Callable[[list[Any]], object]

    def pair(self, operation: Operation, buffers: Buffers, window: int) -> Ready:
        make = {"latency": self._latency, "bw": self._one_way, "bibw": self._both_ways}[operation.name]
        return make(buffers, window)

    def _latency(self, buffers: Buffers, window: int) -> Ready:
        outgoing, incoming, send, receive = buffers.send, buffers.receive, self.send, self.receive

        def ping() -> None:
            send(outgoing)
            receive(incoming)

        def pong() -> None:
            receive(incoming)
            send(outgoing)

        return Ready(ping if self.rank == 0 else pong, incoming)

    def _one_way(self, buffers: Buffers, window: int) -> Ready:
        start, wait, rounds = (self.ireceive if self.rank else self.isend), self.wait, range(window)
        buffer = buffers.receive if self.rank else buffers.send
        acknowledge = partial(self.send if self.rank else self.receive, buffers.acknowledgement)

        def stream() -> None:
            wait([start(buffer) for _ in rounds])
            acknowledge()

        return Ready(stream, buffers.receive if self.rank else None)

    def _both_ways(self, buffers: Buffers, window: int) -> Ready:
        outgoing, incoming, rounds = buffers.send, buffers.receive, range(window)
        isend, ireceive, wait = self.isend, self.ireceive, self.wait

        def exchange() -> None:
            coming = [ireceive(incoming) for _ in rounds]
            wait(coming + [isend(outgoing) for _ in rounds])

        return Ready(exchange, incoming)


class Compression:
    """How a backend broadcasts, and what the last broadcast said about itself."""

    def __init__(self, codec: str | None, bound: Any):
        self._codec, self._bound = codec, bound
        self._last: Any = None

    def or_plain(self, plain: Call, buffer: Any, root: int, group: Any) -> Call:
        """Return the call of bcast_compressed; without a codec that of the library, as it is."""
        if self._codec is None:
            return plain
        from ..bcast import bcast_compressed  # other backends work without our core

        send = partial(bcast_compressed, buffer, root, group=group, codec=self._codec, error_bound=self._bound)

        def call() -> None:
            self._last = send()

        return call

    def report(self) -> dict[str, Any]:
        """Return what a BcastResult says, for the JSON row."""
        if self._last is None:
            return {}
        return {"wire_bytes": self._last.wire_bytes, "ratio": self._last.ratio, "codec": self._last.codec}


class AccdpBackend(PointToPoint):
    """accdp_comm.Communicator; with a codec or error bound, broadcast is bcast_compressed."""

    is_in_place = False

    def __init__(self, world: AccdpWorld, memory: Memory, codec: str | None, bound: Any, in_place: bool):
        from ..messages import waitall  # other backends work without our core

        self.name = f"accdp+{codec}" if codec else "accdp"
        self.comm, self.memory, self.rank = world.comm, memory, world.rank
        self._compression, self.is_in_place = Compression(codec, bound), in_place
        peer = 1 - self.rank
        self.send = partial(self.comm.send, dst=peer)
        self.receive = partial(self.comm.recv, src=peer)
        self.isend = partial(self.comm.isend, dst=peer)
        self.ireceive = partial(self.comm.irecv, src=peer)
        self.wait = waitall

    def collective(self, operation: Operation, buffers: Buffers, root: int) -> Ready:
        comm, send, receive = self.comm, buffers.send, buffers.receive
        received = receive if self.rank == root else None
        out = None if self.is_in_place else receive
        if operation.name == "bcast":
            plain = partial(comm.bcast, send, root)
            return Ready(self._compression.or_plain(plain, send, root, comm), send)
        if operation.name == "allreduce":
            return Ready(partial(comm.allreduce, send, "sum", out), send if self.is_in_place else receive)
        if operation.name == "reduce":
            return Ready(partial(comm.reduce, send, "sum", root, receive), received)
        if operation.name == "allgather":
            return Ready(partial(comm.allgather, send, receive), receive)
        if operation.name == "gather":
            return Ready(partial(comm.gather, send, root, receive), received)
        if operation.name == "scatter":
            return Ready(partial(comm.scatter, send, receive, root), receive)
        if operation.name == "alltoall":
            return Ready(partial(comm.alltoall, send, receive), receive)
        if operation.name == "reduce_scatter":
            even = len(send) % comm.size == 0
            return Ready(
                partial(comm.reduce_scatter, send if even else split(send, comm.size), "sum", receive), receive
            )
        return Ready(comm.barrier, None)

    def report(self) -> dict[str, Any]:
        return self._compression.report()

    def close(self) -> None:
        pass


def split(buffer: Any, ranks: int) -> list[Any]:
    """Return the parts of a buffer for each rank, the first ones one element longer where it cannot be even."""
    parts, start = [], 0
    for count in shares(len(buffer), ranks):
        parts.append(buffer[start : start + count])
        start += count
    return parts


def mpi_type(mpi: Any, datatype: str, reduces: bool) -> Any:
    """Return mpi4py's datatype for one of DATATYPES.

    Raises:
        Refused: This MPI cannot add such numbers up.
    """
    if datatype == "mpi_char":
        return mpi.SIGNED_CHAR if reduces else mpi.CHAR  # MPI defines no sums of MPI_CHAR
    names = {"mpi_int": "INT", "mpi_float": "FLOAT", "mpi_double": "DOUBLE", "half": "FLOAT16_T"}
    found = getattr(mpi, names.get(datatype, "BFLOAT16_T"), mpi.DATATYPE_NULL)
    if found != mpi.DATATYPE_NULL:
        return found
    if reduces:
        raise Refused(f"--backend mpi: this MPI knows no {datatype} to add up: expected another -T or --backend")
    return mpi.INT16_T  # to be moved


class MpiBackend(PointToPoint):
    """mpi4py on MPI.COMM_WORLD, on the same buffers."""

    name = "mpi"

    def __init__(self, world: World, memory: Memory, datatype: str, reduces: bool, in_place: bool):
        self._mpi = mpi = import_mpi()
        self.comm, self.memory, self.rank = mpi.COMM_WORLD, memory, world.rank
        seen = world.allgather((self.comm.Get_rank(), self.comm.Get_size()))
        if seen != [(rank, world.size) for rank in range(world.size)]:
            raise Refused(
                f"--backend mpi: MPI sees a world of {seen[0][1]} where there are {world.size} ranks: start the ranks "
                "by the mpiexec of the MPI that mpi4py loads"
            )
        self.is_in_place = in_place
        # Its own, as in OMB: ranks that leave it are polling, and MPI is at its best when both poll.
        self.barrier = self.comm.Barrier
        self._type = mpi_type(mpi, datatype, reduces)
        self._is_bfloat16 = datatype == "bfloat16"
        peer = 1 - self.rank
        self.send = partial(self.comm.Send, dest=peer)
        self.receive = partial(self.comm.Recv, source=peer)
        self.isend = partial(self.comm.Isend, dest=peer)
        self.ireceive = partial(self.comm.Irecv, source=peer)
        self.wait = mpi.Request.Waitall

    def _typed(self, buffer: Any) -> list[Any]:
        """Return a buffer as mpi4py takes it; it reads no arrays of types that NumPy alone does not have."""
        if self._is_bfloat16 and buffer is not None:
            buffer = buffer.view(np.int16 if isinstance(buffer, np.ndarray) else sys.modules["torch"].int16)
        return [buffer, self._type]

    def pair(self, operation: Operation, buffers: Buffers, window: int) -> Ready:
        typed = Buffers(*map(self._typed, (buffers.send, buffers.receive, buffers.acknowledgement)))
        ready = super().pair(operation, typed, window)
        return Ready(ready.call, None if ready.result is None else buffers.receive)

    def collective(self, operation: Operation, buffers: Buffers, root: int) -> Ready:
        comm, mpi, at_root = self.comm, self._mpi, self.rank == root
        send, receive = self._typed(buffers.send), self._typed(buffers.receive)
        received = buffers.receive if at_root else None
        if operation.name == "bcast":
            return Ready(partial(comm.Bcast, send, root), buffers.send)
        if operation.name == "allreduce":
            if self.is_in_place:
                return Ready(partial(comm.Allreduce, mpi.IN_PLACE, send, mpi.SUM), buffers.send)
            return Ready(partial(comm.Allreduce, send, receive, mpi.SUM), buffers.receive)
        if operation.name == "reduce":
            return Ready(partial(comm.Reduce, send, receive if at_root else None, mpi.SUM, root), received)
        if operation.name == "allgather":
            return Ready(partial(comm.Allgather, send, receive), buffers.receive)
        if operation.name == "gather":
            return Ready(partial(comm.Gather, send, receive if at_root else None, root), received)
        if operation.name == "scatter":
            return Ready(partial(comm.Scatter, send if at_root else None, receive, root), buffers.receive)
        if operation.name == "alltoall":
            return Ready(partial(comm.Alltoall, send, receive), buffers.receive)
        if operation.name == "reduce_scatter":
            counts = shares(len(buffers.send), comm.Get_size())
            return Ready(partial(comm.Reduce_scatter, send, receive, counts, mpi.SUM), buffers.receive)
        return Ready(comm.Barrier, None)

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass
