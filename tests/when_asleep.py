"""Wait until a thread sleeps, as one does that waits for other ranks: a moment that no time after its start tells.

By file, ``python when_asleep.py PID TID SIGNAL`` then sends the signal to the process. From within that process it is
told less well: whoever looks there holds Python's lock, for which the thread may sleep, and lets it go between looks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

_LOOKS = 5  # in a row: it may sleep for a moment on its way
_LOOK_S = 0.05
_LIMIT_S = 50.0  # less than a test has


def until_asleep(pid: int, tid: int = 0) -> bool:
    """Wait until this thread, the first if none is given, sleeps; return False where it has ended.

    Raises:
        TimeoutError: It did not.
    """
    stat, seen, deadline = Path(f"/proc/{pid}/task/{tid or pid}/stat"), 0, time.monotonic() + _LIMIT_S
    while seen < _LOOKS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"thread {tid or pid} of process {pid} does not sleep")
        time.sleep(_LOOK_S)
        try:
            state = stat.read_bytes().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        seen = seen + 1 if state == b"S" else 0
    return True


def signal_me_asleep(number: int, tid: int = 0) -> subprocess.Popen:
    """From now on this process gets the signal when that thread of it, the caller's if none is given, sleeps."""
    words = [str(os.getpid()), str(tid or threading.get_native_id()), str(int(number))]
    return subprocess.Popen([sys.executable, "-I", "-S", __file__, *words])


if __name__ == "__main__":
    pid, tid, number = map(int, sys.argv[1:])
    if until_asleep(pid, tid):
        os.kill(pid, number)
