"""`python -m accdp_comm` is the command `accdp`."""

import sys

from .cli import main

sys.exit(main())
