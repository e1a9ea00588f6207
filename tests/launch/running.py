"""A job that a test acts upon while it runs: wait for so many ranks to report, do something, wait for the end."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import jobs

ACCDP = [sys.executable, "-m", "accdp_comm"]
LIMIT_S = 60.0
_TOKEN = "LAUNCH_TEST_TOKEN"


def act(
    argv: Sequence[str],
    reports: int,
    action: Callable[[subprocess.Popen, list[dict]], None],
    env: Mapping[str, str],
    marker: str = "",
) -> jobs.Result:
    """Run ``accdp ARGV``; when that many JSON lines have come, call ``action(process, lines)``; wait for the end.

    Args:
        argv: After ``accdp``.
        reports: Lines that the ranks write to standard output.
        action: What the test does then.
        env: Variables on top of ``jobs.environment()``.
        marker: Something that must have been said on standard error, too.
    Returns:
        What it left; ``seconds`` from the action to the end.
    Raises:
        AssertionError: Too late, or a process stayed.
    """
    token = secrets.token_hex(8)
    process = subprocess.Popen(
        [*ACCDP, *argv],
        env=jobs.environment(**{_TOKEN: token}, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    lines: list[str] = []
    errors: list[str] = []
    changed = threading.Condition()

    def read(stream: IO[str], into: list[str]) -> None:
        for line in stream:
            with changed:
                into.append(line)
                changed.notify()

    def is_time() -> bool:
        return process.poll() is not None or (len(lines) == reports and marker in "".join(errors))

    readers = [threading.Thread(target=read, args=pair) for pair in ((process.stdout, lines), (process.stderr, errors))]
    for reader in readers:
        reader.start()
    try:
        with changed:
            in_time = changed.wait_for(is_time, LIMIT_S)
        assert in_time and process.poll() is None, f"{lines}\n{''.join(errors)}"
        began = time.monotonic()
        action(process, [json.loads(line) for line in lines])
        code = process.wait(LIMIT_S)
        seconds = time.monotonic() - began
    finally:
        process.kill()
        stayed = jobs.until_empty(lambda: _carrying(token))
        who = jobs.describe(stayed)
        jobs.kill(stayed)
        for reader in readers:
            reader.join()
        process.wait()
    assert not stayed, f"processes stayed: {who}\n{''.join(errors)}"
    return jobs.Result(code, "".join(lines), "".join(errors), seconds)


def _carrying(token: str) -> list[int]:
    def has(pid: int) -> bool:
        try:
            return f"{_TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended
            return False

    return jobs.living(lambda pid: pid != os.getpid() and has(pid))
