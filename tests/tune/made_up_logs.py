"""Made-up logs of ranks, for the parts of the tuner that only look at them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accdp_comm import steps
from accdp_comm.tune import events


def log(labels: Sequence[int], every_s: float = 0.01, samples: float = 0.0, rank: int = 0, size: int = 1) -> events.Log:
    """Events with these labels at equal distances from second 100 on; ``samples`` in those of step()."""
    made = np.zeros(len(labels), events._EVENT)
    made["label"] = np.array(labels, np.uint64)
    made["time_ns"] = (100 + every_s * np.arange(len(labels))) * 1e9
    made["samples"][made["label"] == steps.STEP] = samples
    return log_of(made, rank, size)


def log_of(made: np.ndarray, rank: int = 0, size: int = 1) -> events.Log:
    """A log of these events, laid out as a rank does."""
    assert len(made) <= steps.CAPACITY
    head = len(made).to_bytes(8, "little").ljust(steps.HEAD_BYTES, b"\0")
    ring = made.tobytes().ljust(steps.CAPACITY * steps.EVENT_BYTES, b"\0")
    return events.Log(rank, size, head + ring)


def word(text: str) -> list[int]:
    """Labels of collectives, one per letter."""
    return [ord(letter) for letter in text]
