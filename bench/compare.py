"""Compare two sets of results, or accdp with its peers now.

    python bench/compare.py OLD.jsonl NEW.jsonl       fails on what became slower than the spread, and on missing rows
    python bench/compare.py --peers gloo,mpich,openmpi      measures, prints and draws the table

Peers: gloo stands beside accdp-torch (the same process group calls), mpich and openmpi (mpi4py) beside accdp
(Communicator), all on the same kind of buffers. The MPI that accdp was built with takes turns with accdp in one job,
gloo with accdp-torch in another: ranks sleep in gloo's calls for milliseconds, and where they outnumber cores whoever
comes next begins with several of them on one core. The other MPI cannot be in our jobs: it runs in a virtual
environment of its own, which --openmpi-env (--mpich-env) or ACCDP_BENCH_OPENMPI_ENV (ACCDP_BENCH_MPICH_ENV) names; else
the first run makes one under build/. All jobs take turns. Beside an MPI short operations are measured twice: alone
behind a barrier, and many in a row ("x16"): where ranks share cores, much of the first is in which order a library's
ranks leave its barrier.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import figures
import jobs_of_bench as jobs
import numpy as np
import starts
from jobs_of_bench import JobFailed, Mpi, Row

from accdp_comm import readers
from accdp_comm.bench import options
from accdp_comm.bench.graph import size_name
from accdp_comm.bench.operations import OPERATIONS, Refused
from accdp_comm.bench.record import replace_json

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("gloo", "mpich", "openmpi")
COLLECTIVES = [name for name, row in OPERATIONS.items() if not row.is_pair]
SIZES = "4,64,1k,4k,16k,64k,256k,1M,4M,16M,64M"
QUICK_SIZES = "4,1k,64k,1M,16M"
BURST, BURST_BYTES = 16, 64 << 10  # calls between two barriers, of operations up to that size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="OLD NEW", help="two files of JSON lines")
    add("--peers", type=readers.some_of(PEERS), help="measure against some of these")
    add("--quick", action="store_true", help="bcast and allreduce, few sizes, 2 ranks, one round")
    add("-n", "--ranks", type=readers.numbers(1), help="2,4")
    add("--ops", type=readers.some_of(COLLECTIVES), help="collectives; default: all")
    add("--sizes", type=jobs.checked_sizes, help=SIZES)
    add("--rounds", type=readers.at_least(1), help="starts of each job, in turn with the other MPI's (3)")
    seconds = readers.real("seconds > 0", lambda value: 0 < value < math.inf)
    add("--seconds", type=seconds, default=2.0, help="for each size and round (2)")
    for family in ("openmpi", "mpich"):
        known = os.environ.get(f"ACCDP_BENCH_{family.upper()}_ENV")
        add(f"--{family}-env", type=Path, default=Path(known) if known else None, metavar="DIR")
    add("--json", type=Path, default=ROOT / "bench" / "results" / "peers.jsonl")
    add("--png", type=Path, default=ROOT / "build" / "bench" / "peers.png")
    args = parser.parse_args()
    if bool(args.peers) == bool(args.files) or len(args.files) not in (0, 2):
        parser.error("expected two files, or --peers")
    args.ranks = args.ranks or ([2] if args.quick else [2, 4])
    args.ops = args.ops or (["bcast", "allreduce"] if args.quick else COLLECTIVES)
    args.sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    args.rounds = args.rounds or (1 if args.quick else 3)
    return args


# What is looked at in a row.
_NEEDED = {"op", "ranks", "backend", "bytes", "datatype", "median_us", "p10_us", "p90_us"}

# -- two files ----------------------------------------------------------------------------------------------------


def verdict(old: Row, new: Row) -> str:
    """Return slower, faster or "" for one point: medians that differ by more than either run's own spread."""
    up = max(row["p90_us"] - row["median_us"] for row in (old, new))
    down = max(row["median_us"] - row["p10_us"] for row in (old, new))
    change = new["median_us"] - old["median_us"]
    return "slower" if change > up else "faster" if -change > down else ""


