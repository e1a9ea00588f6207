"""Latency of all-to-all, like OMB's osu_alltoall: mpiexec -n 4 python bench/osu_alltoall.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_alltoall.py", operation="alltoall"))
