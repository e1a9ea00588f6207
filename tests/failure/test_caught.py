"""Ranks under mpiexec that catch the failure of a group and go on without it: each ends when it has done its work.

MPI is not finalised after a failure, and mpiexec ends all ranks when one leaves MPI otherwise.
"""

import sys

import jobs
import pytest

SCRIPT = """
import sys, time
import numpy as np
import accdp_comm
from accdp_comm import mpi_world
mpi_world._AFTER_FAILURE_SECONDS = 2.0 if "is stuck" in sys.argv else 30.0
world = accdp_comm.Communicator()
what = sys.argv[1 + world.rank]
pair = world.split(0 if world.rank < 2 else None)  # fails; others know nothing of it
try:
    if world.rank == 0:
        with pair:
            raise ValueError
    if world.rank == 1:
        pair.allreduce(np.ones(1))
except (ValueError, accdp_comm.Error) as error:
    print("caught", type(error).__name__)
if what == "saves":
    time.sleep(1)
    print("saved")
elif what == "exits with 3":
    sys.exit(3)
elif what == "raises":
    time.sleep(0.5)
    raise RuntimeError("at work")
elif what == "is stuck":
    time.sleep(600)
"""


def play(*what: str) -> jobs.Result:
    command = [*jobs.mpiexec_command(len(what)), sys.executable, "-c", SCRIPT, *what]
    return jobs.run(command, env={"ACCDP_TOPOLOGY": f"{len(what)}x1"}, timeout=90)


@pytest.mark.parametrize(
    "what",
    [("ends", "saves"), ("saves", "ends"), ("ends", "ends", "saves"), ("saves", "ends", "ends")],
    ids=" / ".join,
)
def test_nobody_is_ended_at_its_work(what):
    result = play(*what)
    assert result.stdout.count("caught") == 2 and result.stdout.count("saved") == 1, str(result)
    assert result.returncode == 0, str(result)


def test_the_job_has_the_status_of_its_ranks():
    result = play("exits with 3", "saves")
    assert result.returncode == 3 and "saved" in result.stdout, str(result)


def test_a_rank_that_fails_then_ends_the_job():
    result = play("ends", "raises", "ends")
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "RuntimeError: at work" in result.stderr, str(result)


@pytest.mark.parametrize("what", [("ends", "is stuck"), ("ends", "ends", "is stuck")], ids=" / ".join)
def test_a_rank_that_is_stuck_is_not_waited_for_without_end(what):
    result = play(*what)
    assert result.seconds < 60 and "leaves MPI after a failure; others have not come" in result.stderr, str(result)


TESTS = """
import time
from pathlib import Path
import numpy as np
{begin}

def test_of_all():
    assert {sum_of_ones} == size

def test_that_fails_on_the_last_rank():
    assert rank != size - 1
    time.sleep(2)
    Path(__file__).with_name(f"finished {{rank}}").touch()
"""


GROUPS = {
    "communicator": (
        "import accdp_comm\nworld = accdp_comm.Communicator()\nrank, size = world.rank, world.size",
        "world.allreduce(np.ones(1))[0]",
    ),
    "torch": (
        "import torch, torch.distributed as dist, torch.distributed.nn\ndist.init_process_group('accdp')\n"
        "rank, size = dist.get_rank(), dist.get_world_size()",
        "dist.nn.functional.all_reduce(torch.ones(1)).item()",
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_test_that_fails_on_one_rank_ends_no_other(tmp_path, group):
    """Pytest catches it, and the rank's process ends by sys.exit(1), not by the exception."""
    tests = tmp_path / "test_theirs.py"
    begin, sum_of_ones = GROUPS[group]
    tests.write_text(TESTS.format(begin=begin, sum_of_ones=sum_of_ones))
    plain = ["--color=no", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]  # Open MPI gives ranks a terminal
    pytest_command = [sys.executable, "-m", "pytest", *plain, str(tests)]
    result = jobs.run([*jobs.mpiexec_command(3), *pytest_command], timeout=110)
    assert result.returncode == 1 and result.stdout.count("1 failed, 1 passed") == 1, str(result)
    assert {path.name for path in tmp_path.glob("finished *")} == {"finished 0", "finished 1"}, str(result)
    assert "2 passed" in result.stdout, str(result)
