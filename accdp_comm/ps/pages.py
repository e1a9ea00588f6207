"""The pages on which ranks show what they do (csrc/node/status.hpp): found in /proc, and read without their help."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Peer:
    """A rank that is waited for: its number in the group, and its process as that knows itself."""

    rank: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid}, host {self.host})"


@dataclass(frozen=True)
class Wait:
    """A wait that is long already."""

    what: str  # "allreduce #17", or the message
    peers: tuple[Peer, ...]  # the first of those that are waited for
    count: int  # how many they are
    seconds: float
    is_message: bool
    is_blocking: bool  # else the script does something else meanwhile


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

    def wait(it: dict[str, Any]) -> Wait:
        return Wait(**{**it, "peers": tuple(Peer(**peer) for peer in it["peers"])})

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
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                if os.readlink(entry.path).startswith(f"/memfd:{_core.STATUS_LABEL}"):
                    yield entry.path
    except OSError:  # it has ended, or is somebody else's
        return


def _read(path: str, pid: int, state: str) -> Rank | None:
    host = socket.gethostname()
    own_pid = procfs.own_pid(pid)
    command = procfs.command_line(pid)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(file).st_size == 0:  # it is being made
            return None
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as page:
            owner, groups, not_shown = _core.read_status(page)
    except _core.UsageError as error:
        return Rank(host, pid, own_pid, state, command, trouble=str(error))
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    now = time.monotonic_ns()
    memberships = tuple(_membership(group, now, state) for group in groups if not group["has_left"])
    if owner != own_pid or not (memberships or not_shown):  # a copy that a fork has left it with; or it is no rank now
        return None
    return Rank(host, pid, own_pid, state, command, memberships, not_shown)


def _membership(group: dict[str, Any], now: int, state: str) -> Membership:
    is_busy = group["sequence"] > 0 and group["ended_ns"] == 0
    since = group["begun_ns"] if is_busy else group["ended_ns"]
    waits = tuple(
        Wait(
            wait["what"],
            tuple(Peer(*peer) for peer in wait["ranks"]),
            wait["count"],
            (now - wait["since_ns"]) * 1e-9,
            wait["is_message"],
            not wait["is_attended"],
        )
        for wait in group["waits"]
        if (wait["is_message"] or is_busy or group["sequence"] == 0)
        and ((now - wait["seen_ns"]) * 1e-9 < _STALE_S or state == "T")
    )
    return Membership(
        f"{group['group']:016x}",
        group["name"],
        group["rank"],
        group["size"],
        group["nodes"],
        group["failure"],
        group["sequence"],
        group["call"],
        is_busy,
        (now - since) * 1e-9 if group["sequence"] else 0.0,
        waits,
    )
