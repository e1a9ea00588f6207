"""The error of a rank: where it begins in what the rank said, how a launcher tells it, and how to find it again.

What a launcher writes is read by who starts it: `accdp run` by its tuner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TAIL_LINES = 200  # remembered of a rank
LAST_LINES = 20  # that stand for an error without a traceback
_STANDS_ABOVE = "; its error stands above"
# What torch sets before each line of the traceback of a rank that is in a group.
_TORCHS_LABEL = re.compile(rb"^\[rank\d+\]: ")
_TRACEBACK = re.compile(rb"(  \+ Exception Group )?Traceback \(most recent call last\)")
# What Python writes between two tracebacks that belong together.
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_LABEL = re.compile(rb"\[ *(\d+)\] ")
_HEAD = re.compile(rb"accdp run: rank (\d+) ")


def label(rank: int, width: int) -> bytes:
    """Return what stands before a line of a rank, where there are several."""
    return f"[{rank:>{width}}] ".encode()


def without_torchs_label(line: bytes) -> bytes:
    """Return the line as the rank's script wrote it."""
    return _TORCHS_LABEL.sub(b"", line)


def is_traceback(line: bytes) -> bool:
    """Whether a traceback begins with this line."""
    return _TRACEBACK.match(line) is not None


def begins(lines: Sequence[bytes]) -> int:
    """Return at which line the last traceback begins, the one that it follows from included; else the last lines."""
    starts = [place for place, line in enumerate(lines) if is_traceback(line)]
    if not starts:
        return max(0, len(lines) - LAST_LINES)
    first = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in lines[starts[-1] : first]):
        first = starts.pop()
    return first


def account(rank: int, what: str, error: Sequence[bytes], is_above: bool) -> list[str]:
    """Return the lines that say how a rank failed.

    Args:
        rank: Of the job.
        what: Who that is, and how it ended.
        error: Its lines; none of a rank that said nothing.
        is_above: They were the last that was written.
    """
    head = f"accdp run: rank {rank} {what}"
    if not error:
        return [f"{head} and wrote nothing to standard error"]
    if is_above:
        return [head + _STANDS_ABOVE]
    return [f"{head}; this is its error:", *(f"    {line.decode(errors='replace')}" for line in error)]


def find(text: bytes, is_labelled: bool) -> str:
    """Return the error that ended a job, of all that `accdp run` and its ranks wrote; their last lines without one.

    What was printed before is none of it: a warning may speak of memory, and a script may catch that it ran out.

    Args:
        text: What they wrote.
        is_labelled: Each line of a rank's standard error has its number before it.
    """
    lines = text.splitlines()
    heads = [(place, found) for place, line in enumerate(lines) if (found := _HEAD.match(line))]
    if not heads:
        error = lines[-LAST_LINES:]
    elif not lines[heads[-1][0]].endswith(_STANDS_ABOVE.encode()):
        error = lines[heads[-1][0] :]  # below it, or none
    else:
        head, found = heads[-1]
        above = lines[:head]
        if is_labelled:
            own = [(line, label) for line in above if (label := _LABEL.match(line)) and label[1] == found[1]]
            above = [line[label.end() :] for line, label in own]
        above = [without_torchs_label(line) for line in above[-TAIL_LINES:]]
        error = [*above[begins(above) :], lines[head]]
    return b"\n".join(error).decode(errors="replace")
