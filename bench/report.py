"""Measure a grid of benchmarks, compare with peers, draw, and write docs/performance.md.

    python bench/report.py             the quick grid, some minutes     python bench/report.py --full     an hour or so
    python bench/report.py --only codecs,train                          parts; the rows of the others stay
    python bench/report.py --repeat 20                                  is a run's spread what runs differ by?
    python bench/report.py --osu-dir /opt/omb/libexec                   the OSU micro-benchmarks' binaries as well
    python bench/report.py --draw-only                                  figures and page from the rows that are there

Parts: grid (all operations, accdp beside mpi4py, accdp-torch beside gloo), codecs (a broadcast with each codec between
two declared nodes), train (bench/train.py). Rows go to bench/results/osu.jsonl, figures to docs/bench_*.png, and tables
between the markers of docs/performance.md. Only what accdp's own MPI launcher can start on this host is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import figures
import jobs_of_bench as jobs
import osu_binaries
import report_page
from jobs_of_bench import JobFailed, Mpi, Row
from rich.console import Console

from accdp_comm.bench.operations import OPERATIONS, Refused
from accdp_comm.bench.options import size_list
from accdp_comm.bench.record import append_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PARTS = ("grid", "codecs", "train")
BACKENDS = "accdp,mpi,accdp-torch,gloo"
CODECS = "none,auto,fpk,zhuff,zstd"
TRAIN_MODELS, TRAIN_BACKENDS = ("digits", "char_lm"), ("accdp", "gloo")
QUICK = {"sizes": "4,1k,64k,1M,16M", "seconds": "1", "ranks": (2, 4), "codec_bytes": "4M", "steps": "60"}
FULL = {
    "sizes": "4,64,1k,4k,16k,64k,256k,1M,4M,16M,64M,256M",
    "seconds": "6",
    "ranks": (2, 4),
    "codec_bytes": "64M",
    "steps": "400",
}
# The time given for a size decides: OMB's thousand calls of a microsecond are too short a look at a machine.
MANY = ("-i", "200000")
REPEATED = {"ops": ("bcast", "allreduce"), "sizes": "4,16k,1M", "seconds": "1"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more sizes and iterations")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma separated")
    parser.add_argument("--ranks", help="numbers of ranks, comma separated (2,4)")
    parser.add_argument("--ops", help="operations of the grid, comma separated (all)")
    parser.add_argument("--sizes", type=_checked_sizes, help="of the grid, bytes, comma separated, with k, M, G")
    parser.add_argument("--seconds", help="for each size")
    parser.add_argument("--repeat", type=int, metavar="N", help="compare N pairs of runs, measure nothing else")
    parser.add_argument("--osu-dir", type=Path, metavar="DIR", help="run the OSU binaries below it, too")
    parser.add_argument("--draw-only", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "osu.jsonl", help="rows")
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs" / "performance.md", help="its generated part is written"
    )
    args = parser.parse_args()
    chosen = FULL if args.full else QUICK
    args.parts = args.only.split(",")
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"argument --only: {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    args.operations = args.ops.split(",") if args.ops else list(OPERATIONS)
    if unknown := set(args.operations) - set(OPERATIONS):
        parser.error(f"argument --ops: {', '.join(sorted(unknown))}: expected some of {', '.join(OPERATIONS)}")
    args.ranks = [int(word) for word in args.ranks.split(",")] if args.ranks else list(chosen["ranks"])
    args.sizes, args.seconds = args.sizes or chosen["sizes"], args.seconds or chosen["seconds"]
    args.codec_bytes, args.steps = chosen["codec_bytes"], chosen["steps"]
    if args.repeat is not None and args.repeat < 1:
        parser.error(f"argument --repeat: expected 1 or more, got {args.repeat}")
    return args


def _checked_sizes(text: str) -> str:
    size_list(text)
    return text


Say = Callable[[str], None]


def measure_grid(args: argparse.Namespace, mpi: Mpi, say: Say) -> Iterator[Row]:
    """All operations, all backends of a number of ranks in turns."""
    for ranks in args.ranks:
        for op in args.operations:
            row = OPERATIONS[op]
            if row.is_pair and ranks != 2:
                continue
            say(f"grid: {op}, {ranks} ranks")
            words = ["--backend", BACKENDS, "--seconds", args.seconds, "-x", "20", "-M", "2G"]
            words += ["-T", "mpi_float", *MANY]
            if row.kind != "barrier":
                words += ["--sizes", args.sizes, "-c", "-u", "0"]  # a window of 16 MiB messages takes a second
            yield from jobs.measure(mpi, ranks, op, words)
        if args.osu_dir:
            say(f"OSU micro-benchmarks, {ranks} ranks")
            largest = max(size_list(args.sizes))
            yield from osu_binaries.run(mpi, args.osu_dir, ranks, args.operations, largest)


def measure_codecs(args: argparse.Namespace, mpi: Mpi, say: Say) -> Iterator[Row]:
    """A broadcast of gradients between two ranks that are declared to be on two nodes."""
    words = [
        "--data",
        "gradients",
        "--sizes",
        args.codec_bytes,
        "--seconds",
        args.seconds,
        "-x",
        "3",
        "-M",
        "2G",
        "-c",
        "-u",
        "1",
    ]
    two_nodes = {"ACCDP_TOPOLOGY": "2x1"}
    say("codecs: lossless")
    yield from jobs.measure(mpi, 2, "bcast", [*words, "--codec", CODECS], two_nodes)
    say("codecs: within 0.01 standard deviations")
    yield from jobs.measure(
        mpi, 2, "bcast", [*words, "--codec", "qpk,qhuff", "--error-bound", "relative:0.01"], two_nodes
    )


def measure_train(args: argparse.Namespace, mpi: Mpi, say: Say) -> Iterator[Row]:
    """The examples' models with each backend."""
    for model in TRAIN_MODELS:
        for backend in TRAIN_BACKENDS:
            say(f"train: {model}, {backend}")
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder, "rows.jsonl")
                script = [str(ROOT / "bench" / "train.py"), "--model", model, "--backend", backend]
                jobs.run(mpi, 2, [*script, "--steps", args.steps, "--json", str(out)])
                yield from jobs.read(out)


