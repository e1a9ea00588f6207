"""Latency of a message between two ranks, like OMB's osu_latency: mpiexec -n 2 python bench/osu_latency.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_latency.py", operation="latency"))
