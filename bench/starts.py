"""Rows of one point from several starts of a job made one row, whose spread holds what differs from start to start.

Every start counts alike: of each the same number of iterations stands for all (quantiles_us), and median and
percentiles of a merged row are of all of these together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jobs_of_bench import JobFailed, Row

# What tells points apart; all else about a row is what was measured or where.
KEY = (
    *("op", "backend", "bytes", "datatype", "ranks", "nodes", "device", "ranks_per_gpu", "data_kind", "is_in_place"),
    *("root", "window", "error_bound", "burst", "is_async"),
)
_PERCENTILES = {"median_us": 50, "p10_us": 10, "p90_us": 90, "p99_us": 99}
_TOTALS: dict[str, Callable[[list[Any]], Any]] = {
    "iterations": sum,
    "errors": sum,
    "min_us": min,
    "max_us": max,
    "load_1min": max,
    "codec": lambda names: ", ".join(dict.fromkeys(names)),  # auto may choose otherwise in another start
}
_MEANS: dict[str, Callable[..., float]] = {
    "avg_us": lambda values, weights: float(np.average(values, weights=weights)),
    "mbps": statistics.harmonic_mean,
    "ratio": statistics.harmonic_mean,
}


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what tells this row's point from others."""
    return tuple(str(row.get(name)) for name in KEY)


def merged(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """Return one row per point, in the order in which points come first.

    Raises:
        JobFailed: A point has several rows, and one of them is of a version that wrote no quantiles.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return {key: group[0] if len(group) == 1 else _merge(group) for key, group in groups.items()}


def _merge(group: list[Row]) -> Row:
    last = group[-1]
    if any("quantiles_us" not in row for row in group):
        point = f"{last['op']} {last['backend']} {last['bytes']} B, {last['ranks']} ranks"
        raise JobFailed(f"{point}: {len(group)} rows, expected one, or quantiles_us in each to merge them by")
    weights = [row["starts"] for row in group]
    times = np.concatenate([np.repeat(row["quantiles_us"], row["starts"]) for row in group])
    row = last | {name: float(np.percentile(times, p)) for name, p in _PERCENTILES.items()}
    row |= {
        "starts": sum(weights),
        "start_medians_us": [us for row in group for us in row.get("start_medians_us", [row["median_us"]])],
        "quantiles_us": _quantiles(times, len(last["quantiles_us"])),
    }
    for name, total in _TOTALS.items():
        if found := [row[name] for row in group if row.get(name) is not None]:
            row[name] = total(found)
    for name, mean in _MEANS.items():
        if name in last:
            row[name] = mean([one[name] for one in group], weights)
    for name in ("algbw_gbps", "busbw_gbps"):
        if name in last:
            row[name] = last[name] * last["median_us"] / row["median_us"]
    return row


def _quantiles(values: np.ndarray, count: int) -> list[float]:
    return [float(value) for value in np.quantile(values, (np.arange(count) + 0.5) / count, method="inverted_cdf")]
