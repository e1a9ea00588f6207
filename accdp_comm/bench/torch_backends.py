"""The backends of torch.distributed: accdp-torch, gloo, nccl, each a process group of all ranks."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from .backends import Buffers, Compression, PointToPoint, Ready, split
from .memory import Memory
from .operations import Operation, Refused

NAMES = {"accdp-torch": "accdp", "gloo": "gloo", "nccl": "nccl"}  # ours -> torch's


def why_not(name: str, device: str) -> str | None:
    """Return why a backend cannot be used here, or None."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return f"--backend {name}: torch is missing: {error}"
    if name == "nccl" and (device != "cuda" or not torch.cuda.is_available()):
        return "--backend nccl: it moves CUDA memory only: expected -d cuda and a GPU"
    if name == "nccl" and not dist.is_nccl_available():
        return "--backend nccl: this torch was built without NCCL"
    return None


def start() -> None:
    """Join the default process group, which carries the others. Collective."""
    import torch
    import torch.distributed as dist

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # ranks share the cores
    try:
        dist.init_process_group("accdp")
    except ValueError as error:
        raise Refused(f"torch.distributed cannot start here: {str(error).splitlines()[0]}") from error


def stop() -> None:
    """Leave all process groups. Collective."""
    import torch.distributed as dist

    dist.destroy_process_group()


class TorchBackend(PointToPoint):
    """One process group. all_reduce and reduce are in place, as torch has them."""

    is_in_place = True

    def __init__(
        self, name: str, memory: Memory, codec: str | None = None, bound: Any = None, *, is_async: bool = False
    ):
        import torch.distributed as dist

        self.name = f"{name}+{codec}" if codec else name
        self._is_nccl, self._is_async = name == "nccl", is_async
        self.memory, self._dist, self._compression = memory, dist, Compression(codec, bound)
        self._group = dist.new_group(backend=NAMES[name])
        self.rank, self._size = dist.get_rank(), dist.get_world_size()
        peer = 1 - self.rank
        group = self._group
        self.send = lambda buffer: dist.send(buffer, peer, group=group)
        self.receive = lambda buffer: dist.recv(buffer, peer, group=group)
        self.isend = lambda buffer: dist.isend(buffer, peer, group=group)
        self.ireceive = lambda buffer: dist.irecv(buffer, peer, group=group)

    @staticmethod
    def wait(works: list[Any]) -> None:
        for work in works:
            work.wait()

    def collective(self, operation: Operation, buffers: Buffers, root: int) -> Ready:
        ready = self._collective(operation, buffers, root)
        if not self._is_async:
            return ready
        call: Any = ready.call
        return Ready(lambda: call(async_op=True).wait(), ready.result)

    def _collective(self, operation: Operation, buffers: Buffers, root: int) -> Ready:
        dist, group, send, receive = self._dist, self._group, buffers.send, buffers.receive
        at_root = self.rank == root
        if operation.name == "bcast":
            plain = partial(dist.broadcast, send, root, group=group)
            return Ready(self._compression.or_plain(plain, send, root, group), send)
        if operation.name == "allreduce":
            return Ready(partial(dist.all_reduce, send, group=group), send)
        if operation.name == "reduce":
            return Ready(partial(dist.reduce, send, root, group=group), send if at_root else None)
        if operation.name == "allgather":
            # torch 2.13 has a new name for it and warns about the old one at each call.
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
            return Ready(partial(gather, receive, send, group=group), receive)
        if operation.name == "gather":
            parts = split(receive, self._size) if at_root else None
            return Ready(partial(dist.gather, send, parts, root, group=group), receive if at_root else None)
        if operation.name == "scatter":
            parts = split(send, self._size) if at_root else None
            return Ready(partial(dist.scatter, receive, parts, root, group=group), receive)
        if operation.name == "alltoall":
            return Ready(partial(dist.all_to_all_single, receive, send, group=group), receive)
        if operation.name == "reduce_scatter":
            if len(send) % self._size:
                return Ready(partial(dist.reduce_scatter, receive, split(send, self._size), group=group), receive)
            scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
            return Ready(partial(scatter, receive, send, group=group), receive)
        return Ready(partial(dist.barrier, group=group), None)

    def _both_ways(self, buffers: Buffers, window: int) -> Ready:
        if not self._is_nccl:
            return super()._both_ways(buffers, window)
        # NCCL's calls between two ranks run one after the other: receives of both would wait for sends behind them.
        dist, peer, group = self._dist, 1 - self.rank, self._group
        messages = [dist.P2POp(dist.irecv, buffers.receive, peer, group)] * window
        messages += [dist.P2POp(dist.isend, buffers.send, peer, group)] * window
        start, wait = dist.batch_isend_irecv, self.wait
        return Ready(lambda: wait(start(messages)), buffers.receive)

    def report(self) -> dict[str, Any]:
        return self._compression.report()

    def close(self) -> None:
        pass  # stop() leaves all groups at once
