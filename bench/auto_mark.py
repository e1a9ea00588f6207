"""The mark of codec="auto": never more than 5 % slower than the best fixed choice. Whether rows of a bench reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bcast_plan import LOSSLESS
from real_tensors import MIB

Row = dict[str, Any]

SLACK = 1.05
FIXED_CHOICES = ("none", *LOSSLESS)


def median_error(row: Row) -> float:
    """Standard error of a row's median, as if its samples were normally distributed."""
    deviation = (row["p90_s"] - row["p10_s"]) / 2.563
    return 1.253 * deviation / row["samples"] ** 0.5


@dataclass(frozen=True)
class AutoPoint:
    """auto at one place, data and size, against the best fixed choice there."""

    auto: Row
    best: Row

    @property
    def over(self) -> float:
        """Median time over the median of the best; the best of several medians is a lucky one, so 1 is too strict."""
        return self.auto["median_s"] / self.best["median_s"]

    @property
    def chance_s(self) -> float:
        """What two medians of so many samples may differ by if nothing differs: twice the standard error of both."""
        return 2 * (median_error(self.auto) ** 2 + median_error(self.best) ** 2) ** 0.5

    @property
    def is_beyond(self) -> bool:
        """More than 5 % over."""
        return self.over > SLACK

    @property
    def is_over(self) -> bool:
        """Beyond 5 %, and over by more than chance."""
        return self.is_beyond and self.auto["median_s"] - self.best["median_s"] > self.chance_s

    @property
    def is_settled(self) -> bool:
        """Within 5 % whatever chance did; of other points more samples say more."""
        return self.auto["median_s"] + self.chance_s <= SLACK * self.best["median_s"]

    def __str__(self) -> str:
        nbytes = self.auto["bytes"]
        size = f"{nbytes / MIB:g} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"
        return (
            f"{self.auto['data']} {self.auto['dtype']} {size}: {self.over:.2f}, {self.auto['codec']} where "
            f"{self.best['method']} is best ({self.best['median_s'] * 1e3:.3g} ms)"
        )


def auto_point(methods: Mapping[str, Row]) -> AutoPoint | None:
    """Of rows of methods that took turns, by name; None where auto or a fixed choice is missing."""
    choices = [row for name, row in methods.items() if name in FIXED_CHOICES]
    auto = methods.get("auto")
    return AutoPoint(auto, min(choices, key=lambda row: row["median_s"])) if auto and choices else None
