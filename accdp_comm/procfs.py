"""Processes as /proc shows them, and what two of them must share to be on one node.

The one place that asks the system. Standard library alone: agent.py runs by file, without the package.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

_LOOKS_AGAIN_S = 0.001
_GETS_A_TURN_S = 1.0  # by then a thread has had a processor, or the machine is beyond help


class Process(NamedTuple):
    """A process, or what is left of it until its parent has heard of its end."""

    parent: int
    group: int  # of processes that hear of Ctrl-C together
    session: int  # named by the pid of whoever began it
    started: int  # in clock ticks since boot: with the pid, it names a process for good
    state: str  # a letter: R runs, S sleeps, D waits for the kernel, T was stopped, Z has ended

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def process(pid: int) -> Process | None:
    """Return what there is of a process; None of one that cannot be seen."""
    try:
        # In bytes, since the command is any; in parentheses, which it may contain itself: field 3 follows the last one.
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return Process(int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), fields[0].decode())


def processes() -> dict[int, Process]:
    """Return all living processes that can be seen, by pid."""
    found = ((int(name), process(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: it for pid, it in found if it is not None and not it.is_zombie}


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none, or only its zombie."""
    found = process(pid)
    return found.started if found and not found.is_zombie else 0


def own_pid(pid: int) -> int:
    """Return what a process knows itself as, which in a container is another number; 0 if it cannot be seen."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith(b"NSpid:")), pid)
    except OSError:
        return 0


def command_line(pid: int) -> str:
    """Return how a process was started, as one line: its words divided by spaces; "" if it cannot be seen."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode(errors="replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return ""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(words))


def heeds(pid: int, number: int) -> bool:
    """Whether a process does something of its own when a signal comes, or nothing; else that ends it at once.

    Of its own is also to wait for it (sigwait, signalfd): then every thread blocks it. True where the process cannot be
    seen, too.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return True
    until = time.monotonic() + _GETS_A_TURN_S
    for thread in threads:
        before = _processor_time(pid, thread)
        while _lets_through(pid, thread, number):
            where = _sleeps_in(pid, thread)
            if b"sigtimedwait" in where:  # which blocks none of those that it waits for meanwhile
                break
            # One that is about to sleep there does not block them any more, either, and is seen to sleep nowhere yet.
            if where or _processor_time(pid, thread) != before or time.monotonic() > until:
                return False
            time.sleep(_LOOKS_AGAIN_S)
    return True


def _lets_through(pid: int, thread: str, number: int) -> bool:
    """Whether nothing is between a thread and what the kernel does at that signal; not where it cannot be seen."""
    try:
        with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
            masks = [line for line in file if line.startswith((b"SigCgt:", b"SigIgn:", b"SigBlk:"))]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # this thread has ended, or the process is not ours
    return not any(int(mask.split(b":")[1], 16) >> (number - 1) & 1 for mask in masks)


def _processor_time(pid: int, thread: str) -> int:
    """Return for how long a thread has run, in clock ticks; -1 of one that has ended."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _sleeps_in(pid: int, thread: str) -> bytes:
    """Name the place in the kernel where a thread sleeps; b"" of one that runs, or where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/task/{thread}/wchan", "rb") as file:
            return file.read().strip(b"0")
    except OSError:
        return b""


def maps(pid: int, name: bytes) -> bool:
    """Whether a process has a file in memory whose path contains that; True where it may not be looked at."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(name in line for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return True


def descendants(roots: Iterable[int]) -> dict[int, int]:
    """Return the processes below each root as pid -> its root: the root itself first, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for pid, it in processes().items():
        children.setdefault(it.parent, []).append(pid)
    found: dict[int, int] = {}
    for root in roots:
        queue = [root]
        for pid in queue:
            if pid not in found:
                found[pid] = root
                queue += children.get(pid, [])
    return found


def boot_id() -> str:
    """Name the running kernel."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def node_key() -> str:
    """Name what two processes must share to use shared memory: a kernel, a process table and a host name."""
    spaces = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "uts"))
    return "/".join([socket.gethostname(), boot_id(), *map(str, spaces)])
