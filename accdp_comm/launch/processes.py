"""Processes named by pid and start time together, which no later process can have."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from .. import cards

_POLL_S = 0.01


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none, or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return 0 if state in "ZX" else cards.start_time(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_alive(pid: int, started: int) -> bool:
    return pid > 0 and started > 0 and start_time(pid) == started


def send_signal(pid: int, started: int, number: int) -> None:
    """Send a signal to this very process; nothing happens if it has ended."""
    if is_alive(pid, started):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def wait_all(wanted: Iterable[tuple[int, int]], seconds: float) -> list[tuple[int, int]]:
    """Wait until these processes, children or not, have ended; return those that have not after ``seconds``."""
    deadline = time.monotonic() + seconds
    living = list(wanted)
    # A pidfd would tell, but not every build of Python, every kernel and every container has them.
    while (living := [each for each in living if is_alive(*each)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return living


def descendants(roots: Sequence[int]) -> dict[int, int]:
    """Return the processes below each root, the roots themselves included, as pid -> its root."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in the meantime
            children.setdefault(parent, []).append(int(name))
    found: dict[int, int] = {}
    for root in roots:
        queue = [root]
        for pid in queue:
            if pid not in found:
                found[pid] = root
                queue += children.get(pid, [])
    return found
