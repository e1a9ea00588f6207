"""Wait until a thread sleeps, as one does that waits for other ranks: a moment that no time after its start tells.

By file, ``python when_asleep.py PID TID SIGNAL`` then sends the signal to the process. From within that process it
could not be told: whoever looks there holds Python's lock, for which the thread may sleep.
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


def until_asleep(pid: int, tid: int = 0) -> None:
    """Return when this thread, the first if none is given, sleeps; at once where it has ended."""
    stat, seen = Path(f"/proc/{pid}/task/{tid or pid}/stat"), 0
    while seen < _LOOKS:
        time.sleep(_LOOK_S)
        try:
            state = stat.read_bytes().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        seen = seen + 1 if state == b"S" else 0


def signal_me_asleep(number: int, tid: int = 0) -> subprocess.Popen:
    """From now on this process gets the signal when that thread of it, the caller's if none is given, sleeps."""
    words = [str(os.getpid()), str(tid or threading.get_native_id()), str(int(number))]
    return subprocess.Popen([sys.executable, "-I", "-S", __file__, *words])


if __name__ == "__main__":
    pid, tid, number = map(int, sys.argv[1:])
    until_asleep(pid, tid)
    os.kill(pid, number)
