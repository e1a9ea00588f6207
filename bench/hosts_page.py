"""The parts of docs/performance.md that bench/bcast_hosts.py and bench/allreduce_hosts.py write."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import marked
from bcast_plan import BOUND
from bcast_report import BOUNDED_MARKS, auto_points, below_others, figures_of, place_of

Row = dict[str, Any]

_HOSTS = (
    "Hosts are network namespaces whose links are limited (`tc tbf`); MPI goes over UCX (tcp). **All hosts share the "
    "cores of one machine**: at 1 Gbit/s the links are the limit, as between real hosts; at 10 Gbit/s the cores are, "
    "and what costs time there is what costs computing."
)


def write_bcast(rows: list[Row], page: Path) -> None:
    """Replace the broadcast's part of a page."""
    lines = ["## Broadcast between hosts", "", "    python bench/bcast_hosts.py        # as root", ""]
    lines += textwrap.wrap(
        f"{_HOSTS} Data: {_data_of(rows)}. The methods of a column took turns; slowest rank, median. Parts of the page "
        f"may be of several runs; each line of bench/results/bcast_hosts.jsonl says of which. {_measured_with(rows)}",
        118,
    )
    lines += ["", "### Marks", "", *_marks(rows)]
    lines += _bounded([row for row in rows if row["part"] == "figures"])
    for place in dict.fromkeys(place_of(row) for row in rows if row["part"] == "figures"):
        lines += ["", *_methods(place, [row for row in rows if row["part"] == "figures" and place_of(row) == place])]
    lines += _reference([row for row in rows if row["part"] == "reference"])
    lines += _parameters([row for row in rows if row["part"] == "training"])
    lines += _auto(rows)
    lines += ["", "![milliseconds over bytes, a line for each method](bcast_hosts.png)"]
    marked.write(page, "bench/bcast_hosts.py", lines)


def _data_of(rows: list[Row]) -> str:
    """What the tensors of the comparison are."""
    kinds: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["part"] == "figures" and row["dtype"] == "float32":
            kinds.setdefault(row["data_is"].removeprefix(row["data"]), {})[row["data"]] = None
    return "; ".join([*(" and ".join(names) + of for of, names in kinds.items()), "bfloat16: these, rounded"])


def write_allreduce(rows: list[Row], page: Path) -> None:
    """Replace the allreduce's part of a page."""
    sums = [row for row in rows if row["part"] == "allreduce"]
    lines = ["## Allreduce between hosts", "", "    python bench/allreduce_hosts.py    # as root", ""]
    lines += textwrap.wrap(
        "The same hosts, links of 1 Gbit/s. Sums of real gradients of the character model, other ones on every rank. "
        "*of the wire's*: time over what 2 S (n-1)/n bytes take at the speed that plain TCP reaches on the link; with "
        "a ratio of r it cannot be below 1/r. *against accdp*: how many times faster than without a codec. A bound of "
        "0.01 standard deviations leaves float32 about a quarter of its bytes, bfloat16 more than half: three times "
        "faster is out of reach there. "
        f"{_measured_with(rows)}",
        118,
    )
    heads = ["hosts x ranks", "datatype", "MiB", "method", "median ms", "10 % to 90 %", "of the wire's", "ratio"]
    heads.append("against accdp")
    plain = {_point(row): row["median_s"] for row in sums if row["method"] == "accdp"}
    cells = [
        [
            *(row["placement"], row["dtype"], f"{row['bytes'] / 2**20:g}", row["method"], _ms(row), _spread(row)),
            *(f"{row['median_s'] / wire_seconds(row):.2f}", f"{row['ratio']:.2f}"),
            f"{plain[_point(row)] / row['median_s']:.2f}" if _point(row) in plain else "-",
        ]
        for row in sums
    ]
    lines += ["", *marked.table(heads, cells)]
    steps = [row for row in rows if row["part"] == "training"]
    if steps:
        lines += ["", *_training(steps)]
    marked.write(page, "bench/allreduce_hosts.py", lines)


def wire_seconds(row: Row) -> float:
    """What the bytes of an allreduce that must leave a host need on its link."""
    hosts = row["hosts"]
    return float(2 * row["bytes"] * (hosts - 1) / hosts / row["link_bytes_per_s"])


def _point(row: Row) -> tuple[Any, ...]:
    """What the methods of a row were compared on."""
    return row["placement"], row["dtype"], row["bytes"]


def _measured_with(rows: list[Row]) -> str:
    cores = sorted({f"{row['machine']['cores']} cores ({row['machine']['processor']})" for row in rows})
    parts: dict[str, dict[str, None]] = {}
    for row in rows:
        link = f" at {row['link_mbit'] / 1000:g} Gbit/s" if row.get("link_mbit") else ""
        parts.setdefault(row["versions"].get("commit", "unknown"), {})[row["part"] + link] = None
    at = (
        "; ".join(f"{commit}: {', '.join(names)}" for commit, names in parts.items()) if len(parts) > 1 else [*parts][0]
    )
    mpich, torch = (rows[0]["versions"].get(name, "-") for name in ("mpich", "torch"))
    return f"{' or '.join(cores)}; MPICH {mpich}, torch {torch}; accdp at {at}."


