"""The part of docs/model.md that bench/model.py --check writes: how far predictions are off."""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path
from typing import Any

import marked

from accdp_comm.bench.graph import size_name

Row = dict[str, Any]
PREDICTIONS = ("simulated", "plan")
HEADS = ("hosts x ranks", "size", "way", "measured ms", "10 % to 90 %", "simulated", "error", "plan", "error")


def error(predicted: float, measured: float) -> float:
    """By how much a prediction is off, in parts of what was measured."""
    return predicted / measured - 1


def errors_of(rows: list[Row], name: str) -> list[float]:
    """Return the errors of a prediction, of the points that it has."""
    return [error(row[f"{name}_s"], row["measured_s"]) for row in rows if row[f"{name}_s"] is not None]


def cells_of(row: Row) -> list[str]:
    """One line of the table."""
    way = row["algorithm"] + (f", {row['lanes']} lanes" if row["lanes"] > 1 else "")
    spread = f"{row['p10_s'] * 1e3:.3g} to {row['p90_s'] * 1e3:.3g}"
    cells = [row["placement"], size_name(row["bytes"]), way, f"{row['measured_s'] * 1e3:.3g}", spread]
    for name in PREDICTIONS:
        predicted = row[f"{name}_s"]
        if predicted is None:
            cells += ["-", "-"]
        else:
            cells += [f"{predicted * 1e3:.3g}", f"{error(predicted, row['measured_s']):+.0%}"]
    return cells


def summaries(rows: list[Row]) -> list[str]:
    """A sentence for each prediction that has points."""
    said = []
    for name in PREDICTIONS:
        if sizes := sorted(map(abs, errors_of(rows, name))):
            middle = statistics.median(sizes)
            said.append(f"{name}: median error {middle:.0%}, worst {sizes[-1]:.0%}, {len(sizes)} points")
    return said


def write(rows: list[Row], page: Path) -> None:
    """Replace the part of a page. ``rows``: those of the check, all of one run."""
    first = rows[0]
    cores, commit = first["machine"]["cores"], first["versions"].get("commit", "unknown")
    text = (
        f"From {first['date']}, accdp at {commit}: hosts are network namespaces of one machine with {cores} cores, "
        "links of 1 Gbit/s. Alpha and beta are measured there, the same placement is simulated with them, and compared "
        "with what allreduce takes: median of the slowest rank; up to 1 MiB a call is one of eight in a row."
    )
    lines = [
        "## How far off",
        "",
        "    python bench/model.py --check        # as root",
        "",
        *textwrap.wrap(text, 118),
        "",
    ]
    lines += marked.table(HEADS, [cells_of(row) for row in rows])
    lines += ["", *(f"- {sentence}" for sentence in summaries(rows))]
    marked.write(page, "bench/model.py --check", lines)
