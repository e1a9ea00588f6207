"""Channels: what compressed operations need of a group, over a torch process group or a Communicator."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from . import _core, buffers
from .buffers import Buffer
from .communicator import Communicator
from .device_memory import HostView, mark_of
from .stream_call import StreamCall
from .worker import await_end

if TYPE_CHECKING:
    from ._torch import StreamUnderWay

Report = dict[str, Any]

_SHORTEST = timedelta(milliseconds=1)  # that a work of torch can be waited for
_TORCH_OPS = {"prod": "PRODUCT"}  # where torch has another name

_everybody: list[Communicator] = []  # all ranks of the job, formed at first use
_forming = threading.RLock()  # a signal handler may come first, too


def _renew_lock() -> None:
    global _forming
    _forming = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # whose thread may not have been forked along


class Pending(Protocol):
    """An operation under way."""

    def is_completed(self) -> bool: ...
    def wait(self, timeout_s: float | None) -> Report: ...


class Channel(Protocol):
    """A group of ranks."""

    rank: int
    size: int

    def bcast(
        self,
        stream: Sequence[Buffer],
        old: Sequence[Buffer] | None,
        root: int,
        call: StreamCall,
        *,
        async_op: bool,
    ) -> Pending: ...

    def allreduce(
        self,
        x: Buffer,
        counts: Sequence[int],
        op: str,
        call: StreamCall,
        *,
        residual: Buffer | None,
        async_op: bool,
    ) -> Pending: ...

    def table(self, row: Sequence[int], purpose: str) -> list[list[int]]:
        """Return the rows of all ranks; integers below 2^63. Collective; a mismatch is told with the purpose."""


def channel_of(group: Any) -> Channel:
    """Return the channel of a torch process group, a Communicator, or None for all ranks of the job."""
    if isinstance(group, Communicator):
        return CommunicatorChannel(group)
    channel = torch_channel_of(group)
    if channel is not None:
        return channel
    if group is None:
        if not _everybody:
            with _forming:  # threads that come first at once are to have the same one, on all ranks
                if not _everybody:
                    _everybody.append(Communicator())
        return CommunicatorChannel(_everybody[0])
    dist = sys.modules.get("torch.distributed")
    other = f"group is a {type(group).__name__}: expected a torch process group or a Communicator"
    if dist is None or not dist.is_available():
        raise _core.UsageError(other)
    who = f"rank {dist.get_rank()} of {dist.get_world_size()}: " if dist.is_initialized() else ""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise _core.UsageError(f"{who}group: this rank is not a member of it: expected a call by its members only")
    if not isinstance(group, dist.ProcessGroup):
        raise _core.UsageError(who + other)
    raise _core.UsageError(f"{who}group: its backend is {dist.get_backend(group)}, expected accdp, or a Communicator")


def torch_channel_of(group: Any) -> TorchChannel | None:
    """Return the channel of a torch process group, or None for the default one; None where its backend is not accdp."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    chosen = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        return None
    from .backend import backend_of

    backend = backend_of(chosen)
    return None if backend is None else TorchChannel(backend)


class CommunicatorChannel:
    """Over a Communicator."""

    def __init__(self, communicator: Communicator):
        self.rank, self.size = communicator.rank, communicator.size
        self._communicator = communicator

    def bcast(
        self, stream: Sequence[Buffer], old: Sequence[Buffer] | None, root: int, call: StreamCall, *, async_op: bool
    ) -> Pending:
        is_root = self.rank == root
        mark = self._mark([*stream, *(old or ())]) if async_op else None

        def run(group: _core.Group) -> Report:
            keep = (stream, old)  # the arrays, until the operation has ended
            news = [(x, is_root, not is_root) for x in stream]
            view = self._view([*news, *((x, True, False) for x in old or ())], mark)
            before = view.pointers[len(stream) :]
            tensors = [
                (view.pointers[i], x.count, x.datatype, before[i] if old is not None and x.count else 0)
                for i, x in enumerate(stream)
            ]
            report = group.bcast_stream(
                tensors,
                root,
                call.codec,
                call.chunk_bytes,
                call.algorithm,
                *call.bound,
                label=call.label,
                on_device=view.on_device,
            )
            view.deliver()
            del keep
            return report

        return _FuturePending(self._communicator._run(run, later=async_op), self._communicator)

    def allreduce(
        self, x: Buffer, counts: Sequence[int], op: str, call: StreamCall, *, residual: Buffer | None, async_op: bool
    ) -> Pending:
        how = getattr(_core.ReduceOp, op)
        mark = self._mark([x] if residual is None else [x, residual]) if async_op else None

        def run(group: _core.Group) -> Report:
            keep = (x, residual)  # the arrays, until the operation has ended
            rest = [] if residual is None else [(residual, False, True)]
            view = self._view([(x, True, True), *rest], mark)
            left = view.pointers[1] if residual is not None and x.count else 0
            report = group.allreduce_stream(
                view.pointers[0],
                counts,
                x.datatype,
                how,
                call.codec,
                call.chunk_bytes,
                *call.bound,
                residual=left,
                label=call.label,
                on_device=view.on_device,
            )
            view.deliver()
            del keep
            return report

        return _FuturePending(self._communicator._run(run, later=async_op), self._communicator)

    def _mark(self, buffers: list[Buffer]) -> _core.StreamMark | None:
        path = self._communicator._path_of(*buffers)
        with self._communicator._args.naming_rank():
            return None if path is None else mark_of(path, buffers)

    def _view(self, buffers: list[tuple[Buffer, bool, bool]], mark: _core.StreamMark | None) -> HostView:
        with self._communicator._args.naming_rank():
            return HostView(self._communicator._path_of(*[x for x, _, _ in buffers]), buffers, later=True, mark=mark)

    def table(self, row: Sequence[int], purpose: str) -> list[list[int]]:
        return buffers.tell(self._communicator.allgather, [row], purpose)


