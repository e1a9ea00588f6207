"""Bandwidth between two ranks in both directions, like OMB's osu_bibw: mpiexec -n 2 python bench/osu_bibw.py --help."""

import sys

from accdp_comm.bench.command import main

if __name__ == "__main__":
    sys.exit(main(prog="osu_bibw.py", operation="bibw"))