def _ms(row: Row) -> str:
    ms = row["median_s"] * 1e3
    return f"{ms:.0f}" if ms >= 20 else f"{ms:.2f}"


def _spread(row: Row) -> str:
    return f"{row['p10_s'] * 1e3:.0f} to {row['p90_s'] * 1e3:.0f}"


def _marks(rows: list[Row]) -> list[str]:
    found = [figure for figure in figures_of(rows) if figure.reached is not None]
    cells = [[one.what, one.where, one.value, one.mark, "yes" if one.reached else "**no**"] for one in found]
    table = marked.table(["figure", "where", "value", "mark", "reached"], cells)
    return [*table, "", f"{sum(bool(one.reached) for one in found)} of {len(found)} reached."]


def _bounded(rows: list[Row]) -> list[str]:
    """How far the fastest codec with an error bound is below MPI_Bcast, and below itself point to point, everywhere."""
    columns = list(dict.fromkeys((row["data"], row["dtype"]) for row in rows))
    cells = []
    for place in dict.fromkeys(place_of(row) for row in rows):
        for other_of, mark in BOUNDED_MARKS:
            of_place = [
                [row for row in rows if (row["data"], row["dtype"]) == c and place_of(row) == place] for c in columns
            ]
            found = [below_others({row["method"]: row for row in each}, other_of) for each in of_place]
            texts = [f"{below:.1%}{' (reached)' if below >= mark else ''}" for below in found]
            cells.append([place, other_of.format("itself"), f"{mark:.1%}", *texts])
    head = f"### What relative({BOUND:g}) saves, and where the papers' marks are reached"
    return (
        ["", head, "", *marked.table(["where", "below", "mark", *(" ".join(c) for c in columns)], cells)]
        if cells
        else []
    )


def _methods(place: str, rows: list[Row]) -> list[str]:
    link = rows[0]["link_bytes_per_s"]
    columns = list(dict.fromkeys((row["data"], row["dtype"]) for row in rows))
    cells = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of_column = {(row["data"], row["dtype"]): row for row in rows if row["method"] == method}
        cells.append([method, *(_time_and_ratio(of_column.get(column)) for column in columns)])
    head = f"### {place} (a plain TCP stream: {link / 1e6:.0f} MB/s), {rows[0]['bytes'] / 2**20:g} MiB"
    return [head, "", *marked.table(["method", *(" ".join(column) for column in columns)], cells)]


def _time_and_ratio(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{_ms(row)} ms" + (f", {row['ratio']:.2f}x" if row["ratio"] > 1.005 else "")


def _reference(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"### Differences between versions (`reference=`), bfloat16, {place_of(rows[0])}", ""]
    cells = [
        [
            *(row["data"].rpartition("_")[2], row["method"], row.get("codec") or ""),
            *(f"{row['ratio']:.2f}", f"{_ms(row)} ms ({_spread(row)})"),
        ]
        for row in rows
    ]
    return lines + marked.table(["learning rate of the step", "method", "codec", "ratio", "time"], cells)


def _parameters(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"### DistributedDataParallel training, {place_of(rows[0])}: parameters broadcast after each step", ""]
    cells = [
        [
            *(row["dtype"], row["method"], f"{_ms(row)} ms", f"{row['phases_s']['broadcast'] * 1e3:.0f} ms"),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    return lines + marked.table(["parameters", "broadcast by", "step", "of it broadcast", "ratio"], cells)


def _auto(rows: list[Row]) -> list[str]:
    by_place = auto_points(rows)
    points = [(place, point) for place, of_place in by_place.items() for point in of_place]
    if not points:
        return []
    beyond = [(place, point) for place, point in points if point.is_beyond]
    over = sum(point.is_over for _, point in beyond)
    text = (
        f'"auto" was compared with each fixed codec at {len(points)} points (size, data, link), round by round. The '
        f"median of the ratios was more than 1.05 at {len(beyond)} points; at {over} of these its interval (95 %, by a "
        "sign test) was so, too."
    )
    lines = ["", "### auto against the best fixed choice", "", *textwrap.wrap(text, 118)]
    return lines + [
        "",
        *(f"- {place}, {point}{'' if point.is_over else ' (perhaps by chance)'}" for place, point in beyond),
    ]


def _training(rows: list[Row]) -> list[str]:
    first = rows[0]
    text = (
        f"DistributedDataParallel steps of the character model ({first['bytes'] / 2**20:.1f} MiB of gradients), "
        f"{first['placement']} (hosts x ranks), {first['samples']} steps; loss: mean of the last ten."
    )
    heads = ["gradients by", "step ms", "10 % to 90 %", "loss at the end", "ratio"]
    cells = [[row["method"], _ms(row), _spread(row), f"{row['loss']:.6f}", f"{row['ratio']:.2f}"] for row in rows]
    return [*textwrap.wrap(text, 118), "", *marked.table(heads, cells)]
