"""What `accdp run` costs on top of the plain mpiexec: both start `true` on n ranks, in turn.

    python bench/launch_overhead.py --ranks 4 --samples 21 [--json FILE]

One JSON line per sample, then a table: median, 10 % and 90 % of each, and the difference of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from accdp_comm import mpi_world
from accdp_comm.launch import programs
from accdp_comm.readers import at_least


def seconds(command: list[str]) -> float:
    """Return how long a command takes.

    Raises:
        CalledProcessError: It failed.
    """
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=at_least(1), default=4)
    parser.add_argument("--samples", type=at_least(1), default=21)
    parser.add_argument("--json", help="append the samples to this file instead of printing them")
    options = parser.parse_args()

    family = mpi_world.load().abi()
    plain = programs.mpiexec(programs.find_mpiexec(family), family, options.ranks, is_root=os.geteuid() == 0).command
    accdp = [sys.executable, "-m", "accdp_comm", "run", "-n", str(options.ranks)]
    ways = {"mpiexec": [*plain, "true"], "accdp run": [*accdp, "true"]}
    for command in ways.values():
        seconds(command)  # files come from disk once
    taken: dict[str, list[float]] = {name: [] for name in ways}
    lines = []
    for _ in range(options.samples):
        for name, command in ways.items():
            taken[name].append(seconds(command))
            load = os.getloadavg()[0]
            lines.append(json.dumps({"way": name, "ranks": options.ranks, "seconds": taken[name][-1], "load": load}))
    if options.json:
        with open(options.json, "a") as file:
            file.write("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))
    print(f"{'':<12}{'median':>9}{'10 %':>9}{'90 %':>9}   seconds, {options.ranks} ranks, {options.samples} samples")
    for name, values in taken.items():
        ordered = sorted(values)
        low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
        print(f"{name:<12}{statistics.median(values):>9.3f}{low:>9.3f}{high:>9.3f}")
    difference = statistics.median(taken["accdp run"]) - statistics.median(taken["mpiexec"])
    print(f"{'overhead':<12}{difference:>9.3f}   (to be below 0.5)")


if __name__ == "__main__":
    main()
