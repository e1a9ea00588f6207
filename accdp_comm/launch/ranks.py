"""What is known of the ranks of a job, and which of them failed first."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import last_error
from .control import Connection
from .output import Output, Said

# What a guard may take besides the grace period: SIGTERM after SIGINT, terminate_client, before SIGTERM and before
# SIGKILL, and what the rank left.
GUARD_S = 25.0
# A rank that failed may be so slow to leave that it is told to end with the others. Its traceback tells, if it is not
# older than that when the first rank leaves: then it was of an error that the rank went on after.
_SLOW_EXIT_S = 10.0
_MOST_NAMES = 8  # of one line
# How an error of a group tells whose end made it.
_NAMED = re.compile(rb"rank \d+ \(pid (\d+), host ([^)]*)\) (?:exited|left|aborted|was interrupted)")


@dataclass
class Rank:
    """What is known of one rank."""

    rank: int
    connection: Connection
    hello: dict[str, Any]
    pid: int = 0
    start_time: int = 0
    code: int | None = None
    signal: int = 0  # that ended it; 0 if none did
    ended_at: float = 0.0
    is_lost: bool = False  # its guard is: how it ended nobody tells
    is_explained: bool = False


@dataclass
class Stop:
    """Why and how a job is being ended."""

    code: int  # exit code if no rank failed before
    deadline: float  # when guards must have finished
    is_launchers: bool = False  # it ended first: of ranks that fail we may have yet to hear


def some_of(names: Sequence[str]) -> str:
    """Return a list for people, which is short however many there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"


def first_failure(
    failures: Sequence[Rank], ranks: Sequence[Rank], output: Output, is_launchers: bool = False
) -> Rank | None:
    """Return the rank that failed first. A rank may leave after those that its own failure made fail, and be heard of
    after them; but they name it.

    Args:
        failures: Those that ended by themselves, and not well.
        ranks: All of them.
        output: What they said.
        is_launchers: The launcher ended the job, not well and before us: some rank made it do so.
    """

    def when(rank: Rank) -> float:
        said = output.last_error(rank.rank)
        return min(rank.ended_at, said[0].at) if _has_traceback(said) else rank.ended_at

    told = [rank for rank in ranks if rank.code and _has_traceback(output.last_error(rank.rank))]
    first = min(failures or (told if is_launchers else []), key=when, default=None)
    if first is None:
        return None
    first = min([first, *(rank for rank in told if 0 < when(first) - when(rank) <= _SLOW_EXIT_S)], key=when)
    known = [*failures, *(rank for rank in told if rank not in failures)]
    followed = [first]
    while (named := _named_by(followed[-1], known, output)) is not None:
        if named in followed:
            return first  # they name each other
        followed.append(named)
    return followed[-1]


def _named_by(rank: Rank, others: Sequence[Rank], output: Output) -> Rank | None:
    """Return which of others ended and made this rank fail, by its error."""
    said = output.last_error(rank.rank)
    found = _NAMED.search(b"\n".join(line.text for line in said)) if _has_traceback(said) else None
    if found is None:
        return None
    who = (int(found[1]), found[2].decode(errors="replace"))
    return next((one for one in others if one is not rank and (one.pid, one.hello["host"]) == who), None)


def explain(rank: Rank, ranks: Sequence[Rank], output: Output) -> None:
    """Say once how a rank failed, and with which error, below all that ranks said."""
    if rank.is_explained:
        return
    rank.is_explained = True
    how = f"was killed by {name_of_signal(rank.signal)}" if rank.signal else f"ended with status {rank.code}"
    if rank.is_lost:
        how = f"lost its guard{'' if rank.pid else ' before it began'}, which was killed, or whose connection broke"
    # It may have waited for one that left in order, and cannot know that it did.
    earlier = [one for one in ranks if one.code == 0 and one.ended_at < rank.ended_at]
    left = ", ".join(map(str, sorted(one.rank for one in earlier)))
    after = f" (after rank{'s' if ',' in left else ''} {left} with status 0)" if left else ""
    who = f"pid {rank.pid}, host {rank.hello['host']}" if rank.pid else f"host {rank.hello['host']}"
    what = f"({who}) {how}{after}"
    said = output.last_error(rank.rank)
    for line in last_error.account(rank.rank, what, [one.text for one in said], output.is_last(rank.rank, said)):
        output.say(line)


def name_of_signal(number: int) -> str:
    """Return what a signal is called; those for real time have numbers alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_words(status: int) -> str:
    """Return how a process of ours ended, by its code as subprocess gives it."""
    return f"with status {status}" if status >= 0 else f"when it was killed by {name_of_signal(-status)}"


def exit_code(status: int) -> int:
    """Return what a shell would make of that code."""
    return status if status >= 0 else 128 - status


def _has_traceback(said: Sequence[Said]) -> bool:
    return bool(said) and last_error.is_traceback(said[0].text)
