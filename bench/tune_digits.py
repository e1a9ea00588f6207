"""What searching saves: `accdp tune` on examples/train_digits.py against a sweep over all points.

    python bench/tune_digits.py --json bench/results/tune_digits.jsonl

The sweep is the same command with --exhaustive: each point is started, and measured to the end. Then the best point of
each is measured again, in turns, and the ratio is that of the medians. Aims: at least 0.95 of the sweep's speed in at
most half of its time; the exit status is 1 where they are missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "train_digits.py"
SPEED, TIME = 0.95, 0.5


def tune(folder: Path, seconds: float, *options: str) -> tuple[list[dict], float]:
    """Run `accdp tune`, showing what it shows; return its outcomes and how long it took."""
    command = [sys.executable, "-m", "accdp_comm", "tune", "--output", str(folder), "--measure", str(seconds), *options]
    began = time.monotonic()
    subprocess.run([*command, "--", str(DIGITS), "--epochs", "1000000", "--quiet"], check=True)
    took = time.monotonic() - began
    lines = (folder / "trials.jsonl").read_text().splitlines()[1:]
    return [*{json.dumps(row["point"]): row for row in map(json.loads, lines)}.values()], took  # each point's last


def best_of(outcomes: list[dict]) -> dict:
    return max((one for one in outcomes if one["status"] == "ok"), key=lambda one: one["samples_per_s"])


def space(ranks: str, batches: str, workers: str) -> list[str]:
    return ["--ranks", ranks, "--global-batch", batches, "--workers", workers]


def only(point: dict) -> list[str]:
    """The options under which a point is the only one."""
    return space(str(point["ranks"]), str(point["ranks"] * point["batch_size"]), str(point["workers"]))


def compare(folder: Path, seconds: float, points: list[dict], rounds: int) -> list[list[float]]:
    """Samples per second of each point in each round."""
    rates: list[list[float]] = [[] for _ in points]
    for turn in range(rounds):
        for index, point in sorted(enumerate(points), reverse=turn % 2 == 1, key=lambda pair: pair[0]):
            outcomes, _ = tune(folder / f"{turn}-{index}", seconds, "--exhaustive", *only(point))
            rates[index].append(best_of(outcomes)["samples_per_s"])
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks")
    parser.add_argument("--global-batch", default="64,256", help="batch sizes of all ranks together")
    parser.add_argument("--workers", default="0,1,2", help="loader processes of each rank")
    parser.add_argument("--measure", type=float, default=9.0, help="seconds that a good point is measured")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison at the end")
    parser.add_argument("--json", type=Path, help="append the result to this file, as one line")
    args = parser.parse_args()
    axes = space(args.ranks, args.global_batch, args.workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found, tune_s = tune(folder / "tune", args.measure, *axes)
        swept, sweep_s = tune(folder / "sweep", args.measure, "--exhaustive", *axes)
        ours, theirs = best_of(found)["point"], best_of(swept)["point"]
        # One point may win both; its speed is the same as its own.
        rates = [[1.0], [1.0]] if ours == theirs else compare(folder, args.measure, [ours, theirs], args.rounds)
    speed = statistics.median(rates[0]) / statistics.median(rates[1])
    line = {
        "bench": "tune_digits",
        "machine": {"cores": len(os.sched_getaffinity(0)), "processor": platform.machine(), "load": os.getloadavg()},
        "axes": {"ranks": args.ranks, "global_batch": args.global_batch, "workers": args.workers},
        "measure_s": args.measure,
        "tune_s": round(tune_s, 1),
        "sweep_s": round(sweep_s, 1),
        "tune_best": ours,
        "sweep_best": theirs,
        "speed_ratio": round(speed, 3),
        "rates_again": rates,
        "tune": found,
        "sweep": swept,
    }
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
    met = speed >= SPEED and tune_s <= TIME * sweep_s
    print(f"sweep: {sweep_s:.0f} s, best {theirs}\ntune:  {tune_s:.0f} s, best {ours}")
    print(
        f"time {tune_s / sweep_s:.2f} of the sweep's (at most {TIME}), speed {speed:.3f} (at least {SPEED}): ", end=""
    )
    print("met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # it has said why
