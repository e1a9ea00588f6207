"""A process that a rank forked is no rank: it is told so, and the group does not notice its end."""

import sys
from pathlib import Path

import jobs
import pytest

CHILD = str(Path(__file__).with_name("fork_child.py"))


@pytest.mark.parametrize("kind", ["communicator", "torch"])
def test_a_forked_process_leaves_the_group_alone(kind):
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, CHILD, kind], timeout=60)
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == [0, 1], str(result)
