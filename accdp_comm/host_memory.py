"""How much memory programs may still take on this host: what the kernel has, and what control groups leave of it.

Standard library alone: tools/cores.py imports it by file, without the package.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

if __package__:
    from . import cgroups
else:
    import cgroups  # type: ignore[import-not-found,no-redef]

_HOST = "/proc/meminfo"


class Left(NamedTuple):
    bytes: int
    said_by: str  # the file that sets the limit


def left(host: str = _HOST, membership: str = cgroups.MEMBERSHIP, mounted: str = cgroups.MOUNTED) -> list[Left]:
    """Return what each limit of memory leaves to new programs, the host's first; empty where the kernel tells nothing.

    Args:
        host: What the kernel says of all memory, as /proc/meminfo.
        membership, mounted: As for cgroups.groups().
    """
    found = []
    with contextlib.suppress(OSError), open(host) as file:
        found += [Left(int(line.split()[1]) << 10, host) for line in file if line.startswith("MemAvailable:")]
    for group in cgroups.groups("memory", membership, mounted):
        name, used = ("max", "current") if group.version == 2 else ("limit_in_bytes", "usage_in_bytes")
        limit, taken = group.numbers(f"memory.{name}", f"memory.{used}")
        if limit is not None and taken is not None:
            words = dict(line.split() for line in group.read("memory.stat").splitlines())
            cached = int(words.get("file", words.get("total_cache", "0")))  # the kernel drops it, but for
            shared = int(words.get("shmem", words.get("total_shmem", "0")))  # what is in /dev/shm, and the like
            found.append(Left(limit - taken + max(0, cached - shared), f"{group.folder}/memory.{name}"))
    return found
