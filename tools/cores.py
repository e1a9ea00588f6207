"""How many programs are to run at a time: one per core of this machine or container, as far as its memory reaches.

python tools/cores.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# By file: the package around them needs what is yet to be built.
sys.path.append(str(Path(__file__).resolve().parent.parent / "accdp_comm"))
import cpus
import host_memory

_COMPILER_BYTES = 3 << 29  # of torch's headers; one that the kernel ends for want of it fails the build


def cores() -> int:
    """Return the number, 1 or more."""
    busy = cpus.busy_cores(len(os.sched_getaffinity(0)), cpus.quota())
    room = min((left.bytes for left in host_memory.left()), default=busy * _COMPILER_BYTES)
    return max(1, min(busy, room // _COMPILER_BYTES))


if __name__ == "__main__":
    print(cores())
