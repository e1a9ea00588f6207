"""The control groups this process is in, in which containers, Kubernetes, Slurm and systemd set limits.

Standard library alone: agent.py runs by file, without the package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

MEMBERSHIP = "/proc/self/cgroup"  # says in which groups this process is
MOUNTED = "/sys/fs/cgroup"


class Group(NamedTuple):
    version: int  # of the kernel's interface, which names the files: 1 or 2
    folder: str  # which need not be there

    def read(self, name: str) -> str:
        """Return what a file of the group holds; nothing where the group has no such file."""
        return _text(f"{self.folder}/{name}")

    def numbers(self, *names: str) -> list[int | None]:
        """Return what files hold that hold a number each; None for one that is not there, or says "max"."""
        texts = [self.read(name).strip() for name in names]
        return [int(text) if text.isdecimal() else None for text in texts]


def groups(controller: str, membership: str = MEMBERSHIP, mounted: str = MOUNTED) -> Iterator[Group]:
    """Yield the groups that may limit what a controller counts, this process's own before those above it.

    Both versions of control groups are read: in a container either may be what its runtime has set. Without a
    namespace of its own a container sees the path that the host uses, which is not there: what is mounted is then its
    own group.

    Args:
        controller: As version 1 names it: cpu, pids, memory.
        membership: Says in which groups this process is.
        mounted: Where control groups are mounted.
    """
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mounts = 2, [mounted, f"{mounted}/unified"]
        elif controller in controllers.split(","):
            version, mounts = 1, sorted({f"{mounted}/{controllers}", f"{mounted}/{controller}"})
        else:
            continue
        names = [name for name in path.split("/") if name]
        for mount in mounts:
            for depth in range(len(names), -1, -1):
                yield Group(version, "/".join([mount, *names[:depth]]))


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
        return file.read()
    return ""
