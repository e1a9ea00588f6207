"""The pages on which ranks show what they do (csrc/node/status.hpp): found in /proc, and read without their help."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .. import _core, procfs

# A wait that was noticed so long ago and not again is over, unless its process stands still.
_STALE_S = 2.0
_GET_SEALS, _SEAL_SHRINK = 1034, 2  # of Linux; fcntl has names for them where Python was built with a libc that has


@dataclass(frozen=True)
class Peer:
    """A rank that is waited for: its number in the group, and its process as that knows itself.

    Of a wait for messages, "send" and "recv": those of the waiting rank's that it waits for, and those that are open.
    It awaits "any" where a message may come from this rank or from others.
    """

    rank: int
    pid: int
    host: str
    awaits: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wait:
    """A wait that is long already."""

    what: str  # "allreduce #17", or the oldest of the messages
    peers: tuple[Peer, ...]  # the first of those that are waited for; then others with whom messages are open
    count: int  # how many are waited for
    seconds: float
    is_message: bool
    is_blocking: bool  # else the script does something else meanwhile
    is_for_any: bool = False  # a message that one of several ranks may send, too
    is_partial: bool = False  # there is more than the peers say

    @property
    def awaited(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self.peers if peer.awaits or not self.is_message)


@dataclass(frozen=True)
class Membership:
    """What a rank does in one of its groups. Times are seconds before the look."""

    group: str  # equal on the ranks of a group, and on no others
    name: str
    rank: int
    size: int
    nodes: int
    failure: str  # "" while it works
    sequence: int  # of the collective that is under way, or was last; 0: none yet
    call: str  # "allreduce (sum) of 4 float32"
    is_busy: bool  # in it
    is_blocking: bool  # else it runs on another thread, and nobody waits for that
    seconds: float  # since it began, or ended
    waits: tuple[Wait, ...]


@dataclass(frozen=True)
class Rank:
    """A process that is a rank of some groups."""

    host: str
    pid: int  # as this host knows it
    own_pid: int  # as it knows itself: in a container another
    state: str  # procfs.Process.state
    command: str
    groups: tuple[Membership, ...] = ()
    not_shown: int = 0  # groups for which the page had no room
    trouble: str = ""  # why the page cannot be read

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(row: dict[str, Any]) -> Rank:
    """Return what `as_json` had been made of."""

    def peer(it: dict[str, Any]) -> Peer:
        return Peer(**{**it, "awaits": tuple(it["awaits"]), "open": tuple(it["open"])})

    def wait(it: dict[str, Any]) -> Wait:
        return Wait(**{**it, "peers": tuple(map(peer, it["peers"]))})

    groups = tuple(Membership(**{**it, "waits": tuple(map(wait, it["waits"]))}) for it in row["groups"])
    return Rank(**{**row, "groups": groups})


def ranks_here() -> list[Rank]:
    """Return the processes on this host that show what they do, in the order of their pids.

    Those of other users are left out, unless this one is root: the kernel does not show their files.
    """
    found = []
    for pid, process in sorted(procfs.processes().items()):
        for path in _pages_of(pid):
            rank = _read(path, pid, process.state)
            if rank is not None:
                found.append(rank)
    return found


def _pages_of(pid: int) -> Iterator[str]:
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has ended, or is somebody else's
        return
    for entry in entries:
        path = f"/proc/{pid}/fd/{entry}"
        with contextlib.suppress(OSError):  # it has been closed since
            if os.readlink(path).startswith(f"/memfd:{_core.STATUS_LABEL}"):
                yield path


def _read(path: str, pid: int, state: str) -> Rank | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # One that may become shorter would take along who reads it.
        if not fcntl.fcntl(file, _GET_SEALS) & _SEAL_SHRINK:
            return None
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as page:
            shown = _core.read_status(page)
    except (OSError, ValueError, _core.UsageError):  # it has ended, or has not begun to write it
        return None
    finally:
        os.close(file)
    own_pid = procfs.own_pid(pid)
    if shown["pid"] != own_pid:  # a copy that a fork has left it with
        return None
    now = time.monotonic_ns()
    groups = tuple(
        _membership(group, now, state, shown["blocked"] > 0) for group in shown["groups"] if not group["has_left"]
    )
    if not (groups or shown["not_shown"] or shown["trouble"]):  # it is no rank any more
        return None
    command = "" if state == "D" else procfs.command_line(pid)  # which waits for what the process holds
    host = socket.gethostname()
    return Rank(host, pid, own_pid, state, command, groups, shown["not_shown"], shown["trouble"])


def _membership(group: dict[str, Any], now: int, state: str, is_blocked: bool) -> Membership:
    is_busy = group["sequence"] > 0 and group["ended_ns"] == 0
    is_blocking = is_busy and (not group["is_background"] or is_blocked)
    since = group["begun_ns"] if is_busy else group["ended_ns"]
    waits = tuple(
        Wait(
            what=wait["what"],
            peers=tuple(Peer(*peer[:3], *map(tuple, peer[3:])) for peer in wait["ranks"]),
            count=wait["count"],
            seconds=(now - wait["since_ns"]) * 1e-9,
            is_message=wait["is_message"],
            is_blocking=not wait["is_attended"] if wait["is_message"] else is_blocking or not is_busy,
            is_for_any=wait["is_for_any"],
            is_partial=wait["is_partial"],
        )
        for wait in group["waits"]
        if (wait["is_message"] or is_busy or group["sequence"] == 0)
        and ((now - wait["seen_ns"]) * 1e-9 < _STALE_S or state == "T")
    )
    return Membership(
        group=f"{group['group']:016x}",
        name=group["name"],
        rank=group["rank"],
        size=group["size"],
        nodes=group["nodes"],
        failure=group["failure"],
        sequence=group["sequence"],
        call=group["call"],
        is_busy=is_busy,
        is_blocking=is_blocking,
        seconds=(now - since) * 1e-9 if group["sequence"] else 0.0,
        waits=waits,
    )
