"""deterministic=True: the same bits wherever the ranks are."""

import sys
from pathlib import Path

import jobs

CHILD = str(Path(__file__).with_name("placements_child.py"))
PLACEMENTS = ("1x8", "2x4", "4x2", "8x1", "0,1,0,2,1,0,2,2")


def test_the_same_bits_for_every_placement():
    command = [*jobs.mpiexec_command(8), sys.executable, CHILD, *PLACEMENTS]
    result = jobs.run(command, timeout=110)
    assert result.returncode == 0 and len(result.reports) == 1, str(result)
    found = result.reports[0]
    assert list(found) == list(PLACEMENTS) and len(set(found.values())) == 1, found
