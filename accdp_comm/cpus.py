"""How many CPUs this process may use: by its affinity mask, and by the quotas of its control groups.

The one place that asks the system. Standard library alone: agent.py runs by file, without the package.
"""

from __future__ import annotations

import os
from typing import NamedTuple

if not __package__:
    from cgroups import MEMBERSHIP, MOUNTED, groups  # type: ignore[import-not-found]
else:
    from .cgroups import MEMBERSHIP, MOUNTED, groups


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


def quota(membership: str = MEMBERSHIP, mounted: str = MOUNTED) -> float | None:
    """Return how many CPUs' time the processes of this control group may use together; None for no limit."""
    return min((limit.cpus for limit in limits(membership, mounted)), default=None)


def limits(membership: str = MEMBERSHIP, mounted: str = MOUNTED) -> list[Limit]:
    """Return the quotas of this process's control group and of those above it that have one, outermost first."""
    found = []
    for group in groups("cpu", membership, mounted):
        if group.version == 2:
            limit, _, period = group.read("cpu.max").strip().partition(" ")
        else:
            limit, period = (group.read(f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if limit.isdecimal() and period.isdecimal():  # neither "max" nor -1
            found.append(Limit(int(limit) / int(period), os.stat(group.folder).st_ino))
    return found[::-1]


def busy_cores(available: int, limit: float | None) -> int:
    """Return how many threads can be busy all the time: one per available CPU, fewer where the quota pays for fewer.

    Rounded down: a thread more than is paid for makes the kernel stop all of them in turn.
    """
    return available if limit is None else max(1, min(available, int(limit)))
