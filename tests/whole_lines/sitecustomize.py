"""Python imports this as it starts: each line of the output is written when it ends, and in one piece.

The ranks of a job often share a pipe or file. Unbuffered, print("a", 1) would be four writes, and those of other ranks
would come between them.
"""

import sys

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(line_buffering=True, write_through=False)  # the latter: also with python -u
