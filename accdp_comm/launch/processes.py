"""Processes named by pid and start time together, which no later process can have."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Sequence

from .. import cards


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
    living = []
    for pid, started in wanted:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Only now: before, the pid could have become another process's.
            if is_alive(pid, started):
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(handle)
        if is_alive(pid, started):
            living.append((pid, started))
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
