"""Predict allreduce over 2 to 4096 nodes: a ring, trees, and what accdp would do, by a simulator.

    python bench/model.py            simulate, write bench/results/model.jsonl, draw docs/model.png (half a minute)
    python bench/model.py --check    as root: measure on hosts that are network namespaces, and write the error to the
                                     page (two minutes)
    python bench/model.py --report   the tables and the figure of the lines that are there

The simulator (model_network.py) plays messages in the order of the algorithms; alpha and beta are options, the times on
a node are those of the library's cost functions. --check measures alpha and beta on the hosts, simulates the same
placements with them, and compares with the allreduce that ran there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import model_network
import model_page
from rich.console import Console
from rich.table import Table

from accdp_comm import _core, plan, readers
from accdp_comm.bench.graph import pyplot, size_name
from accdp_comm.bench.record import replace_json

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SIZES = (8, 64 << 10, 16 << 20, 256 << 20)
NODES = tuple(1 << bit for bit in range(1, 13))
CHECK_PLACEMENTS = ("1x2", "2x1", "2x2", "4x1", "4x2")  # hosts x ranks
CHECK_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
CHECK_MBIT = 1000
CHECK_BUCKET_BYTES = CHECK_MBIT * 1e6 / 8 * 0.002  # of the links of tests/hosts/testbed.py: two milliseconds' traffic
COLOURS = {"accdp": "#d62728", "ring": "#1f77b4", "binomial tree": "#2ca02c", "recursive doubling": "#9467bd"}

Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with hosts (as root)")
    what.add_argument("--report", action="store_true", help="simulate and measure nothing, show what --out has")
    parser.add_argument("--link", type=readers.rate_of, default="10Gbit", metavar="RATE", help="of each node (10Gbit)")
    parser.add_argument("--latency", type=float, default=20.0, metavar="US", help="of a message (20)")
    parser.add_argument("--message", type=float, default=1.0, metavar="US", help="of each further one (1)")
    parser.add_argument("--ranks", type=int, default=8, metavar="K", help="on each node (8)")
    parser.add_argument("--nodes", type=int, default=NODES[-1], metavar="N", help="at most (4096)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "model.jsonl", help="JSON lines")
    parser.add_argument("--png", type=Path, default=ROOT / "docs" / "model.png", help="the figure")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "model.md", help="where --check writes its table")
    return parser.parse_args()


def machine_of(fields: Row) -> _core.Machine:
    machine = _core.Machine()
    for name in plan.MACHINE_FIELDS:
        setattr(machine, name, fields[name])
    return machine


def fields_of(machine: _core.Machine) -> Row:
    return {name: getattr(machine, name) for name in plan.MACHINE_FIELDS}


def simulate(args: argparse.Namespace, console: Console) -> list[Row]:
    """One row per number of nodes, size and algorithm."""
    machine = _core.Machine()
    machine.link_bytes_per_s = args.link
    machine.latency_s, machine.message_s = args.latency * 1e-6, args.message * 1e-6
    rows = []
    for nodes in (n for n in NODES if n <= args.nodes):
        console.print(f"{nodes} nodes x {args.ranks} ranks")
        shape = plan.declared_shape(f"{nodes}x{args.ranks}")
        for nbytes in SIZES:
            chosen = _core.plan("allreduce", nbytes, shape, machine)[0]
            for name in model_network.ALGORITHMS:
                row = {"part": "simulation", "nodes": nodes, "ranks_per_node": args.ranks, "bytes": nbytes}
                row |= {"method": name, "seconds": model_network.seconds_of(name, nbytes, shape, machine)}
                if name == "accdp":
                    row |= {"algorithm": chosen["algorithm"], "lanes": chosen["lanes"], "plan_s": chosen["seconds"]}
                rows.append(row | {"machine": fields_of(machine)})
    return rows


def check(console: Console) -> list[Row]:
    """Measure on hosts; one row per placement and size, with what plan and simulator say."""
    import bcast_hosts

    rows = []
    common = {
        "machine": bcast_hosts.machine(),
        "versions": bcast_hosts.versions(),
        "date": f"{datetime.date.today():%d %b %Y}",
    }
    with tempfile.TemporaryDirectory() as folder:
        for placement in CHECK_PLACEMENTS:
            console.print(f"check: {placement} (hosts x ranks), {CHECK_MBIT} Mbit/s")
            argv = [str(HERE / "model_rank.py"), ",".join(map(str, CHECK_SIZES))]
            out = Path(folder, "out.jsonl")
            for row in bcast_hosts.run_job(placement, CHECK_MBIT, argv, out, Path(folder)):
                shape, machine = plan.declared_shape(placement), machine_of(row["machine_measured"])
                shape.meets_at_hub = row["meets_at_hub"]
                predicted = None
                if row["hosts"] > 1:
                    calls = row["calls"]
                    predicted = model_network.seconds_in_a_row(row["bytes"], shape, machine, calls, CHECK_BUCKET_BYTES)
                rows.append({"part": "check"} | row | {"simulated_s": predicted} | common)
    return rows


def print_check(rows: list[Row], console: Console) -> None:
    mine = [row for row in rows if row["part"] == "check"]
    table = Table(*model_page.HEADS)
    for row in mine:
        table.add_row(*model_page.cells_of(row))
    if mine:
        console.print(table)
    for sentence in model_page.summaries(mine):
        console.print(sentence)


def print_simulation(rows: list[Row], console: Console) -> None:
    mine = [row for row in rows if row["part"] == "simulation"]
    sizes, names = sorted({row["bytes"] for row in mine}), list(model_network.ALGORITHMS)
    for nbytes in sizes:
        table = Table("nodes", *names, "accdp does", "plan says", title=f"allreduce of {size_name(nbytes)}, ms")
        for nodes in sorted({row["nodes"] for row in mine}):
            at = {row["method"]: row for row in mine if (row["bytes"], row["nodes"]) == (nbytes, nodes)}
            ours = at["accdp"]
            way = ours["algorithm"] + (f", {ours['lanes']} lanes" if ours["lanes"] > 1 else "")
            cells = [f"{at[name]['seconds'] * 1e3:.4g}" for name in names]
            table.add_row(str(nodes), *cells, way, f"{ours['plan_s'] * 1e3:.4g}")
        console.print(table)


def draw(rows: list[Row], path: Path) -> None:
    """Time over nodes, one panel per size, one colour per algorithm."""
    mine = [row for row in rows if row["part"] == "simulation"]
    plots = pyplot()
    sizes = sorted({row["bytes"] for row in mine})
    figure, axes = plots.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 4.2), squeeze=False)
    for panel, nbytes in zip(axes.flat, sizes, strict=True):
        for name in model_network.ALGORITHMS:
            points = [
                (row["nodes"], row["seconds"] * 1e3) for row in mine if (row["bytes"], row["method"]) == (nbytes, name)
            ]
            panel.plot(*zip(*sorted(points), strict=True), marker="o", ms=3, color=COLOURS[name], label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(f"allreduce of {size_name(nbytes)}", fontsize=10)
        panel.set_xlabel("nodes")
        panel.set_ylabel("milliseconds (predicted)")
        panel.grid(True, which="major", alpha=0.3)
    machine, ranks = mine[0]["machine"], mine[0]["ranks_per_node"]
    figure.suptitle(
        f"Simulated: {ranks} ranks on each node, {machine['link_bytes_per_s'] * 8 / 1e9:g} Gbit/s, "
        f"{machine['latency_s'] * 1e6:g} us a message, {machine['message_s'] * 1e6:g} us each further one",
        fontsize=11,
    )
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels))
    figure.tight_layout(rect=(0, 0.08, 1, 0.97))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plots.close(figure)


def main() -> None:
    args = arguments()
    console = Console(highlight=False, width=max(Console().width, 130))
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    if not args.report:
        if args.check and os.geteuid() != 0:
            sys.exit("model.py --check: expected root, who may make network namespaces")
        found = check(console) if args.check else simulate(args, console)
        rows = [row for row in rows if row["part"] != found[0]["part"]] + found
        replace_json(args.out, rows)
        console.print(f"{len(rows)} lines in {args.out}")
    if any(row["part"] == "simulation" for row in rows) and not args.check:
        print_simulation(rows, console)
        draw(rows, args.png)
        console.print(f"figure: {args.png}")
    print_check(rows, console)
    if args.check:
        model_page.write([row for row in rows if row["part"] == "check"], args.page)
        console.print(f"table: {args.page}")


if __name__ == "__main__":
    main()
