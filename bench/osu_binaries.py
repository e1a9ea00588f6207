"""The OSU micro-benchmarks' own binaries (--osu-dir): run those that are there, and make rows of what they print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jobs_of_bench import JobFailed, Mpi, Row

from accdp_comm.bench import omb
from accdp_comm.bench.operations import OPERATIONS

_LIMIT_S = 1800.0
_WINDOW = 64  # messages per iteration of their osu_bw and osu_bibw, unless told otherwise


def find(folder: Path) -> dict[str, Path]:
    """Return the binaries below a folder, by operation.

    Raises:
        JobFailed: There is none.
    """
    found = {}
    for path in sorted(folder.rglob("osu_*")):
        name = path.name.removeprefix("osu_")
        if name in OPERATIONS and name not in found and path.is_file() and os.access(path, os.X_OK):
            found[name] = path
    if not found:
        raise JobFailed(f"--osu-dir {folder}: no osu_bcast, osu_allreduce, ... below it that can be run")
    return found


def run(mpi: Mpi, folder: Path, ranks: int, operations: Sequence[str], largest: int) -> list[Row]:
    """Run the binaries for these operations and return their rows, under the backend osu.

    Raises:
        JobFailed: None is there, one fails, or prints what is not OMB's.
    """
    rows = []
    for op, path in find(folder).items():
        if op not in operations or (OPERATIONS[op].is_pair and ranks != 2):
            continue
        words = [] if op == "barrier" else ["-m", f":{largest}"]
        command = [*mpi.launcher(ranks), str(path), *words, *([] if OPERATIONS[op].is_pair else ["-f"])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise JobFailed(f"{path.name}: not finished after {_LIMIT_S:.0f} s") from error
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise JobFailed(f"{' '.join(command)}: {last[0]}")
        made = rows_of(done.stdout, ranks)
        if not made:
            raise JobFailed(f"{path}: printed no rows of the OSU micro-benchmarks")
        rows += made
    return rows


def rows_of(text: str, ranks: int) -> list[Row]:
    """Return rows of what the binaries printed.

    They say averages over all iterations, not medians: median_us, p10_us and p90_us are all the average.
    """
    rows = []
    for block in omb.parse(text):
        for line in block.rows:
            size = int(line.get("Size", 0))
            row: Row = {"op": block.operation, "backend": "osu", "bytes": size, "ranks": ranks, "device": block.device}
            if "Bandwidth (MB/s)" in line:
                moved = OPERATIONS[block.operation].window_bytes(size, _WINDOW)
                row |= {"mbps": line["Bandwidth (MB/s)"], "window": _WINDOW}
                microseconds = moved / line["Bandwidth (MB/s)"]
            else:
                microseconds = line.get("Avg Latency(us)", line.get("Latency (us)"))
                row |= {"min_us": line.get("Min Latency(us)"), "max_us": line.get("Max Latency(us)")}
            row |= dict.fromkeys(("avg_us", "median_us", "p10_us", "p90_us"), microseconds)
            row |= {"quantiles_us": [microseconds], "starts": 1}
            row |= {
                "datatype": (block.datatype or "MPI_CHAR").lower(),
                "versions": {"osu": block.version},
                "nodes": None,
            }
            rows.append(row)
    return rows
