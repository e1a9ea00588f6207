"""What a stub and a guard do with processes below them. Imported by file, too: agent.py runs without the package."""

from __future__ import annotations

import os
import select
import signal
import time

if not __package__:
    from kinship import end_with_parent  # type: ignore[import-not-found]
else:
    from .kinship import end_with_parent

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


def ask_gpus(command: list[str]) -> str:
    """Return what a program that lists GPUs prints; nothing where there is none, or nobody asks."""
    if not command:
        return ""
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
    return said.decode(errors="replace") if exit_code(os.waitpid(pid, 0)[1]) == 0 else ""
