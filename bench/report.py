"""Measure a grid of benchmarks, compare with peers, draw, and write docs/performance.md.

    python bench/report.py             the quick grid, ten minutes      python bench/report.py --full     an hour or so
    python bench/report.py --only codecs,train                          parts; the rows of the others stay
    python bench/report.py --repeat 20                                  is a run's spread what runs differ by?
    python bench/report.py --osu-dir /opt/omb/libexec                   the OSU micro-benchmarks' binaries as well
    python bench/report.py --draw-only                                  figures and page from the rows that are there

Each row comes from several starts of the ranks (--starts): rates differ from start to start by more than within one.
Parts: grid (all operations, accdp beside mpi4py, accdp-torch beside gloo), codecs (a broadcast with each codec between
two declared nodes), train (bench/train.py; one start). Rows go to bench/results/osu.jsonl, figures to docs/bench_*.png,
and tables between the markers of docs/performance.md. Only what accdp's own MPI launcher can start on this host is
measured.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures
import jobs_of_bench as jobs
import osu_binaries
import report_page
import starts
from jobs_of_bench import JobFailed, Mpi, Row
from rich.console import Console

from accdp_comm import readers
from accdp_comm.bench import options
from accdp_comm.bench.measure import LEAST_ITERATIONS
from accdp_comm.bench.operations import OPERATIONS, Refused
from accdp_comm.bench.record import replace_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PARTS = ("grid", "codecs", "train")
BACKENDS = "accdp,mpi,accdp-torch,gloo"
CODECS = "none,auto,fpk,zhuff,zstd"
TRAIN_MODELS, TRAIN_BACKENDS = ("digits", "char_lm"), ("accdp", "gloo")
QUICK = {"sizes": "4,1k,64k,1M,16M", "seconds": 2.0, "ranks": [2, 4], "codec_bytes": "4M", "steps": "60"}
FULL = {
    "sizes": "4,64,1k,4k,16k,64k,256k,1M,4M,16M,64M,256M",
    "seconds": 2.5,
    "ranks": [2, 4],
    "codec_bytes": "64M",
    "steps": "400",
}
# The time given for a size decides: OMB's thousand calls of a microsecond are too short a look at a machine.
MANY = ("-i", "200000")
REPEATED = {"operations": ["bcast", "allreduce"], "sizes": "4,16k,1M", "seconds": 2.0}
STARTS = 5  # with 3, one pair of runs in 15 to 50 of a point that has two modes would differ by more than the spread
# Of bw and bibw, which send 64 messages at once: larger ones take seconds, and checking these takes minutes.
WINDOW_BYTES, CHECKED_WINDOW_BYTES = 16 << 20, 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--full", action="store_true", help="more sizes and iterations")
    add("--only", dest="parts", type=readers.some_of(PARTS), default=list(PARTS), help="parts, comma separated")
    add("--ranks", type=readers.numbers(1), help="numbers of ranks, comma separated (2,4)")
    add("--ops", type=readers.some_of(OPERATIONS), help="operations of the grid, comma separated (all)")
    add("--sizes", type=jobs.checked_sizes, help="of the grid, bytes, comma separated, with k, M, G")
    add("--seconds", type=float, help="for each size, over all starts")
    add("--starts", type=readers.at_least(1), default=STARTS, help=f"of the ranks, for each row ({STARTS})")
    add("--repeat", type=readers.at_least(1), metavar="N", help="compare N pairs of runs, measure nothing else")
    add("--osu-dir", type=Path, metavar="DIR", help="run the OSU binaries below it, too")
    add("--draw-only", action="store_true", help="measure nothing")
    add("--out", type=Path, default=RESULTS / "osu.jsonl", help="rows")
    add("--page", type=Path, default=ROOT / "docs" / "performance.md", help="its generated part is written")
    args = parser.parse_args()
    chosen: dict[str, Any] = FULL if args.full else QUICK
    chosen = {"operations": list(OPERATIONS)} | chosen | (REPEATED if args.repeat else {})
    args.is_piece = bool(args.ops or args.ranks or args.sizes) and not args.repeat
    args.operations = args.ops or chosen["operations"]
    args.ranks = args.ranks or chosen["ranks"]
    args.sizes, args.seconds = args.sizes or chosen["sizes"], args.seconds or chosen["seconds"]
    args.codec_bytes, args.steps = chosen["codec_bytes"], chosen["steps"]
    return args


Say = Callable[[str], None]


def measure_grid(args: argparse.Namespace, mpi: Mpi, say: Say, start: int) -> list[Row]:
    """One start for each number of ranks: all operations, all backends in turns; results are checked in the first."""
    rows = []
    for ranks in args.ranks:
        say(f"grid, {ranks} ranks: start {start + 1} of {args.starts}")
        possible = [op for op in args.operations if ranks == 2 or not OPERATIONS[op].is_pair]
        rows += jobs.measure(mpi, ranks, [line for op in possible for line in _lines(args, op, start == 0)])
        if args.osu_dir:
            say(f"OSU micro-benchmarks, {ranks} ranks")
            rows += osu_binaries.run(mpi, args.osu_dir, ranks, args.operations, max(options.size_list(args.sizes)))
    return rows


def _lines(args: argparse.Namespace, op: str, check: bool) -> list[list[str]]:
    """Return the command lines of an operation; those of bw and bibw without what takes seconds: see WINDOW_BYTES."""
    words = [op, "--backend", BACKENDS, "-x", "20", *_shared(args), *MANY]
    checked = ["-c", "-u", "0"] if check else []
    sizes = options.size_list(args.sizes)
    if OPERATIONS[op].kind == "barrier":
        return [words]
    if OPERATIONS[op].kind != "bandwidth":
        return [[*words, "--sizes", args.sizes, *checked]]
    small = [size for size in sizes if size <= CHECKED_WINDOW_BYTES]
    large = [size for size in sizes if CHECKED_WINDOW_BYTES < size <= WINDOW_BYTES]
    lines = [[*words, *checked, "--sizes", ",".join(map(str, small))], [*words, "--sizes", ",".join(map(str, large))]]
    return [line for line in lines if line[-1]]


def measure_codecs(args: argparse.Namespace, mpi: Mpi, say: Say, start: int) -> list[Row]:
    """A broadcast of gradients between two ranks that are declared to be on two nodes."""
    say(f"codecs: start {start + 1} of {args.starts}")
    words = ["bcast", "--data", "gradients", "--sizes", args.codec_bytes, "-x", "3", *_shared(args)]
    words += ["-c", "-u", "1"] if start == 0 else []
    lossy = ["--codec", "qpk,qhuff", "--error-bound", "relative:0.01"]
    return jobs.measure(mpi, 2, [[*words, "--codec", CODECS], [*words, *lossy]], {"ACCDP_TOPOLOGY": "2x1"})


def measure_train(args: argparse.Namespace, mpi: Mpi, say: Say, start: int) -> list[Row]:
    """The examples' models with each backend; once, as a loss takes a whole training to reach."""
    rows: list[Row] = []
    for model, backend in itertools.product(TRAIN_MODELS, TRAIN_BACKENDS) if start == 0 else ():
        say(f"train: {model}, {backend}")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "rows.jsonl")
            script = [str(ROOT / "bench" / "train.py"), "--model", model, "--backend", backend]
            jobs.run(mpi, 2, [*script, "--steps", args.steps, "--json", str(out)])
            rows += [row | {"starts": 1} for row in jobs.read(out)]
    return rows