class _FuturePending:
    def __init__(self, future: Future[Report], communicator: Communicator):
        self._future, self._communicator = future, communicator

    def is_completed(self) -> bool:
        return self._future.done()

    def wait(self, timeout_s: float | None) -> Report:
        if not self._future.done():
            self._communicator._core.check_caller()
            # Not by catching result()'s error: the operation's own PeerTimeout is one of the same kind.
            if not await_end(self._future, timeout_s):
                raise _still_under_way(self._communicator, timeout_s)
        try:
            return self._future.result()
        finally:
            del self  # else an error, whose traceback has this frame, keeps itself


class TorchChannel:
    """Over the accdp backend of a torch process group; operations keep their order among those of torch."""

    def __init__(self, backend: Any):
        self.rank, self.size = backend.rank(), backend.size()
        self._backend = backend

    def bcast(
        self, stream: Sequence[Buffer], old: Sequence[Buffer] | None, root: int, call: StreamCall, *, async_op: bool
    ) -> Pending:
        streams = _Streams([*stream, *(old or ())])
        under_way = self._backend.bcast_stream(
            [_as_tensor(x) for x in stream],
            [] if old is None else [_as_tensor(x) for x in old],
            root,
            call.codec,
            call.chunk_bytes,
            call.algorithm,
            *call.bound,
            call.label,
            async_op,
            timedelta(milliseconds=-1),  # the group's
        )
        return _WorkPending(under_way, self, streams)

    def allreduce(
        self, x: Buffer, counts: Sequence[int], op: str, call: StreamCall, *, residual: Buffer | None, async_op: bool
    ) -> Pending:
        from torch.distributed import ReduceOp

        streams = _Streams([x] if residual is None else [x, residual])
        under_way = self._backend.allreduce_stream(
            _as_tensor(x),
            list(counts),
            getattr(ReduceOp, _TORCH_OPS.get(op, op.upper())),
            call.codec,
            call.chunk_bytes,
            *call.bound,
            None if residual is None else _as_tensor(residual),
            call.label,
            async_op,
            timedelta(milliseconds=-1),  # the group's
        )
        return _WorkPending(under_way, self, streams)

    def table(self, row: Sequence[int], purpose: str) -> list[list[int]]:
        try:
            every = self._backend.table(list(row))
        except _core.MismatchError as error:
            raise _core.MismatchError(f"{purpose}: {error}") from error
        return [every[at : at + len(row)] for at in range(0, len(every), len(row))]


class _WorkPending:
    def __init__(self, under_way: StreamUnderWay, channel: Channel, streams: _Streams):
        self._under_way, self._channel, self._streams = under_way, channel, streams

    def torch_future(self) -> Any:
        """Return the work's future, whose value is a list of the tensors."""
        return self._under_way.work.get_future()

    def is_completed(self) -> bool:
        return self._under_way.work.is_completed()

    def wait(self, timeout_s: float | None) -> Report:
        # For works of torch 0 is no limit.
        limit = None if timeout_s is None else max(timedelta(seconds=timeout_s), _SHORTEST)
        report = self._under_way.wait(limit)
        if report is None:
            raise _still_under_way(self._channel, timeout_s)
        self._streams.follow()
        return report


class _Streams:
    """Of device arrays that are not torch's: before an operation comes what they hold, and after it what they get."""

    def __init__(self, buffers: list[Buffer]):
        import torch

        self._torch = torch
        on_device = {
            (x.device, x.stream) for x in buffers if x.device is not None and not isinstance(x.owner, torch.Tensor)
        }
        self._theirs: list[Any] = []
        for device, stream in sorted(on_device):
            # torch knows the legacy default stream, number 1, as its own default one only.
            theirs = torch.cuda.ExternalStream(stream, device) if stream > 1 else torch.cuda.default_stream(device)
            torch.cuda.current_stream(device).wait_stream(theirs)
            self._theirs.append(theirs)

    def follow(self) -> None:
        """What they hold from now on waits for what the current streams hold by now."""
        for theirs in self._theirs:
            theirs.wait_stream(self._torch.cuda.current_stream(theirs.device))


def _still_under_way(channel: Channel | Communicator, timeout_s: float | None) -> _core.PeerTimeout:
    return _core.PeerTimeout(
        f"rank {channel.rank} of {channel.size}: the operation has not ended within {timeout_s:g} s (timeout_s); "
        "still under way"
    )


def _as_tensor(x: Buffer) -> Any:
    import torch

    if isinstance(x.owner, torch.Tensor):
        return x.owner
    if x.device is not None:
        # By __cuda_array_interface__; of another device, torch's default one say, it would be a copy there.
        return torch.as_tensor(x.owner, device=f"cuda:{x.device}")
    data = torch.from_numpy(np.asarray(_Bytes(x)))
    return data if x.datatype == _core.Datatype.bytes else data.view(getattr(torch, x.kind))


class _Bytes:
    """A host buffer's bytes for NumPy, and so for torch, which knows few of NumPy's datatypes and no read-only ones."""

    def __init__(self, x: Buffer):
        self.owner = x.owner  # lives as long as the array that is made of this
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (x.count * x.itemsize,),
            "data": (x.pointer, False),
        }
