"""What is made of the times: OMB's averages over ranks, and the slowest rank's median and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = 100  # that stand for a start's iterations, whatever their number, where starts are merged


@dataclass(frozen=True)
class Times:
    """Seconds of each iteration (columns) on each rank that measures (rows)."""

    seconds: NDArray[np.float64]

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return self.seconds.shape[1]

    @property
    def averages_us(self) -> tuple[float, float, float]:
        """OMB's Avg, Min and Max Latency in microseconds: of the ranks' averages the mean, least and greatest."""
        per_rank = self.seconds.mean(axis=1) * 1e6
        return float(per_rank.mean()), float(per_rank.min()), float(per_rank.max())

    @property
    def slowest_us(self) -> NDArray[np.float64]:
        """Microseconds of each iteration on the rank that took longest."""
        return self.seconds.max(axis=0) * 1e6

    def percentile_us(self, percent: float) -> float:
        """Percentile of the iterations, in microseconds, slowest rank."""
        return float(np.percentile(self.slowest_us, percent))

    @property
    def quantiles_us(self) -> list[float]:
        """Iterations that stand for equal shares of all, in order; microseconds to four digits, slowest rank."""
        return quantiles(self.slowest_us)

    def tail_us(self, percent: int) -> float:
        """OMB's percentile: of the iterations' means over ranks, the one at that place when sorted."""
        return _at(np.sort(self.seconds.mean(axis=0)) * 1e6, percent)

    def bandwidth_mbps(self, nbytes: int) -> float:
        """OMB's bandwidth in MB/s (10^6) where each iteration moves ``nbytes``."""
        return float(nbytes * self.iterations / self.seconds[0].sum() / 1e6)

    def tail_mbps(self, nbytes: int, percent: int) -> float:
        """OMB's percentile of the iterations' bandwidths."""
        return _at(np.sort(nbytes / self.seconds[0] / 1e6), percent)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, and where the tenths at either end begin, as cells of a row."""
    p10, median, p90 = (float(value) for value in np.percentile(seconds, (10, 50, 90)))
    return {"median_s": median, "p10_s": p10, "p90_s": p90}


def quantiles(values: NDArray[np.float64]) -> list[float]:
    """Return QUANTILES of the values that stand for equal shares of them, in order, to four digits."""
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return [float(f"{value:.4g}") for value in np.quantile(values, shares, method="inverted_cdf")]


def _at(ordered: NDArray[np.float64], percent: int) -> float:
    return float(ordered[max(0, round(len(ordered) * percent / 100) - 1)])
