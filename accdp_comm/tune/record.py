"""The file of outcomes: one JSON line per trial, so that a search that was interrupted goes on where it was."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .. import _core
from .space import Point
from .trial import Outcome

_HEAD = '{"accdp_tune": 1'  # how the first line begins


class Record:
    """A file of outcomes that belongs to one question.

    Args:
        path: The file; made if it is not there.
        question: What outcomes depend on besides the point, such as the command; compared with the file's.
        fresh: Forget what is in the file.
    Raises:
        UsageError: The file belongs to another question, or is none of ours; or there can be none; or another process
            has a Record of it.
    """

    def __init__(self, path: Path, question: dict[str, object], *, fresh: bool = False) -> None:
        self.path = path
        self.outcomes: list[Outcome] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._claim = path.open("a")  # as long as it is open
            self._lock()
            if not fresh and self._read(question):
                return
            path.write_text(json.dumps({"accdp_tune": 1, **question}) + "\n")
        except OSError as error:
            raise _core.UsageError(f"{path.parent}: cannot write results there: {error.strerror}") from error

    def add(self, outcome: Outcome) -> None:
        """Append an outcome; it is on disk when this returns."""
        self.outcomes.append(outcome)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _core.UsageError(f"{self.path}: another accdp tune writes there: use another --output") from error
        except OSError:
            return  # a file system without locks

    def _read(self, question: dict[str, object]) -> bool:
        """Take the file's outcomes; return whether there is a beginning of them, which a full disk may have cut."""
        try:
            text = self.path.read_text()
            lines = text.split("\n")
            if len(lines) == 1 and (text.startswith(_HEAD) or _HEAD.startswith(text)):
                return False
            head, *rows = [json.loads(line) for line in lines[:-1]]
            is_ours = head.pop("accdp_tune") == 1
            outcomes = [Outcome(**{**row, "point": Point(**row["point"])}) for row in rows]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _core.UsageError(f"{self.path}: not a file of outcomes of accdp tune ({error})") from error
        if not is_ours or head != json.loads(json.dumps(question)):
            others = ", ".join(sorted(key for key in {*head, *question} if head.get(key) != _plain(question.get(key))))
            raise _core.UsageError(
                f"{self.path} has outcomes of another search ({others} differ): use another --output, or --fresh"
            )
        if lines[-1]:  # the last write was cut short: that trial is made again
            os.truncate(self.path, len(text) - len(lines[-1]))  # of bytes as of characters: JSON's are ASCII
        self.outcomes = outcomes
        return True


def _plain(value: object) -> object:
    return json.loads(json.dumps(value))


def write_profile(path: Path, best: Outcome, script: Sequence[str]) -> None:
    """Write what `accdp run --profile` reads.

    Args:
        path: The file.
        best: Whose point it is.
        script: The command with the point's values in it.
    """
    point = best.point
    profile = {
        "ranks_per_gpu": point.ranks_per_gpu,
        "ranks": point.ranks,
        "batch_size": point.batch_size,
        "workers": point.workers,
        "codec": point.codec,
        "script": list(script),
    }
    whole = path.with_name(path.name + ".new")
    try:
        whole.write_text(json.dumps(profile, indent=2) + "\n")
        whole.replace(path)  # a job that begins meanwhile finds the one or the other
    except OSError:
        whole.unlink(missing_ok=True)
        raise
