"""Latency of reduce, like OMB's osu_reduce: mpiexec -n 4 python bench/osu_reduce.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_reduce.py", operation="reduce"))