def compare_files(old_path: Path, new_path: Path) -> int:
    """Print what changed; return 1 if a point became slower or is missing."""
    old, new = (starts.merged(_read(path)) for path in (old_path, new_path))
    missing = [old[key] for key in old.keys() - new.keys()]
    verdicts = {key: verdict(old[key], new[key]) for key in old.keys() & new.keys()}
    for row in sorted(missing, key=_order):
        print(f"missing  {_point(row)}")
    for wanted in ("slower", "faster"):
        for key in sorted((key for key, said in verdicts.items() if said == wanted), key=lambda key: _order(old[key])):
            before, after = old[key]["median_us"], new[key]["median_us"]
            print(f"{wanted:<8} {_point(old[key])}: {before:.2f} -> {after:.2f} us ({after / before:.2f})")
    machines = {str(row.get("machine")) for row in [*old.values(), *new.values()]}
    if len(machines) > 1:
        print("note: the files come from different machines")
    counts = {said: sum(value == said for value in verdicts.values()) for said in ("slower", "faster", "")}
    print(
        f"{len(verdicts)} points compared: {counts['slower']} slower, {counts['faster']} faster, {counts['']} within "
        f"the spread; {len(missing)} missing, {len(new.keys() - old.keys())} new"
    )
    if not verdicts:
        print("nothing to compare: the files have no point in common")
    return 1 if missing or counts["slower"] or not verdicts else 0


