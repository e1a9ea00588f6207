"""Latency of scatter, like OMB's osu_scatter: mpiexec -n 4 python bench/osu_scatter.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_scatter.py", operation="scatter"))
