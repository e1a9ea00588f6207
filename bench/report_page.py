"""The generated part of docs/performance.md: tables of the rows of bench/report.py, between two markers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import figures
import jobs_of_bench as jobs
import marked
from jobs_of_bench import Row

from accdp_comm.bench.graph import size_name


def write(rows: Sequence[Row], page: Path) -> Path:
    """Put the tables between the markers of a page, at its end where it has none; return the page."""
    try:
        return marked.write(page, "bench/report.py", lines_of(rows))
    except marked.Unmatched as error:
        raise jobs.JobFailed(str(error)) from error


def lines_of(rows: Sequence[Row]) -> list[str]:
    """Return all lines of the generated part."""
    grid = [row for row in rows if row["part"] == "grid"]
    lines = ["## All operations", "", "    python bench/report.py", "", *_where(rows)]
    for ranks in dict.fromkeys(row["ranks"] for row in grid):
        lines += ["", f"### {ranks} ranks", "", *_table([row for row in grid if row["ranks"] == ranks])]
    if grid:
        lines += ["", "![time of a call](bench_latency.png)", "![bus bandwidth](bench_bandwidth.png)"]
        lines += ["![times as fast as the peer](bench_ratio.png)", "", *_losses(grid)]
    lines += _codecs([row for row in rows if row["part"] == "codecs"])
    lines += _train([row for row in rows if row["part"] == "train"])
    return lines + _repeat(rows)


def _where(rows: Sequence[Row]) -> list[str]:
    row = next((row for row in rows if row["part"] == "grid" and "machine" in row), None)
    if row is None:
        return ["The grid was not measured."]
    machine, versions = row["machine"], row["versions"]
    loads = [r["load_1min"] for r in rows if "load_1min" in r]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    mpi = versions.get("mpi", "no MPI")
    torch = f"torch {versions['torch']}" if "torch" in versions else "no torch"
    harness = min(row["harness_us"] for row in rows if "harness_us" in row)
    crowded = max(loads) > 2 * machine["cores"]
    text = (
        f"{machine['cores']} cores ({machine['processor']}), {gpus}; {mpi}, {torch}, accdp {commits(rows)}. One host, "
        f"shared memory. Each row is from {_starts(rows)} of the ranks, in which its backends took turns. Times are "
        "microseconds, the slowest rank's median, with 10th and 90th percentile; float32; results were checked (of bw "
        "and bibw up to 1 MiB). The loop around a call costs "
        f"{harness:.2f} us. accdp is Communicator beside mpi4py; accdp-torch is the process group beside gloo. Load "
        f"average while measuring: {min(loads):.1f} to {max(loads):.1f}"
        f"{', so other work decided: measure again when it is quiet' * crowded}."
    )
    return textwrap.wrap(text, 118)


def _starts(rows: Sequence[Row]) -> str:
    found = sorted({row.get("starts", 1) for row in rows if row["part"] == "grid"})
    return f"{' or '.join(map(str, found))} start{'s' * (found != [1])}"


def commits(rows: Sequence[Row]) -> str:
    """Return the commits that the rows come from: one, or part by part; or operation by operation where they differ
    within a part, since parts may be measured again piece by piece."""
    found: dict[str, dict[str, list[str]]] = {}  # part -> commit -> what was measured there
    for row in rows:
        if commit := row.get("versions", {}).get("commit"):
            label = f"{row['op']} on {row['ranks']} ranks"
            found.setdefault(row["part"], {}).setdefault(commit, []).append(label)
    every = sorted({commit for of_part in found.values() for commit in of_part})
    if len(every) < 2:
        return every[0] if every else "of an unknown commit"
    said = []
    for part, of_part in found.items():
        for commit, labels in of_part.items():
            said.append(f"{part} {commit}" + (f" ({', '.join(dict.fromkeys(labels))})" if len(of_part) > 1 else ""))
    return f"at several commits: {'; '.join(said)}"


def _table(rows: list[Row]) -> list[str]:
    has_osu = any(row["backend"] == "osu" for row in rows)  # average over all iterations, as the binaries print
    heads = ["operation", "size", "accdp", "MPI", "MPI / accdp", "accdp-torch", "gloo", "gloo / accdp-torch"]
    heads += ["OSU binary"] if has_osu else []
    lines = []
    for op, size in dict.fromkeys((row["op"], row["bytes"]) for row in rows):
        found = {row["backend"]: row for row in rows if (row["op"], row["bytes"]) == (op, size)}
        mpi = next((found[name] for name in ("mpich", "openmpi", "mpi") if name in found), None)
        ours, torch, gloo = (found.get(name) for name in ("accdp", "accdp-torch", "gloo"))
        cells = [op, size_name(size) if size else "", *map(_cell, (ours, mpi)), _ratio(mpi, ours)]
        cells += [*map(_cell, (torch, gloo)), _ratio(gloo, torch)]
        cells += [_short(found["osu"]["median_us"]) if "osu" in found else ""] if has_osu else []
        lines.append(cells)
    return marked.table(heads, lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{_short(row['median_us'])} ({_short(row['p10_us'])} to {_short(row['p90_us'])})"


def _short(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _ratio(peer: Row | None, ours: Row | None) -> str:
    return f"{peer['median_us'] / ours['median_us']:.2f}" if peer and ours else ""


def _losses(rows: list[Row]) -> list[str]:
    """Say where a peer is faster by more than our spread."""
    lost = []
    points = [row for row in rows if row["backend"] in figures.OURS]
    for peer in points:
        ours = figures.counterpart(peer, rows)
        if ours is not None and peer["median_us"] < ours["p10_us"]:
            size = f" {size_name(peer['bytes'])}" if peer["bytes"] else ""
            times = ours["median_us"] / peer["median_us"]
            lost.append(f"{peer['op']}{size} on {peer['ranks']} ranks ({peer['backend']} {times:.1f}x)")
    head = f"Where a peer is faster, beyond our spread: {len(lost)} of {len(points)} points."
    return [head, *([", ".join(lost) + "."] if lost else [])]


def _codecs(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"### Codecs: bcast of {size_name(rows[0]['bytes'])}, two ranks declared as two nodes", ""]
    lines += [f"Data: {rows[0]['data']}. No link is limited here: what a codec costs shows, not what it saves.", ""]
    cells = []
    for row in rows:
        bound = "none" if not row["error_bound"] else f"{row['error_bound'][0]:g} standard deviations"
        asked = row["backend"].partition("+")[2]
        checked = "within the bound" if row["error_bound"] and not row["errors"] else f"{row['errors']} wrong"
        cells.append([asked, bound, row["codec"], f"{row['ratio']:.2f}", _cell(row), checked])
    table = marked.table(["codec", "error bound", "used", "ratio", "us", "checked"], cells)
    return [*lines, *table, "", "![codecs](bench_codecs.png)"]


def _train(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    cells = []
    for row in rows:
        goal = (
            f"{row['seconds_to_loss']:.2f} s, {row['steps_to_loss']} steps" if row["steps_to_loss"] else "not reached"
        )
        model = row["op"].partition(":")[2]
        speed = f"{row['samples_per_s']:.0f}"
        cells.append([model, row["backend"], str(row["ranks"]), speed, _cell(row), str(row["target_loss"]), goal])
    heads = ["model", "backend", "ranks", "samples/s", "step, us", "loss", "reached after"]
    meaning = "samples/s are of all measured steps; of a step the median, with the 10th and 90th percentile."
    return ["", "### Training the examples' models (bench/train.py)", "", meaning, "", *marked.table(heads, cells)]


def repeat_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line per repeated point."""
    return [
        f"{row['op']} {size_name(row['bytes'])}, {row['ranks']} ranks: {row['pairs_agree']} of {row['pairs']} pairs of "
        f"runs within the spread (last run: {_cell(row)} us)"
        for row in rows
        if row["part"] == "repeat"
    ]


def _repeat(rows: Sequence[Row]) -> list[str]:
    found = repeat_lines(rows)
    if not found:
        return []
    agree, pairs = (sum(row[name] for row in rows if row["part"] == "repeat") for name in ("pairs_agree", "pairs"))
    head = (
        f"`bench/report.py --repeat`: {agree} of {pairs} pairs of runs ({agree / pairs:.0%}) differ by no more than "
        "the spread printed: their medians by the larger of the two ranges from the 10th to the 90th percentile."
    )
    return ["", "### Do runs repeat?", "", *textwrap.wrap(head, 118), "", *(f"- {line}" for line in found)]
