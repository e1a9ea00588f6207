"""Latency of gather, like OMB's osu_gather: mpiexec -n 4 python bench/osu_gather.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_gather.py", operation="gather"))
