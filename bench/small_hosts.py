"""Measure short operations between hosts against the MPI that carries them; both take turns, in one start of the ranks.

    python bench/small_hosts.py                                        as root: hosts are network namespaces
    python bench/small_hosts.py --placements 2x1 --ops allreduce,latency --sizes 4,8k    some points
    python bench/small_hosts.py --page docs/performance.md             also writes that page's part

An operation is called after a barrier of its own library, alone and many times in a row; times are the slowest rank's.
`latency` is a ping-pong of Communicator.send and recv, `bw` a window of isend and irecv, both between ranks 0 and 1 on
two hosts of one rank.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import marked
from bcast_hosts import machine, need_hosts, run_job, versions
from bcast_plan import PLACEMENTS
from rich.console import Console
from rich.table import Table

from accdp_comm import readers
from accdp_comm.bench.operations import OPERATIONS

COLLECTIVES = [
    *("barrier", "bcast", "allreduce", "reduce", "allgather", "reduce_scatter", "alltoall", "gather", "scatter"),
]
PAIRS = ["latency", "bw"]
DEFAULT_PLACEMENTS = ["2x1", "2x2", "4x1"]
SIZES = "4,64,1k,8k,64k"
BURST = 16
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add(
        "--placements",
        type=readers.some_of(PLACEMENTS),
        default=DEFAULT_PLACEMENTS,
        help=f"hosts x ranks, of {', '.join(PLACEMENTS)}",
    )
    add("--ops", type=readers.some_of(OPERATIONS), default=[*COLLECTIVES, *PAIRS], help="of accdp bench")
    add("--sizes", default=SIZES, help="bytes, k suffix")
    add("--mbit", type=readers.at_least(1), help="speed of each host's link; none: as fast as the cores move bytes")
    add("--seconds", type=float, default=0.5, help="for a size, both libraries together")
    add("--out", type=Path, help="append JSON lines")
    add("--page", type=Path, help="whose part about short operations is written anew")
    return parser.parse_args()


def plan(args: argparse.Namespace, placement: str) -> list[list[str]]:
    """Return the command lines of `accdp bench` for a placement."""
    lines = []
    for op in args.ops:
        if OPERATIONS[op].is_pair and placement != "2x1":
            continue
        sizes = [] if op == "barrier" else ["--sizes", args.sizes]
        words = [op, "--backend", "accdp,mpi", "--seconds", str(args.seconds), "-i", "20000", "-x", "500", *sizes]
        lines.append(words)
        if not OPERATIONS[op].is_pair:
            lines.append([*words, "--burst", str(BURST)])
    return lines


def measure(args: argparse.Namespace, placement: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        lines, out = Path(folder, "plan.json"), Path(folder, "rows.jsonl")
        lines.write_text(json.dumps(plan(args, placement)), encoding="utf-8")
        return run_job(placement, args.mbit, ["-m", "accdp_comm.bench.plan", str(lines)], out, Path(folder))


_TIMES = ("accdp us (10 to 90 %)", "MPI us (10 to 90 %)", "MPI / accdp")
HEADS = ("operation", "bytes", *_TIMES, *(f"x{BURST}: {head}" for head in _TIMES))


def cells_of(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return one line for each operation and size."""
    points: dict[tuple[str, int], dict[int, dict[str, Row]]] = {}
    for row in rows:
        points.setdefault((row["op"], row["bytes"]), {}).setdefault(row.get("burst", 1), {})[row["backend"]] = row

    def said(by: dict[str, Row] | None) -> tuple[str, ...]:
        if by is None:
            return "", "", ""
        ours, mpi = by["accdp"], by["mpi"]
        times = (f"{row['median_us']:.1f} ({row['p10_us']:.1f} to {row['p90_us']:.1f})" for row in (ours, mpi))
        return *times, f"{mpi['median_us'] / ours['median_us']:.2f}"

    return [(op, str(size), *said(by.get(1)), *said(by.get(BURST))) for (op, size), by in points.items()]


def table(rows: list[Row], title: str) -> Table:
    found = Table(*HEADS, title=title)
    for cells in cells_of(rows):
        found.add_row(*cells)
    return found


def write_page(page: Path, tables: dict[str, list[Row]]) -> None:
    """Replace the part of a page; tables: rows by title."""
    lines = ["## Short operations between hosts", "", "    python bench/small_hosts.py --page docs/performance.md", ""]
    about = (
        "As root: hosts are network namespaces, whose cores are those of one machine. Both libraries take turns and "
        "use the same MPI over TCP; microseconds of the slowest rank, median. An operation is called after a barrier "
        f"of its own library, alone and {BURST} times in a row (x{BURST}: of which a call is an equal part). Where "
        "ranks share cores, much of a short call alone is in which order the library's ranks leave its barrier; in a "
        "row that does not show, but who only sends may go ahead. *latency* is a ping-pong of send and recv (half of "
        f"the way there and back), *bw* a window of isend and irecv. {machine()['cores']} cores; MPICH "
        f"{versions().get('mpich', '-')}; accdp at {versions().get('commit', 'unknown')}."
    )
    lines += textwrap.wrap(about, 118)
    for title, rows in tables.items():
        lines += ["", f"### {title}", "", *marked.table(HEADS, cells_of(rows))]
    marked.write(page, "bench/small_hosts.py", lines)


def main() -> None:
    args = arguments()
    need_hosts("small_hosts.py")
    console = Console(highlight=False, width=150)
    tables = {}
    for placement in args.placements:
        rows = measure(args, placement)
        link = f"{args.mbit} Mbit/s" if args.mbit else "links without a limit"
        tables[title := f"{placement} (hosts x ranks), {link}"] = rows
        console.print(table(rows, title))
        if args.out is None:
            continue
        common = {"machine": machine(), "versions": versions()}
        with args.out.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(common | row) + "\n" for row in rows)
    if args.page:
        write_page(args.page, tables)


if __name__ == "__main__":
    main()
