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
    return events.Log(rank, size, made)


def word(text: str) -> list[int]:
    """Labels of collectives, one per letter."""
    return [ord(letter) for letter in text]
