"""Measure the loops that reductions on host memory run: every datatype and operation, on one core.

    python bench/reduce_loops.py                                 a table, some seconds
    taskset -c 1 python bench/reduce_loops.py --page docs/design/0011-reduction-loops.md    also in that page

Gigabytes of result per second from two contributions of 64 KiB each, which a core's own caches hold; the median of 25
measurements.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import marked
import numpy as np
from rich.console import Console
from rich.table import Table

from accdp_comm import _core

OPS = ("sum", "avg", "prod", "min", "max", "band")
NBYTES, TURNS, TIMES = 64 << 10, 25, 20
BYTES = (0x3C, 0x3D)  # of which numbers of every datatype are neither denormal nor huge


def gigabytes_per_second(name: str, op: str) -> float | None:
    """Of the result; None where the operation means nothing for the datatype."""
    datatype = _core.Datatype.__members__[name]
    sources = [np.full(NBYTES, byte, np.uint8) for byte in BYTES]
    out = np.zeros(NBYTES, np.uint8)
    divisor = 2 if op == "avg" else 0
    seconds = []
    for _ in range(TURNS):
        began = perf_counter()
        try:
            _core.reduce(
                out.ctypes.data,
                [source.ctypes.data for source in sources],
                NBYTES // datatype.itemsize,
                datatype,
                getattr(_core.ReduceOp, op),
                divisor,
                TIMES,
            )
        except _core.UsageError:
            return None
        seconds.append((perf_counter() - began) / TIMES)
    return NBYTES / median(seconds) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--page", type=Path, help="whose table is written anew")
    args = parser.parse_args()
    cells = []
    for name in _core.Datatype.__members__:
        found = [gigabytes_per_second(name, op) for op in OPS]
        if any(found):
            cells.append([name, *("" if speed is None else f"{speed:.1f}" for speed in found)])
    table = Table("GB/s", *OPS, title=f"reduction loops, {_core.reduce_isa()}")
    for row in cells:
        table.add_row(*row)
    Console().print(table)
    if args.page:
        marked.write(args.page, "bench/reduce_loops.py", marked.table(["GB/s", *OPS], cells))


if __name__ == "__main__":
    main()
