"""Measure allreduce between hosts, compressed and not, against MPI_Allreduce and Gloo; all in one run.

    python bench/allreduce_hosts.py            as root: hosts are network namespaces of this machine, links are limited
    python bench/allreduce_hosts.py --quick    a look, in about a minute
    python bench/allreduce_hosts.py --report   the table of the lines that are there
    python bench/allreduce_hosts.py --only allreduce --placements 2x2 --dtypes float32    some points; the others stay

Parts (--only): ``allreduce``, real gradients on 2 hosts x 2 ranks and 4 x 1; ``training``, steps of the character model
under DistributedDataParallel on 2 hosts x 2 ranks, and the loss after them. The methods of a line take turns.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import hosts_page
import real_tensors
from allreduce_rank import METHODS
from bcast_hosts import HERE, ROOT, machine, need_hosts, run_job, versions
from bcast_plan import PLACEMENTS
from rich.console import Console
from rich.table import Table

from accdp_comm import readers
from accdp_comm.bench.record import replace_json

PARTS = ("allreduce", "training")
DEFAULT_PLACEMENTS = ["2x2", "4x1"]
DTYPES = ["float32", "bfloat16"]
LINK_MBIT = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--only", choices=PARTS, help="one part")
    add(
        "--placements",
        type=readers.some_of(PLACEMENTS),
        default=DEFAULT_PLACEMENTS,
        help="hosts x ranks, of the part allreduce",
    )
    add("--dtypes", type=readers.some_of(DTYPES), default=DTYPES, help="of the part allreduce")
    add("--methods", type=readers.some_of(METHODS), help="of the part allreduce")
    add("--quick", action="store_true", help="small model, 16 MiB, few samples and steps")
    add("--cache", type=Path, default=ROOT / "build" / "bench", help="folder for the real tensors")
    add("--out", type=Path, help="JSON lines; those of other points stay there")
    add("--page", type=Path, help="whose part about allreduce is written anew (docs/performance.md)")
    add("--report", action="store_true", help="measure nothing, show what --out has")
    args = parser.parse_args()
    if args.methods and args.out is None:
        parser.error("--methods: expected --out as well, or lines of different runs would stand beside each other")
    args.out = args.out or (
        args.cache / "quick_allreduce.jsonl" if args.quick else HERE / "results" / "allreduce_hosts.jsonl"
    )
    is_quick = args.quick or args.methods
    args.page = args.page or (args.cache / "quick.md" if is_quick else ROOT / "docs" / "performance.md")
    return args


def point_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what the methods of a row were measured on, all in one run."""
    return row["part"], row["placement"], row["dtype"]


def measure(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    cache = args.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    folder = real_tensors.make(cache, real_tensors.QUICK if args.quick else real_tensors.FULL)
    common = {"machine": machine(), "versions": versions(), "command": shlex.join(["python", *sys.argv])}
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "out.jsonl")
        for part in [args.only] if args.only else PARTS:
            for placement in args.placements if part == "allreduce" else DEFAULT_PLACEMENTS[:1]:
                console.print(f"{part}: {placement} (hosts x ranks), {LINK_MBIT} Mbit/s")
                argv = [str(HERE / "allreduce_rank.py"), part, str(folder), "quick" if args.quick else "full"]
                argv += [",".join(args.dtypes), ",".join(args.methods or METHODS)]
                found = run_job(placement, LINK_MBIT, argv, out, cache)
                rows += [{"part": part} | row | common for row in found]
    return rows


def print_tables(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table("hosts x ranks", "dtype", "MiB", "method", "median ms", "10 % .. 90 %", "of the wire's", "ratio")
    for row in rows:
        if row["part"] == "allreduce":
            spread = f"{row['p10_s'] * 1e3:.0f} .. {row['p90_s'] * 1e3:.0f}"
            wire = f"{row['median_s'] / hosts_page.wire_seconds(row):.2f}"
            table.add_row(
                *(row["placement"], row["dtype"], f"{row['bytes'] / 2**20:g}", row["method"]),
                *(f"{row['median_s'] * 1e3:.0f}", spread, wire, f"{row['ratio']:.2f}"),
            )
    console.print(table)
    table = Table("hosts x ranks", "method", "step ms", "10 % .. 90 %", "loss at the end", "steps", "ratio")
    for row in rows:
        if row["part"] == "training":
            spread = f"{row['p10_s'] * 1e3:.0f} .. {row['p90_s'] * 1e3:.0f}"
            table.add_row(
                *(row["placement"], row["method"], f"{row['median_s'] * 1e3:.0f}", spread),
                *(f"{row['loss']:.4f}", str(row["samples"]), f"{row['ratio']:.2f}"),
            )
    console.print(table)


def main() -> None:
    args = arguments()
    console = Console(highlight=False, width=max(Console().width, 130))
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    if not args.report:
        need_hosts("allreduce_hosts.py")
        found = measure(args, console)
        measured = {point_of(row) for row in found}
        rows = [row for row in rows if point_of(row) not in measured] + found
        rows.sort(key=lambda row: (PARTS.index(row["part"]), row["placement"]))
        replace_json(args.out, rows)
        console.print(f"{len(rows)} lines in {args.out}")
    print_tables(rows, console)
    hosts_page.write_allreduce(rows, args.page)
    console.print(f"tables in {args.page}")


if __name__ == "__main__":
    main()
