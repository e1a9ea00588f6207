"""Latency of allreduce, like OMB's osu_allreduce: mpiexec -n 4 python bench/osu_allreduce.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_allreduce.py", operation="allreduce"))
