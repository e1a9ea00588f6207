"""MPI, which a script does not see being initialised, leaves the script's signal handlers alone."""

import signal
import sys

import jobs
import pytest

SCRIPT = """
import os, signal
came = []
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, frame: came.append(signal.Signals(number).name))
from accdp_comm import Communicator
with Communicator() as comm:
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        os.kill(os.getpid(), number)
    comm.barrier()
    print(*came, os.environ.get("UCX_DEBUG_SIGNO"), flush=True)
"""


@pytest.mark.parametrize("given", [None, "0"])
def test_handlers_of_the_script_are_called(given):
    result = jobs.run(
        [*jobs.mpiexec_command(2), sys.executable, "-c", SCRIPT], env={"UCX_DEBUG_SIGNO": given} if given else {}
    )
    assert result.returncode == 0 and not result.stderr, str(result)
    assert result.stdout.splitlines() == [f"SIGHUP SIGUSR1 SIGUSR2 SIGTERM {given}"] * 2, str(result)


def test_a_hang_up_ends_a_rank_that_has_no_handler():
    script = "import os, signal; signal.signal(1, signal.SIG_DFL)  # under nohup it is ignored\n"
    script += "from accdp_comm import Communicator; Communicator(); os.kill(os.getpid(), 1)"
    command = [*jobs.mpiexec_command(1), sys.executable, "-c", script]
    result = jobs.run(command)
    if jobs.is_intel_mpi(command[0]):  # whose launcher tells the signal in words only
        assert result.returncode == 255 and "KILLED BY SIGNAL: 1" in result.stdout, str(result)
    else:
        assert result.returncode in (128 + signal.SIGHUP, signal.SIGHUP), str(result)
