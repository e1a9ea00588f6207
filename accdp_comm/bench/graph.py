"""-G: a run as a figure (png, pdf) or as text (tty)."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

from . import colours
from .operations import OPERATIONS, Refused
from .session import Result

_WIDTH = 50  # characters of the longest bar
_MOST_SERIES = 6  # whose iterations are drawn
_MARKERS = "os^Dv"  # of datatypes


def draw(results: Sequence[Result], kind: str) -> str:
    """Draw a run; return the text to print: the chart itself, or where the figure is.

    Left: over size, the median of the slowest rank and the range from the 10th to the 90th percentile. Right: the
    iterations of some sizes, as OMB draws them.
    """
    return _bars(results) if kind == "tty" else _figure(results, kind)


def pyplot() -> Any:
    """Return matplotlib.pyplot, without a display.

    Raises:
        Refused: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise Refused("figures need matplotlib: pip install -r requirements/bench.txt") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def size_name(nbytes: int) -> str:
    """Return a size as people say it: 4 B, 16 KiB, 1 MiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B"


def size_axis(panel: Any, sizes: Sequence[int]) -> None:
    """Label an axis of message sizes."""
    panel.set_xscale("log", base=2)
    ticks = [size for size in sizes if size][:: max(1, len(sizes) // 8)]
    panel.set_xticks(ticks, [size_name(size) for size in ticks], rotation=30, ha="right")
    panel.set_xlabel("message size")
    panel.grid(True, which="major", alpha=0.3)


def _value(row: dict[str, Any]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile: of the time in us, or of the bandwidth in MB/s."""
    if "mbps" not in row:
        return row["median_us"], row["p10_us"], row["p90_us"]
    nbytes = OPERATIONS[row["op"]].window_bytes(row["bytes"], row["window"])
    return nbytes / row["median_us"], nbytes / row["p90_us"], nbytes / row["p10_us"]


def _series(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return for each row the name of what it is a point of: its backend, and its datatype where there are several."""
    several = len({row["datatype"] for row in rows}) > 1
    return [f"{row['backend']}, {row['datatype']}" if several else row["backend"] for row in rows]


def _bars(results: Sequence[Result]) -> str:
    rows = [result.row for result in results]
    unit = "MB/s" if "mbps" in rows[0] else "us"
    values = [_value(row)[0] for row in rows]
    low, high = math.log10(min(values)), math.log10(max(values))
    lines = [f"{rows[0]['op']}, {unit}, median of the slowest rank, logarithmic"]
    names = _series(rows)
    width = max(14, *map(len, names))
    for row, name, value in zip(rows, names, values, strict=True):
        length = 1 + round((math.log10(value) - low) / (high - low or 1) * (_WIDTH - 1))
        lines.append(f"{size_name(row['bytes']):>9} {name:<{width}} {'#' * length:<{_WIDTH}} {value:.2f}")
    return "\n".join(lines)


def _figure(results: Sequence[Result], kind: str) -> str:
    plots = pyplot()
    rows = [result.row for result in results]
    names = colours.in_order([row["backend"] for row in rows])
    types = list(dict.fromkeys(row["datatype"] for row in rows))
    labels = _series(rows)
    figure, (left, right) = plots.subplots(1, 2, figsize=(13, 5))
    is_bandwidth = "mbps" in rows[0]
    for name, datatype in itertools.product(names, types):
        mine = [row for row in rows if (row["backend"], row["datatype"]) == (name, datatype)]
        mine.sort(key=lambda row: row["bytes"])
        sizes = [max(1, row["bytes"]) for row in mine]
        middle, low, high = zip(*(_value(row) for row in mine), strict=True)
        look = {"color": colours.colour(name), "linestyle": colours.style(name, names)}
        marker = _MARKERS[types.index(datatype) % len(_MARKERS)]
        left.plot(sizes, middle, marker=marker, ms=3, label=labels[rows.index(mine[0])], **look)
        left.fill_between(sizes, low, high, color=look["color"], alpha=0.15, linewidth=0)
    left.set_yscale("log")
    size_axis(left, sorted({row["bytes"] for row in rows}))
    left.set_ylabel("bandwidth, MB/s" if is_bandwidth else "time of a call on the slowest rank, us")
    left.set_title("median, 10th to 90th percentile")
    left.legend()
    points = list(dict.fromkeys((row["datatype"], row["bytes"]) for row in rows))
    drawn = points[:: -(-len(points) // max(1, _MOST_SERIES // len(names)))]  # each with all backends
    for result, name in zip(results, labels, strict=True):
        if (result.row["datatype"], result.row["bytes"]) in drawn:
            label = f"{name}, {size_name(result.row['bytes'])}"
            right.plot(result.measured.times.slowest_us, lw=0.8, label=label)
    right.set(yscale="log", xlabel="iteration", ylabel="time of the iteration, us", title="iterations")
    right.legend(fontsize=7)
    figure.suptitle(f"osu_{rows[0]['op']}, {rows[0]['ranks']} ranks on {rows[0]['nodes']} nodes")
    figure.tight_layout()
    path = os.path.abspath(f"osu_{rows[0]['op']}.{kind}")
    figure.savefig(path, dpi=120)
    plots.close(figure)
    return f"# figure: {path}"
