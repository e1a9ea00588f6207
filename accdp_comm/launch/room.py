"""Whether this node has room for so many ranks. Without asking, a launcher forks until the machine stands still."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import _core, cgroups, host_memory

# What a rank takes before its program does anything. Measured: the two processes of a guard have 7 MiB of their own.
_PROCESSES = 3  # the two of its guard, and itself
_FILES = 4  # of the launcher: three standard streams and the line to its process manager
_MEMORY_MIB = 7


@dataclass(frozen=True)
class Limit:
    """How much of one thing there is, and how much one rank of this node takes at least, and one elsewhere."""

    name: str
    total: int
    of_one: int
    advice: str
    of_another: int = 0


def limits() -> list[Limit]:
    """Return this node's limits as they are now."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = [
        Limit("processes", processes, _PROCESSES, "see ulimit -u, /proc/sys/kernel/{pid_max,threads-max}")
        for processes in _process_limits()
    ]
    if files != resource.RLIM_INFINITY:
        found.append(Limit("open files of the launcher", files, _FILES, "ulimit -n N allows more", 1))
    return found + _group_limits() + _memory_limits(host_memory.left())


def check_room(ranks: int, here: int, found: Sequence[Limit]) -> None:
    """Refuse a number of ranks that could not start.

    Args:
        ranks: Of the job.
        here: Those of them that are on this node.
        found: As from limits().
    Raises:
        UsageError: Their guards alone take more than there is; the message names the scarcest thing.
    """

    def taken(limit: Limit) -> int:
        return limit.of_one * here + limit.of_another * (ranks - here)

    scarcest = max(found, key=lambda limit: Fraction(taken(limit), max(1, limit.total)), default=None)
    if scarcest is not None and taken(scarcest) > scarcest.total:
        who = f"{ranks if scarcest.of_another else here} ranks"
        who += f", {here} of them here," if scarcest.of_another and here < ranks else ""
        raise _core.UsageError(
            f"{who} take {taken(scarcest)} {scarcest.name} before their program begins, and there are "
            f"{scarcest.total} for all ranks of {'the job' if scarcest.of_another else 'this node'}: {scarcest.advice}"
        )


def _process_limits() -> list[int]:
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    # The kernel lets root exceed its own limit.
    found = [] if own == resource.RLIM_INFINITY or os.geteuid() == 0 else [own]
    for name in ("pid_max", "threads-max"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/kernel/{name}") as file:
            found.append(int(file.read()))
    return found


def _group_limits(membership: str = cgroups.MEMBERSHIP, mounted: str = cgroups.MOUNTED) -> list[Limit]:
    """Return what the control groups of this process leave to it: a container has fewer of all than its host."""
    found = []
    for group in cgroups.groups("pids", membership, mounted):
        limit, taken = group.numbers("pids.max", "pids.current")
        if limit is not None and taken is not None:
            found.append(Limit("processes", limit - taken, _PROCESSES, f"see {group.folder}/pids.max"))
    return found


def _memory_limits(left: Sequence[host_memory.Left]) -> list[Limit]:
    return [Limit("MiB of memory", one.bytes >> 20, _MEMORY_MIB, f"start fewer; see {one.said_by}") for one in left]
