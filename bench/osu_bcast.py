"""Latency of broadcast, like OMB's osu_bcast: mpiexec -n 4 python bench/osu_bcast.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_bcast.py", operation="bcast"))
