"""Run a command for at most so many seconds, with all that it starts: the Makefile's helper.

    python tools/limit.py SECONDS COMMAND ...

Like `timeout -k 10`, which keeps Ctrl-C from what it runs, so that make waits for the whole suite. Status 124 after the
limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

KILL_AFTER_S = 10.0


def main() -> int:
    limit_s, command = float(sys.argv[1]), sys.argv[2:]
    process: subprocess.Popen | None = None
    early: list[int] = []  # signals that came while the command was being started

    def tell(number: int, _: object = None) -> None:
        if process is None:
            early.append(number)
        else:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, tell)
    # A group of its own, so that the limit ends all of it; not a session, which would keep it from the terminal.
    process = subprocess.Popen(command, preexec_fn=os.setpgrp)
    for number in early:
        tell(number)
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"accdp: ended after {limit_s:g} s, its limit: {' '.join(command)}\n")
        tell(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER_S)
        tell(signal.SIGKILL)
        process.wait()
        return 124
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
