"""What a stub and a guard do with processes below them. Imported by file, too: agent.py runs without the package."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, NoReturn

if not __package__:
    from guard_link import borrow  # type: ignore[import-not-found]
    from kinship import end_with_parent  # type: ignore[import-not-found]
else:
    from .guard_link import borrow
    from .kinship import end_with_parent

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

# What connects a rank with its launcher: the rank alone may hold it, or its death goes unseen.
_LAUNCHER_FDS = ("PMI_FD",)
_ASK_S = 30.0  # for what lists GPUs; some drivers take many seconds for it
_CHUNK = 1 << 16


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or became another user's, as by sudo


def killed(status: int) -> bool:
    return os.WIFSIGNALED(status)


def exit_code(status: int) -> int:
    """Return what a shell would call this status: 128 and the signal's number for one that was killed."""
    return 128 + os.WTERMSIG(status) if killed(status) else os.WEXITSTATUS(status)


def close_launcher_fds() -> None:
    for name in _LAUNCHER_FDS:
        try:
            os.close(int(os.environ[name]))
        except (KeyError, ValueError, OSError):
            continue  # this launcher has none, or closed it


def set_variables(wanted: dict[str, str | None]) -> None:
    for name, value in wanted.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def ask_gpus(command: list[str]) -> tuple[int, str]:
    """Return what a program that lists GPUs prints, after its status as a shell would call it; nothing if none asks."""
    if not command:
        return 0, ""
    read, write = os.pipe()
    guard, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            close_launcher_fds()
            if end_with_parent(signal.SIGKILL, guard):
                os.dup2(write, 1)
                os.execvp(command[0], command)
        finally:
            os._exit(127)
    os.close(write)
    said, until = b"", time.monotonic() + _ASK_S
    while select.select([read], [], [], max(0.0, until - time.monotonic()))[0] and (data := os.read(read, _CHUNK)):
        said += data
    os.close(read)
    if time.monotonic() >= until:
        send_signal(pid, signal.SIGKILL)
    return exit_code(os.waitpid(pid, 0)[1]), said.decode(errors="replace")


def become_rank(guard: int, rank: int, orders: dict[str, Any], outputs: dict[bytes, int], failure: int) -> NoReturn:
    """Start in this process, which the guard has made for it, what Guard.start() says; tell ``failure`` why not."""
    try:
        os.setsid()
        if not end_with_parent(signal.SIGTERM, guard):
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, *PASSED_ON, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if orders["stdin"]:
            borrowed = borrow(orders["stdin"])
            os.dup2(borrowed, 0)
            if borrowed:
                os.close(borrowed)
        elif rank != 0:  # launchers give it to rank 0, and some leave the others' open for ever
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(outputs[b"o"], 1)
        os.dup2(outputs[b"e"], 2)
        set_variables(orders["env"])
        if orders["cpus"]:
            os.sched_setaffinity(0, orders["cpus"])
        os.execvp(orders["argv"][0], orders["argv"])
    except BaseException as error:
        os.write(failure, f"{orders['argv'][0]}: {error}".encode(errors="replace"))
    finally:
        os._exit(127)
