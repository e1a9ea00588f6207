"""What the ranks of a trial logged (accdp_comm/steps.py), and where the steps are in it.

A step is, in this order: a call of `accdp_comm.step()`; a step of a torch optimizer (the one that steps most often);
one period of the sequence of collectives, which a training loop repeats. numpy only; find_steps() and what it takes
are pure.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from .. import steps as log

_EVENT = np.dtype([("time_ns", "<i8"), ("label", "<u8"), ("samples", "<f8")])
_LOOK_BACK = 4096  # events that must show the period; in a mapped file that is still written, any number is a moment's
_ALIKE = 0.8  # of the events must be like the one a period earlier: evaluations and ends of epochs come in between
SIGNS = ("collectives", "optimizer", "step()")  # of steps, each better than the one before
_RARE = 0.03  # of the events: a kind that is seldomer is none of the step's


@dataclass(frozen=True)
class Log:
    """One rank's log. Of many ranks' most is never looked at: so it is copied out of the file when it is."""

    rank: int
    size: int
    file: mmap.mmap | bytes

    @cached_property
    def events(self) -> np.ndarray:
        """(n,) of _EVENT, in order; the oldest are lost where there were more than steps.CAPACITY."""
        return _in_order(bytes(self.file))

    @property
    def newest_ns(self) -> int:
        """When the last event was, by the monotonic clock; 0 where there is none."""
        count = _count(self.file)
        place = log.HEAD_BYTES + (count - 1) % log.CAPACITY * log.EVENT_BYTES
        return int(np.frombuffer(self.file[place : place + log.EVENT_BYTES], _EVENT)["time_ns"][0]) if count else 0


@dataclass(frozen=True)
class Steps:
    """When steps ended on one rank."""

    seconds: np.ndarray  # (n,) float64, of the monotonic clock
    samples: np.ndarray | None  # (n,) float64, this rank's; None where the script did not say
    seen_by: str  # one of SIGNS


def read(folder: Path) -> list[Log]:
    """Return the logs in a folder by rank; ranks of other hosts, and those that have not begun, are not there."""
    found = []
    for path in folder.glob("rank-*.events"):
        try:
            with path.open("rb") as opened:
                if os.fstat(opened.fileno()).st_size < log.HEAD_BYTES + log.CAPACITY * log.EVENT_BYTES:
                    continue  # just being made
                file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            continue  # made anew
        text = file[log.DESCRIPTION_AT : log.HEAD_BYTES].rstrip(b"\0")
        if text.endswith(b"}"):
            about = json.loads(text)
            found.append(Log(about["rank"], about["size"], file))
    return sorted(found, key=lambda one: one.rank)


def _count(file: mmap.mmap | bytes) -> int:
    return int.from_bytes(file[:8], "little")


def _in_order(data: bytes) -> np.ndarray:
    count = _count(data)
    ring = np.frombuffer(data, _EVENT, log.CAPACITY, log.HEAD_BYTES)
    if count <= len(ring):
        return ring[:count]
    start = count % len(ring)
    events = np.concatenate([ring[start:], ring[:start]])
    # The rank went on while the file was read: some of the oldest places may hold its newest events already.
    newest_first = np.flatnonzero(np.diff(events["time_ns"]) < 0)
    return events[newest_first[-1] + 1 :] if len(newest_first) else events


def silence(logs: Sequence[Log]) -> float:
    """Return for how many seconds none of the ranks has logged anything."""
    return (time.monotonic_ns() - max((one.newest_ns for one in logs), default=0)) * 1e-9


def find_steps(events: np.ndarray) -> Steps:
    """Return the steps in a rank's events; none where there is no sign of any."""
    labels, seconds = events["label"], events["time_ns"] * 1e-9
    said = labels == log.STEP
    if said.any():
        samples = events["samples"][said]
        return Steps(seconds[said], samples if samples.any() else None, "step()")
    by_optimizer = (labels & log.OPTIMIZER) != 0
    if by_optimizer.any():
        each, counts = np.unique(labels[by_optimizer], return_counts=True)
        return Steps(seconds[labels == each[counts.argmax()]], None, "optimizer")
    length = period(labels)
    if length == 0:
        return Steps(seconds[:0], None, "collectives")
    return Steps(seconds[::-1][::length][::-1], None, "collectives")


def period(labels: np.ndarray) -> int:
    """Return after how many events a sequence repeats itself, 0 where it has not done so at least three times.

    The shortest length counts at which at least _ALIKE of the events of every kind that is not rare are like those
    one length earlier. Time O(n * length) with n up to _LOOK_BACK.
    """
    recent = labels[-_LOOK_BACK:]
    kinds, which = np.unique(recent, return_inverse=True)
    # Kind by kind: a word of equal letters but one is nearly like itself shifted by one.
    counted = np.bincount(which, minlength=len(kinds)) >= _RARE * len(recent)
    for length in range(1, len(recent) // 4 + 1):
        same = recent[length:] == recent[:-length]
        if same.mean() < _ALIKE:
            continue
        total = np.bincount(which[length:], minlength=len(kinds))
        agreeing = np.bincount(which[length:], weights=same, minlength=len(kinds))
        if (agreeing[counted] >= _ALIKE * total[counted]).all():
            return length
    return 0
