"""The mark of codec="auto": never more than 5 % slower than the best fixed choice. Whether rows of a bench reach it.

Methods take turns, so a sample of auto and one of a fixed choice in the same round saw the same machine: their ratio is
what counts, and its median over the rounds. A sign test says how sure that is, whatever the times are distributed like.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bcast_plan import LOSSLESS
from real_tensors import MIB

Row = dict[str, Any]

SLACK = 1.05
FIXED_CHOICES = ("none", *LOSSLESS)
SURE = 0.95


def ranks_of_interval(count: int) -> tuple[int, int] | None:
    """Which of so many sorted samples (from 0) enclose the median as surely as SURE; None where they are too few."""
    below, outside = 0, 2 * 0.5**count
    while outside <= 1 - SURE:
        below += 1
        outside += 2 * math.comb(count, below) * 0.5**count
    return (below - 1, count - below) if below else None


@dataclass(frozen=True)
class Ratio:
    """Times over other times of the same rounds: the median, and the interval that it is surely in."""

    rounds: int
    median: float
    low: float
    high: float

    @staticmethod
    def of(times: Sequence[float], others: Sequence[float]) -> Ratio:
        """The n-th of both are of the same round. Of too few rounds, low and high are 0 and a number beyond all."""
        found = sorted(one / other for one, other in zip(times, others, strict=True))
        ranks = ranks_of_interval(len(found))
        low, high = (found[ranks[0]], found[ranks[1]]) if ranks else (0.0, 1e9)
        return Ratio(len(found), statistics.median(found), low, high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AutoPoint:
    """auto at one place, data and size, against the fixed choice that was best there."""

    auto: Row
    best: Row
    ratio: Ratio

    @property
    def is_beyond(self) -> bool:
        """More than 5 % over, as far as these samples go."""
        return self.ratio.median > SLACK

    @property
    def is_over(self) -> bool:
        """More than 5 % over, and not by chance."""
        return self.ratio.low > SLACK

    def __str__(self) -> str:
        nbytes = self.auto["bytes"]
        size = f"{nbytes / MIB:g} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"
        interval = f"{self.ratio.median:.2f} ({self.ratio.low:.2f} to {self.ratio.high:.2f})"
        best = f"{self.best['method']} is best ({self.best['median_s'] * 1e3:.3g} ms)"
        return f"{self.auto['data']} {self.auto['dtype']} {size}: {interval}, {self.auto['codec']} where {best}"


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, Ratio]:
    """auto over each fixed choice that took part in all rounds that auto did, by name."""
    auto = times.get("auto", ())
    return {name: Ratio.of(auto, times[name]) for name in FIXED_CHOICES if len(times.get(name, ())) == len(auto) > 0}


def is_settled(found: Mapping[str, Ratio]) -> bool:
    """Whether auto is within 5 % of each, whatever chance did; if not, more rounds say more."""
    return all(ratio.high <= SLACK for ratio in found.values())


def auto_point(methods: Mapping[str, Row]) -> AutoPoint | None:
    """Of rows of methods that took turns, by name; None where auto was held against no fixed choice."""
    auto = methods.get("auto")
    if not auto or not auto.get("over"):
        return None
    over = {name: Ratio(**fields) for name, fields in auto["over"].items()}
    best = max(over, key=lambda name: (over[name].low > SLACK, over[name].median))
    return AutoPoint(auto, methods[best], over[best])
