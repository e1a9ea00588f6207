"""Figures of benchmark rows: time, bandwidth and ratios over message size; one colour per backend everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs_of_bench import Row

from accdp_comm.bench import colours
from accdp_comm.bench.graph import pyplot, size_axis
from accdp_comm.bench.operations import OPERATIONS

OURS = {"gloo": "accdp-torch", "mpich": "accdp", "openmpi": "accdp", "mpi": "accdp", "nccl": "accdp-torch"}
_COLUMNS = 3
_PANEL, _HEAD = (5.0, 3.4), 1.0  # inches: a panel, and what title and legend take


def grid(rows: Sequence[Row], path: Path, title: str, draw: Callable[[Any, list[Row]], None], ylabel: str) -> None:
    """Draw one panel per operation and number of ranks, and one legend for all."""
    plots = pyplot()
    panels = list(dict.fromkeys((row["op"], row["ranks"]) for row in rows))
    if not panels:
        return
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    height = _PANEL[1] * lines + _HEAD
    figure, axes = plots.subplots(lines, columns, figsize=(_PANEL[0] * columns, height), squeeze=False)
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    for panel, (op, ranks) in zip(axes.flat, panels, strict=False):
        mine = [row for row in rows if (row["op"], row["ranks"]) == (op, ranks)]
        draw(panel, mine)
        size_axis(panel, sorted({row["bytes"] for row in mine}))
        panel.set_title(f"{op}, {ranks} ranks", fontsize=10)
        panel.set_ylabel(ylabel)
    labels = {
        label: line for panel in axes.flat for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    names = colours.in_order(list(labels))
    figure.suptitle(title, y=1 - 0.1 / height, va="top", fontsize=11)
    handles, middle = [labels[name] for name in names], (0.5, 1 - 0.35 / height)
    if names:
        figure.legend(handles, names, loc="upper center", ncols=min(len(names), 2 * columns), bbox_to_anchor=middle)
    figure.tight_layout(rect=(0, 0, 1, 1 - _HEAD / height))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plots.close(figure)


def _lines(panel: Any, rows: list[Row], value: Callable[[Row, float], float]) -> None:
    names = colours.in_order([row["backend"] for row in rows])
    for name in names:
        mine = sorted((row for row in rows if row["backend"] == name and row["bytes"]), key=lambda row: row["bytes"])
        if not mine:
            continue
        sizes = [row["bytes"] for row in mine]
        look = {"color": colours.colour(name), "linestyle": colours.style(name, names)}
        panel.plot(sizes, [value(row, row["median_us"]) for row in mine], marker="o", ms=3, label=name, **look)
        edges = [[value(row, row[edge]) for row in mine] for edge in ("p10_us", "p90_us")]
        panel.fill_between(sizes, *edges, color=look["color"], alpha=0.12, linewidth=0)


def latency(rows: Sequence[Row], path: Path) -> None:
    """Draw times with their spread."""

    def draw(panel: Any, mine: list[Row]) -> None:
        _lines(panel, mine, lambda row, us: us)
        panel.set_yscale("log")

    grid(rows, path, "Time of a call (slowest rank, median, 10th to 90th percentile)", draw, "microseconds")


def bandwidth(rows: Sequence[Row], path: Path) -> None:
    """Draw bus bandwidths; of bw and bibw, the bandwidth."""

    def gbps(row: Row, us: float) -> float:
        operation = OPERATIONS[row["op"]]
        if "window" in row:
            return operation.window_bytes(row["bytes"], row["window"]) / us / 1e3
        return operation.total_bytes(row["bytes"], row["ranks"]) / us / 1e3 * operation.bus_factor(row["ranks"])

    big = [row for row in rows if row["bytes"] >= 4096]
    grid(big, path, "Bus bandwidth (n = ranks)", lambda panel, mine: _lines(panel, mine, gbps), "GB/s")


def ratios(rows: Sequence[Row], path: Path) -> None:
    """Draw how many times longer each peer takes than the accdp of the same kind: above 1 we are faster."""

    def draw(panel: Any, mine: list[Row]) -> None:
        for name in colours.in_order([row["backend"] for row in mine if row["backend"] in OURS]):
            points = [
                (row["bytes"], row["median_us"] / ours["median_us"])
                for row in mine
                if row["backend"] == name and row["bytes"] and (ours := counterpart(row, mine)) is not None
            ]
            if points:
                label = f"{name} / {OURS[name]}"
                panel.plot(
                    *zip(*sorted(points), strict=True), marker="o", ms=3, color=colours.colour(name), label=label
                )
        panel.axhline(1.0, color="black", lw=0.8)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")

    grid(rows, path, "Times as fast as the peer (above 1: accdp is faster)", draw, "ratio of times")


def counterpart(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return our row for a peer's: the same point, Communicator for an MPI, torch for torch."""
    same = ("op", "bytes", "ranks", "nodes", "datatype", "device", "burst", "is_async")
    return next(
        (r for r in rows if r["backend"] == OURS.get(row["backend"]) and all(r.get(n) == row.get(n) for n in same)),
        None,
    )


def codecs(rows: Sequence[Row], path: Path) -> None:
    """Draw compression ratios of broadcasts, one bar per codec, and the time beside it."""
    plots = pyplot()
    figure, (left, right) = plots.subplots(1, 2, figsize=(11, 4))
    names = [row["backend"].partition("+")[2] + (" (lossy)" if row["error_bound"] else "") for row in rows]
    left.bar(names, [row["ratio"] for row in rows], color=colours.colour("accdp"))
    left.set(ylabel="bytes / bytes on the wire", title="compression ratio")
    right.bar(names, [row["median_us"] / 1e3 for row in rows], color=colours.colour("accdp"))
    right.set(ylabel="milliseconds, slowest rank, median", title="time of a broadcast")
    for panel in (left, right):
        panel.tick_params(axis="x", rotation=30)
        panel.grid(True, axis="y", alpha=0.3)
    figure.suptitle(f"bcast of {rows[0]['bytes'] >> 20} MiB of {rows[0]['data_kind']}, declared as 2 nodes")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plots.close(figure)
