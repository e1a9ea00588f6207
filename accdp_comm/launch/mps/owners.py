"""The owners of MPS on the other hosts of a job, as `accdp run` sees them: asked for, heard, told, let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..control import Connection
from ..environment import MpsShare
from ..gpus import Gpu
from ..ranks import GUARD_S
from . import owner


@dataclass
class _Host:
    """One other host."""

    name: str
    ranks: dict[int, Gpu]  # that should be clients
    connection: Connection | None = None
    shares: dict[str, list[str]] | None = None  # by GPU; None until the owner has said
    pids: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    is_guarded: bool = True  # the guards of all its ranks live


class Owners:
    """All of them.

    Args:
        mode: ``--mps``.
        say: Writes a line for the user.
        grace_s: Seconds that ranks have between the first signal and what follows.
        environment: What owners are to have, and get otherwise from the launcher; None removes a variable.
    """

    def __init__(self, mode: str, say: Callable[[str], None], grace_s: float, environment: Mapping[str, str | None]):
        self._mode, self._say, self._environment = mode, say, environment
        self._patience_s = grace_s + GUARD_S
        self._hosts: dict[str, _Host] = {}  # by node key
        self.trouble = ""  # why the job must end
        self._are_released = False

    def ask(self, node: str, host: str, ranks: dict[int, Gpu], guard: Connection) -> None:
        """Have an owner started on a host where these ranks run, unless MPS has no use there.

        Args:
            node, host: Its key and its name.
            ranks: The GPU of each rank.
            guard: Of one of these ranks, which then stays until the owner has ended.
        """
        gpus = list({gpu.uuid: gpu for gpu in ranks.values()}.values())
        most = max((list(ranks.values()).count(gpu) for gpu in gpus), default=0)
        if self._mode == "off" or (self._mode == "auto" and most < 2):
            return
        if not gpus:
            self.trouble = self.trouble or f"{host}: --mps on: there are no GPUs for it"
            return
        self._hosts[node] = _Host(host, ranks)
        guard.order(**owner.order(node, self._mode, gpus, most, self._patience_s, self._environment))

    def are_needed(self) -> bool:
        """Whether any was asked for."""
        return bool(self._hosts)

    def are_ready(self) -> bool:
        """Whether all owners that were asked for have said what they have."""
        return all(host.shares is not None for host in self._hosts.values())

    def missing(self) -> list[str]:
        """Return the hosts whose owners have not."""
        return [host.name for host in self._hosts.values() if host.shares is None]

    def share(self, node: str, gpu: Gpu, thread_percentage: int, memory_limit_bytes: int) -> MpsShare | None:
        """Return what a rank on this GPU of a host needs to be a client; None where there is no MPS."""
        host = self._hosts.get(node)
        paths = host.shares.get(gpu.uuid) if host and host.shares else None
        return MpsShare(paths[0], paths[1], thread_percentage, memory_limit_bytes) if paths else None

    def hear(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take in what an owner says."""
        if message["event"] == "owner":
            self._hosts[message["node"]].connection = connection
            if self._are_released:
                connection.order(order="release", is_guarded=False)
            return
        host = self._of(connection)
        if message["event"] == "owner_ready":
            host.shares = message["shares"]
        elif message["event"] == "owner_says":
            self._say(f"{host.name}: {message['text']}")
        elif message["event"] == "owner_trouble":
            self.trouble = self.trouble or f"{host.name}: {message['text']}"

    def lost(self, connection: Connection) -> None:
        """Take note that a connection has ended; it may be that of a guard."""
        for host in self._hosts.values():
            if host.connection is connection and len(host.ended) < len(host.ranks):
                self.trouble = self.trouble or f"{host.name}: the owner of MPS there has ended"

    def started(self, rank: int, pid: int) -> None:
        """Take note that a rank has begun; when all of its host have, their owner is told whom to look for."""
        for host in self._hosts.values():
            if rank in host.ranks and host.connection:
                host.pids[rank] = pid
                host.connection.order(order="started", pid=pid)
                if len(host.pids) == len(host.ranks) and host.shares:
                    members = [[number, host.pids[number], gpu.uuid] for number, gpu in host.ranks.items()]
                    host.connection.order(order="members", members=members)

    def ended(self, rank: int, *, is_lost: bool = False) -> None:
        """Take note that a rank has ended, or its guard; an owner is let go after the last of its host."""
        for host in self._hosts.values():
            if rank in host.ranks:
                host.ended.add(rank)
                host.is_guarded = host.is_guarded and not is_lost
                if len(host.ended) == len(host.ranks) and host.connection:
                    host.connection.order(order="release", is_guarded=host.is_guarded)

    def release(self) -> None:
        """Let all go, because no rank will start; those too that have yet to call."""
        self._are_released = True
        for host in self._hosts.values():
            if host.connection is not None:
                host.connection.order(order="release", is_guarded=False)

    def close(self) -> None:
        """Leave them alone: each stops its daemons when it hears nothing more."""
        for host in self._hosts.values():
            if host.connection is not None:
                host.connection.close()

    def _of(self, connection: Connection) -> _Host:
        return next(host for host in self._hosts.values() if host.connection is connection)
