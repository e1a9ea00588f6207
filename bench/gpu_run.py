"""Commands of bench/gpu_check.py: run within a limit, ended in order, and what they left in files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

LATE = 124  # as timeout(1) says it
MOST_SAID = 8000  # bytes of what a command said that are kept
MOST_FIRST = 2000  # bytes of what else is kept from a wanted place on
PATIENCE_S = 40.0  # with a command that is told to end: `accdp run` ends its ranks, and then MPS

_ends_at = math.inf  # the time that all steps together have


class Ended(NamedTuple):
    """How a command ended, and the end of what it said, behind what was wanted of the rest."""

    status: int | None  # LATE where its own limit ended it; None where the time for all steps did, or let it not begin
    said: str

    def trouble(self) -> dict[str, str]:
        """What is recorded of that: nothing where it went well; what there was no time for is no failure."""
        if self.status is None:
            return {"not_done": self.said}
        return {"failed": self.said} if self.status else {}


def run(command: Sequence[str], limit_s: float, wanted: str = "", **environment: str) -> Ended:
    """Run a command for as long as its limit, and the time for all, allow.

    What it says is kept from the first place where it is what is ``wanted``, as far as that is not in the end anyway.
    """
    left_s = _ends_at - time.monotonic()
    if left_s < 5:
        return Ended(None, "no time left")
    # Not into a pipe: its end would not come while any process that is left over holds it.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment},
                start_new_session=True,
            )
        except OSError as error:  # a program that the machine lacks
            return Ended(127, f"{command[0]}: {error.strerror}")
        status: int | None
        late = ""
        began = time.monotonic()
        try:
            status = process.wait(min(limit_s, left_s))
        except subprocess.TimeoutExpired:
            status = LATE if limit_s <= left_s else None
            why = "its limit" if status else "no time left"
            late = f"; ended after {time.monotonic() - began:.0f} s: {why}"
        finally:
            _end(process)
        output.seek(0)
        said = output.read()
        begins, end_begins = said.find(wanted.encode()), max(0, len(said) - MOST_SAID)
        first = said[begins : min(begins + MOST_FIRST, end_begins)] if wanted and 0 <= begins < end_begins else b""
        kept_of_it = first + (b" ...\n" if first else b"") + said[end_begins:]
        return Ended(status, kept_of_it.decode(errors="replace").strip() + late)


def _end(process: subprocess.Popen) -> None:
    """End a command, if it has not ended, and then what it left running in its process group."""
    process.terminate()  # not the group: ranks under MPS must not be killed with work in flight
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):  # there is nothing left
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it sleeps in the kernel
        process.wait(5)


def end_within(seconds: float) -> None:
    """Let no command run for longer than so many seconds from now."""
    global _ends_at
    _ends_at = time.monotonic() + seconds


def last_json(said: str) -> Any:
    """Return what a command wrote as JSON, in a line that others may come before and after."""
    for line in reversed(said.splitlines()):
        if line.startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    raise ValueError(f"no JSON in: {said}")


def kept(out: Path) -> dict:
    """What a command wrote into its file before it ended, whatever ended it."""
    return {"rows": []} | (json.loads(out.read_text()) if out.exists() else {})


def run_for_json(command: Sequence[str], limit_s: float) -> dict:
    """Run a command that takes ``--out FILE``; return what it wrote there, and how it ended, if not well."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # what is left over may write there
        out = Path(folder, "found.json")
        ended = run([*command, "--out", str(out)], limit_s)
        return kept(out) | ended.trouble()


def write_json(out: Path, found: dict) -> None:
    """Write a file that is whole at any time, whatever ends us."""
    part = out.with_name(f"{out.name}.part")
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(out)