def _read(path: Path) -> list[Row]:
    """Return the rows of a file, which may be of another benchmark."""
    rows = jobs.read(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row.keys() >= _NEEDED:
            raise JobFailed(
                f"{path}, line {number}: expected a row of `accdp bench`, with {', '.join(sorted(_NEEDED))}"
            )
    return rows


def _order(row: Row) -> tuple[Any, ...]:
    return row["op"], row["ranks"], row["backend"], row.get("burst", 1), row.get("is_async", False), row["bytes"]


def _point(row: Row) -> str:
    how = f" x{row['burst']}" if "burst" in row else ""
    how += " async" if row.get("is_async") else ""
    return f"{row['op']}{how} {row['backend']} {size_name(row['bytes'])}, {row['ranks']} ranks, {row['datatype']}"


# -- peers --------------------------------------------------------------------------------------------------------


def measure_peers(args: argparse.Namespace) -> list[Row]:
    """Run all jobs, round by round; one line says which peer is not there."""
    ours = Mpi()
    others: list[Mpi] = []
    for family in ("mpich", "openmpi"):
        if family in args.peers and family != ours.family:
            environment = getattr(args, f"{family}_env")
            try:
                others.append(Mpi(environment, family) if environment else Mpi.made(family))
            except JobFailed as error:
                if environment:
                    raise
                print(f"compare.py: {family} is left out: accdp was built with {ours.family}; {error}")
    beside = [["accdp", "mpi"] if ours.family in args.peers else ["accdp"]]
    beside += [["accdp-torch", "gloo"]] if "gloo" in args.peers else []
    rows: list[Row] = []
    for ranks in args.ranks:
        for turn in range(args.rounds):
            print(f"compare.py: {ranks} ranks, round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
            for backends in beside:
                rows += jobs.measure(ours, ranks, _plan(args, backends))
            for other in others:
                found = jobs.measure(other, ranks, _plan(args, ["mpi"]))
                if {row["backend"] for row in found} != {other.family}:
                    raise JobFailed(f"{other.python} does not run {other.family} but {found[0]['versions']['mpi']}")
                rows += found
    return list(starts.merged(rows).values())


def _plan(args: argparse.Namespace, backends: list[str]) -> list[list[str]]:
    """Return the lines that one start measures."""
    words = ["--seconds", str(args.seconds), "-M", "2G", "-T", "mpi_float", "--backend", ",".join(backends)]
    lines = [[op, *words, *([] if op == "barrier" else ["--sizes", args.sizes])] for op in args.ops]
    if "gloo" in backends:
        return lines
    short = ",".join(str(size) for size in options.size_list(args.sizes) if size <= BURST_BYTES)
    burst = ["--burst", str(BURST)]
    return lines + [
        [op, *words, *burst, *([] if op == "barrier" else ["--sizes", short])]
        for op in args.ops
        if short or op == "barrier"
    ]


def mark(op: str, ranks: int, nbytes: int, peer: str) -> float | None:
    """Return how many times as fast as a peer accdp is to be, where that is said; None elsewhere."""
    if peer != "gloo":
        return 1.8 if op == "allreduce" and nbytes >= 16 << 20 else 0.9 if op in ("allreduce", "bcast") else None
    if op not in ("allreduce", "bcast"):
        return 2.0
    if ranks > len(os.sched_getaffinity(0)):
        return 4.0
    return 15.0 if nbytes <= 1024 else 4.0 if nbytes >= 1 << 20 else None


def table(rows: list[Row]) -> list[str]:
    """Return the lines of the table: per point our time, the best peer of the same kind, ratio and mark."""
    lines = [
        f"{'op':<19}{'ranks':>6}{'size':>10}  {'ours':<12}{'us (p10-p90)':>28}  {'peer':<9}{'us':>12}{'ratio':>8}  mark"
    ]
    reached: list[bool] = []
    for ours in sorted((row for row in rows if row["backend"] in ("accdp", "accdp-torch")), key=_order):
        peers = [row for row in rows if row["backend"] in PEERS and figures.counterpart(row, [ours]) is ours]
        if not peers:
            continue
        best = min(peers, key=lambda row: row["median_us"])
        ratio, wanted = (
            best["median_us"] / ours["median_us"],
            mark(ours["op"], ours["ranks"], ours["bytes"], best["backend"]),
        )
        if wanted is not None:
            reached.append(ratio >= wanted)
        said = "" if wanted is None else f"{wanted:g} {'yes' if reached[-1] else 'NO'}"
        spread = f"{ours['median_us']:.2f} ({ours['p10_us']:.2f}-{ours['p90_us']:.2f})"
        op = f"{ours['op']} x{ours['burst']}" if "burst" in ours else ours["op"]
        lines.append(
            f"{op:<19}{ours['ranks']:>6}{size_name(ours['bytes']):>10}  {ours['backend']:<12}{spread:>28}  "
            f"{best['backend']:<9}{best['median_us']:>12.2f}{ratio:>8.2f}  {said}"
        )
    lines.append(f"{sum(reached)} of {len(reached)} marks reached")
    return lines


def memcpy_gbps() -> float:
    """Return the bandwidth of a copy in memory, in GB/s: the median of some."""
    nbytes = 64 << 20
    source, target, times = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8), []
    for _ in range(9):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return nbytes / statistics.median(times[1:]) / 1e9


def compare_peers(args: argparse.Namespace) -> int:
    """Measure, print the table, draw it, write the rows."""
    rows = measure_peers(args)
    memcpy = memcpy_gbps()
    for row in rows:
        row["memcpy_gbps"] = memcpy
    replace_json(args.json, rows)
    print("\n".join(table(rows)))
    for row in sorted(rows, key=_order):
        if row["op"] == "bcast" and row["backend"] == "accdp" and row["bytes"] >= 16 << 20:
            share = row["algbw_gbps"] = row["bytes"] / row["median_us"] / 1e3
            print(f"{_point(row)}: {share:.2f} GB/s, {share / memcpy:.2f} of memcpy's {memcpy:.2f} GB/s (mark 0.9)")
    alone = [row for row in rows if "burst" not in row]
    figures.ratios(alone, args.png)
    figures.latency(alone, args.png.with_stem(args.png.stem + "_latency"))
    print(f"rows: {args.json}; figures: {args.png} and {args.png.with_stem(args.png.stem + '_latency').name}")
    return 0


def main() -> int:
    args = arguments()
    try:
        return compare_peers(args) if args.peers else compare_files(*args.files)
    except (JobFailed, Refused, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
