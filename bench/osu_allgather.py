"""Latency of allgather, like OMB's osu_allgather: mpiexec -n 4 python bench/osu_allgather.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_allgather.py", operation="allgather"))