def _shared(args: argparse.Namespace) -> list[str]:
    """Return the words of all lines: each start has its share of the time, and of the iterations that must be."""
    seconds, least = args.seconds / args.starts, -(-LEAST_ITERATIONS // args.starts)
    return ["--seconds", f"{seconds:g}", "--at-least", str(least), "-M", "2G", "-T", "mpi_float"]


def repeat(args: argparse.Namespace, mpi: Mpi, say: Say) -> list[Row]:
    """Make N + 1 runs of the same thing, each of several starts, and compare each run with the one before."""
    pairs: dict[tuple, list[bool]] = {}
    last: dict[tuple, Row] = {}
    plan = [[op, "--backend", "accdp", "--sizes", args.sizes, *_shared(args), *MANY] for op in args.operations]
    for turn in range(args.repeat + 1):
        say(f"repeat: run {turn + 1} of {args.repeat + 1}")
        run = [row for _ in range(args.starts) for row in jobs.measure(mpi, 2, plan)]
        for key, row in starts.merged(run).items():
            if key in last:
                pairs.setdefault(key, []).append(agree(row, last[key]))
            last[key] = row
    return [last[key] | {"pairs": len(found), "pairs_agree": sum(found)} for key, found in pairs.items()]


def agree(one: Row, other: Row) -> bool:
    """Whether the medians of two runs differ by no more than the spread that one of them prints: the range from the
    10th to the 90th percentile of its iterations."""
    return abs(one["median_us"] - other["median_us"]) <= max(row["p90_us"] - row["p10_us"] for row in (one, other))


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Draw all figures that there are rows for; return where they are."""
    grid = [row for row in rows if row["part"] == "grid"]
    made = []
    collectives = [row for row in grid if OPERATIONS[row["op"]].kind == "collective"]
    plans = (
        ("bench_latency.png", figures.latency, [row for row in collectives if row["bytes"]]),
        ("bench_bandwidth.png", figures.bandwidth, [row for row in grid if row["bytes"]]),
        ("bench_ratio.png", figures.ratios, collectives),
        ("bench_codecs.png", figures.codecs, [row for row in rows if row["part"] == "codecs"]),
    )
    for name, figure, wanted in plans:
        if wanted:
            figure(wanted, folder / name)
            made.append(folder / name)
    return made


def main() -> int:
    args = arguments()
    console = Console(stderr=True, highlight=False)
    try:
        kept = jobs.read(args.out) if args.out.exists() else []
        if not args.draw_only:
            kept = _measure(args, kept, lambda text: console.print(text))
        if not kept:
            raise JobFailed(f"{args.out} has no rows: run without --draw-only")
        for path in [*draw(kept, args.page.parent), report_page.write(kept, args.page)]:
            print(path)
        for line in report_page.repeat_lines(kept) if args.repeat else ():
            print(line)
    except (JobFailed, Refused, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(args: argparse.Namespace, kept: list[Row], say: Say) -> list[Row]:
    """Measure what is asked for and write the rows, in place of what was there of the same parts; of the grid, where
    not all of it was asked for, of the same points.

    Start by start everything is measured in turn, so that what changes with time is in the spread, too. Nothing is
    replaced before all has been measured.
    """
    mpi = Mpi()
    found: dict[str, list[Row]] = {}
    if args.repeat:
        found["repeat"] = repeat(args, mpi, say)
    else:
        measures = {"grid": measure_grid, "codecs": measure_codecs, "train": measure_train}
        several: dict[str, list[Row]] = {part: [] for part in args.parts}
        for start in range(args.starts):
            for part, rows in several.items():
                rows += measures[part](args, mpi, say, start)
        found = {part: list(starts.merged(rows).values()) for part, rows in several.items()}
    points = {starts.key_of(row) for row in found.get("grid", [])} if args.is_piece else set()
    rows = [
        row
        for row in kept
        if row["part"] not in found or (args.is_piece and row["part"] == "grid" and starts.key_of(row) not in points)
    ]
    rows += [row | {"part": part} for part, of_part in found.items() for row in of_part]
    replace_json(args.out, rows)
    return rows


if __name__ == "__main__":
    sys.exit(main())