def repeat(args: argparse.Namespace, mpi: Mpi, say: Say) -> list[Row]:
    """Run the same thing N + 1 times, and compare each run with the one before.

    Two runs agree where their medians differ by no more than the spread that one of them prints: the range from the
    10th to the 90th percentile of its iterations.
    """
    pairs: dict[tuple, list[bool]] = {}
    last: dict[tuple, Row] = {}
    for turn in range(args.repeat + 1):
        say(f"repeat: run {turn + 1} of {args.repeat + 1}")
        for op in REPEATED["ops"]:
            words = [
                "--backend",
                "accdp",
                "--sizes",
                REPEATED["sizes"],
                "--seconds",
                REPEATED["seconds"],
                "-T",
                "mpi_float",
                *MANY,
            ]
            for row in jobs.measure(mpi, 2, op, words):
                key = jobs.key_of(row)
                if key in last:
                    spread = max(r["p90_us"] - r["p10_us"] for r in (row, last[key]))
                    pairs.setdefault(key, []).append(abs(row["median_us"] - last[key]["median_us"]) <= spread)
                last[key] = row
    return [last[key] | {"pairs": len(found), "pairs_agree": sum(found)} for key, found in pairs.items()]


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Draw all figures that there are rows for; return where they are."""
    grid = list(jobs.merged(row for row in rows if row["part"] == "grid").values())
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
    """Measure what is asked for in place of what was there of the same parts; rows are written as they come."""
    mpi = Mpi()
    measures = {"grid": measure_grid, "codecs": measure_codecs, "train": measure_train}
    chosen = {"repeat": repeat} if args.repeat else {part: measures[part] for part in args.parts}
    rows = [row for row in kept if row["part"] not in chosen]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.unlink(missing_ok=True)
    append_json(str(args.out), rows)
    for part, measured in chosen.items():
        for row in measured(args, mpi, say):
            rows.append(row | {"part": part})
            append_json(str(args.out), rows[-1:])
    return rows


if __name__ == "__main__":
    sys.exit(main())
