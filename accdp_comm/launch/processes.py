"""Processes named by pid and start time together, which no later process can have."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from .. import procfs
from ..procfs import start_time

_POLL_S = 0.01


def is_alive(pid: int, started: int) -> bool:
    return pid > 0 and started > 0 and start_time(pid) == started


def send_signal(pid: int, started: int, number: int) -> None:
    """Send a signal to this very process; nothing happens if it has ended, or became another user's, as by sudo."""
    if is_alive(pid, started):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            return


def in_sessions(leaders: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the living processes of sessions, as pid and start time.

    Args:
        leaders: Who began them, and may have ended.
    """
    table = procfs.processes()
    sessions = {pid for pid, started in leaders if pid not in table or table[pid].started == started}
    return [(pid, found.started) for pid, found in table.items() if found.session in sessions]


def wait_all(wanted: Iterable[tuple[int, int]], seconds: float) -> list[tuple[int, int]]:
    """Wait until these processes, children or not, have ended; return those that have not after ``seconds``."""
    deadline = time.monotonic() + seconds
    living = list(wanted)
    # A pidfd would tell, but not every build of Python, every kernel and every container has them.
    while (living := [each for each in living if is_alive(*each)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return living
