"""A guard that is killed, as by an operator or for want of memory: nothing of its rank stays. act() looks for that."""

import os
import shlex
import signal
import socket
import sys

import jobs
import pytest
from running import act
from test_mps import RANK as MPS_RANK
from test_mps import assert_clean

from accdp_comm import procfs

RANK = str(jobs.TESTS / "launch" / "rank.py")


def kill_guard(process, told):
    os.kill(told[0]["guard"], signal.SIGKILL)


def kill_guard_of_shell(process, told):
    os.kill(procfs.process(procfs.process(told[0]["pid"]).parent).parent, signal.SIGKILL)


def test_the_rank_ends():
    result = act(["run", "--grace", "1", "-n", "2", RANK, "stubborn"], 2, kill_guard, {})
    assert result.returncode == 128 + signal.SIGKILL, str(result)
    assert "lost its guard, which was killed, or whose connection broke" in result.stderr, str(result)


@pytest.mark.parametrize("behaviour", ["stubborn", "plain"])
def test_what_the_rank_started_ends(behaviour):
    """The kernel tells the rank alone, a shell, which ends at once."""
    program = shlex.join([sys.executable, RANK, behaviour])
    result = act(["run", "--grace", "1", "-n", "1", "--", "sh", "-c", f"{program}; :"], 1, kill_guard_of_shell, {})
    assert result.returncode == 128 + signal.SIGKILL, str(result)


@pytest.mark.parametrize("behaviour", ["stubborn", "plain"])
@pytest.mark.parametrize("is_named", [False, True])
def test_clients_of_mps_are_terminated_first(machine, tmp_path, is_named, behaviour):
    """Where the host is named MPS is not this process's."""
    program = shlex.join([sys.executable, MPS_RANK, behaviour])
    words = ["run", "--grace", "1", "--gpus", "0", "-n", "1", "--mps", "on"]
    if is_named:
        (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=1\n")
        words += ["--hosts", str(tmp_path / "hosts")]
    words += ["--", "sh", "-c", f"{program}; :"]
    result = act(words, 1, kill_guard_of_shell, machine.env)
    assert result.returncode == 128 + signal.SIGKILL, str(result)
    # By two of us where the host is named, which does no harm.
    assert len({line for line in machine.journal() if line.startswith("terminate_client")}) == 1, machine.journal()
    assert_clean(machine, 1)
