"""What a process has written last, before it ends the job: launchers drop what they have not yet read of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import termios
import time

_SECONDS = 1.0  # that somebody has to read; mpiexec takes microseconds where it gets a processor
_LOOK_SECONDS = 0.001  # nothing tells that a pipe is empty


def let_be_read() -> None:
    """Wait until what reads standard output and error, if these are pipes, has taken what is in them, or a second.

    MPICH's mpiexec looks at a rank's MPI_Abort and its output in any order, and then reads no more: without this the
    error that led to the abort may be lost.
    """
    deadline = time.monotonic() + _SECONDS
    for stream in (sys.stderr, sys.stdout):  # errors first
        # One that is closed, or no file (None, a buffer in its place), has no reader; the other one may have.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
            drain(stream.fileno(), deadline)


def drain(pipe: int, deadline: float) -> bool:
    """Wait until a pipe is empty; whether it is. Anything but a pipe counts as empty.

    Args:
        pipe: Descriptor of its writing end.
        deadline: Of time.monotonic(), when to give up.
    """
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        return True
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
