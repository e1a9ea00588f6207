"""`python -m accdp_comm.bench OP ...`: the same as `accdp bench OP ...`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m accdp_comm.bench"))
