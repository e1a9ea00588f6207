"""Where a Communicator's ranks come from: the exchange of the whole job, of an mpi4py communicator, of a part."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core, mpi_world
from .exchange import Alone, Exchange, MpiExchange, StoreExchange
from .launcher import find_launcher, refuse_srun_without_mpi

# Tags of callers are below 2^31. Those of a part's exchange must not meet them, nor those of another split.
_TAG = 1 << 40
_store: list[Any] = []  # torchrun's store, opened once: rank 0 may be the one that serves it


def whole_job(timeout_s: float) -> tuple[Exchange, tuple[int, int]]:
    """Return the exchange of all ranks of this job, whatever started it, and this one's place in it as it began."""
    dist = sys.modules.get("torch.distributed")
    has_torchs = dist is not None and dist.is_available() and dist.is_initialized()
    try:
        is_launched = find_launcher() is not None
    except _core.UsageError:
        if not has_torchs:
            raise
        is_launched = False  # a child of a rank, in a world whose ranks somebody else has told it
    backend = sys.modules.get(f"{__package__}.backend")  # which any group of it has loaded
    is_shrunk = dist and backend and has_torchs and backend.seat(0)[1] > dist.get_world_size()
    if is_launched and not is_shrunk:  # else some of the launcher's ranks are dead
        rank, size = mpi_world.enter_launched(timeout_s)
        return MpiExchange(rank, size, timeout_s), (rank, size)
    if dist is not None and has_torchs:
        store = dist.PrefixStore("accdp_communicator", dist.distributed_c10d._get_default_store())
        rank, size = dist.get_rank(), dist.get_world_size()
        ended = backend.who_has_ended(range(size)) if backend else tuple
        seat = backend.seat(rank) if backend else (rank, size)
        return StoreExchange(store, rank, size, timeout_s, ended=ended), seat
    if os.environ.get("RANK") and os.environ.get("WORLD_SIZE"):
        exchange = _of_torchrun(timeout_s)
        return exchange, (exchange.rank, exchange.size)
    refuse_srun_without_mpi()
    return Alone(timeout_s), (0, 1)


def _of_torchrun(timeout_s: float) -> Exchange:
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise _core.UsageError(
            f"RANK and WORLD_SIZE are set, but meeting through them needs torch: {error}; use mpiexec without torch"
        ) from error
    if not _store:
        _check_place()
        try:
            _store.append(next(iter(dist.rendezvous("env://"))))
        except ValueError as error:
            raise _core.UsageError(
                f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} are set, as by torchrun: {error}"
            ) from error
    store, rank, size = _store[0]
    return StoreExchange(dist.PrefixStore("accdp_communicator", store), rank, size, timeout_s)


def _check_place() -> None:
    """torch would wait for ranks that cannot come."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise _core.UsageError(f"RANK={rank} and WORLD_SIZE={size} are set: expected numbers, the rank below the size")


def of_mpi4py(comm: Any, timeout_s: float) -> tuple[Exchange, tuple[int, int]]:
    """Return the exchange of the ranks of an mpi4py communicator, and this one's place in it."""
    if isinstance(comm, type) or not all(
        hasattr(comm, name) for name in ("Get_rank", "Get_size", "Is_inter", "handle")
    ):
        remedy = "; Communicator() has the ranks of torch's world" if type(comm).__name__ == "ProcessGroup" else ""
        raise _core.UsageError(
            f"comm is a {type(comm).__name__}: expected a communicator of mpi4py 4.0 or newer{remedy}"
        )
    if not comm:
        raise _core.UsageError("comm is MPI.COMM_NULL, or was freed: expected a communicator that this rank is in")
    if not mpi_world.load().is_initialized():
        raise _core.UsageError("comm: MPI is not initialised in this process, or finalised already: expected neither")
    if comm.Is_inter():
        raise _core.UsageError("comm is an intercommunicator: expected an intracommunicator, as of comm.Merge()")
    rank, size = comm.Get_rank(), comm.Get_size()
    return MpiExchange(rank, size, timeout_s, int(comm.handle)), (rank, size)


class PartExchange:
    """Exchange among some ranks of a group that exists; the others take no part.

    Args:
        group: The group whose ranks the members are.
        members: Ranks of the group, in the order of their new ranks; this rank is one of them.
        number: Tells this exchange's messages from those of others.
        whole: Exchange of the group.
    """

    def __init__(self, group: _core.Group, members: Sequence[int], number: int, whole: Exchange):
        self._whole, self._name = whole, f"{number}:{','.join(map(str, members))}"
        self.rank, self.size = list(members).index(group.rank), len(members)
        self.timeout_s = group.timeout_s
        self._group, self._members, self._tag = group, list(members), _TAG + number

    def allgather(self, data: bytes) -> list[bytes]:
        if self.rank == 0:
            parts = [data, *(self._receive(member) for member in self._members[1:])]
            for member in self._members[1:]:
                for part in parts:
                    self._send(part, member)
            return parts
        self._send(data, self._members[0])
        return [self._receive(self._members[0]) for _ in self._members]

    def settle(self) -> None:
        pass  # the group delivers what was sent

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass

    def notices(self, part: str = "") -> object | None:
        return self._whole.notices(f"/{self._name}{part}")

    def _send(self, data: bytes, to: int) -> None:
        for array in (np.array([len(data)], np.int64), np.frombuffer(data, np.uint8)):
            self._group.send(array.ctypes.data, array.nbytes, _core.Datatype.bytes, to, self._tag)

    def _receive(self, source: int) -> bytes:
        length = np.zeros(1, np.int64)
        self._group.recv(length.ctypes.data, length.nbytes, _core.Datatype.bytes, source, self._tag)
        data = np.empty(int(length[0]), np.uint8)
        self._group.recv(data.ctypes.data, data.nbytes, _core.Datatype.bytes, source, self._tag)
        return data.tobytes()
