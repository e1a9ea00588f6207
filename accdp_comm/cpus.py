"""How many CPUs this process may use: by its affinity mask, and by the quotas of its control groups.

The one place that asks the system. Standard library alone: agent.py runs by file, without the package.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

_GROUPS = "/sys/fs/cgroup"


class Limit(NamedTuple):
    """What a control group may use."""

    cpus: float  # CPUs' time
    group: int  # names it to all processes of the machine, in whatever containers


def cores() -> list[list[int]]:
    """Return the CPUs this process may use, as lists of those that are threads of one core."""
    found: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                key = file.read()
        except OSError:
            key = str(cpu)  # this kernel does not tell
        found.setdefault(key, []).append(cpu)
    return list(found.values())


def quota(membership: str = "/proc/self/cgroup", groups: str = _GROUPS) -> float | None:
    """Return how many CPUs' time the processes of this control group may use together; None for no limit."""
    return min((limit.cpus for limit in limits(membership, groups)), default=None)


def limits(membership: str = "/proc/self/cgroup", groups: str = _GROUPS) -> list[Limit]:
    """Return the quotas of this process's control group and of those above it that have one, outermost first.

    Both versions of control groups are read: in a container either may be what its runtime has set.

    Args:
        membership: Says in which groups this process is.
        groups: Where control groups are mounted.
    """
    found: list[Limit] = []
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [limit for folder in _upwards([groups, f"{groups}/unified"], path) for limit in _version_2(folder)]
        elif "cpu" in controllers.split(","):
            mounts = [f"{groups}/{controllers}", f"{groups}/cpu"]
            found += [limit for folder in _upwards(mounts, path) for limit in _version_1(folder)]
    return found[::-1]


def busy_cores(available: int, limit: float | None) -> int:
    """Return how many threads can be busy all the time: one per available CPU, fewer where the quota pays for fewer.

    Rounded down: a thread more than is paid for makes the kernel stop all of them in turn.
    """
    return available if limit is None else max(1, min(available, int(limit)))


def _upwards(mounts: list[str], path: str) -> Iterator[str]:
    """Yield the folders of a group and of those above it. Without a namespace of its own a container sees the path that
    the host uses, which is not there: what is mounted is then its own group."""
    names = [name for name in path.split("/") if name]
    for mount in mounts:
        for depth in range(len(names), -1, -1):
            yield "/".join([mount, *names[:depth]])


def _version_2(folder: str) -> list[Limit]:
    words = _text(f"{folder}/cpu.max").split()
    return [_limit(folder, *words)] if len(words) == 2 and words[0] != "max" else []


def _version_1(folder: str) -> list[Limit]:
    limit, period = (_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return [_limit(folder, limit, period)] if limit.isdecimal() and period.isdecimal() else []  # -1: no limit


def _limit(folder: str, quota: str, period: str) -> Limit:
    return Limit(int(quota) / int(period), os.stat(folder).st_ino)


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""
