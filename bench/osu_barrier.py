"""Latency of barrier, like OMB's osu_barrier: mpiexec -n 4 python bench/osu_barrier.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_barrier.py", operation="barrier"))
