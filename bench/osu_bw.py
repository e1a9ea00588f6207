"""Bandwidth from one rank to another, like OMB's osu_bw: mpiexec -n 2 python bench/osu_bw.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_bw.py", operation="bw"))
