"""Latency of reduce-scatter, like OMB's osu_reduce_scatter: mpiexec -n 4 python bench/osu_reduce_scatter.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_reduce_scatter.py", operation="reduce_scatter"))
