"""What comes between the first rank's call and the order to start: signals, and ranks that are killed."""

import signal
import sys

import jobs
import pytest

# A launcher that starts its ranks one by one, and lets the test do something while one has called.
JOB = """
import os, subprocess, sys, threading
from accdp_comm.launch.job import Job
from accdp_comm.launch.programs import Program

LAUNCHER = '''
import os, signal, subprocess, sys
first = subprocess.Popen(sys.argv[1:], env={**os.environ, "R": "0"})
sys.stdin.readline()
second = subprocess.Popen(sys.argv[1:], env={**os.environ, "R": "1"})
sys.exit(max(first.wait() & 255, second.wait() & 255))
'''
gate, gate_write = os.pipe()
os.dup2(gate, 0)
order = {"argv": ["sh", "-c", "echo it began"], "env": {}, "cpus": [], "terminate_client": []}
job = Job(
    Program("torchrun", [sys.executable, "-c", LAUNCHER], "R"), 2, [], lambda ranks: [order] * 2,
    {"o": False, "e": False}, 1.0,
)
hello = job._hello

def called(connection, message):
    hello(connection, message)
    if message["rank"] == 0:
        ACTION
    os.write(gate_write, b"\\n")

job._hello = called
sys.exit(job.run())
"""


def begin(action: str) -> jobs.Result:
    return jobs.run([sys.executable, "-c", JOB.replace("ACTION", action)])


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_comes_too_early_is_told_and_ends_nothing(number):
    result = begin(f"os.kill(os.getpid(), {int(number)})")
    assert result.returncode == 0 and result.stdout == "it began\n" * 2, str(result)
    assert result.stderr == f"accdp run: {number.name} came before the ranks had begun, and is not passed on\n"


def test_no_script_begins_beside_a_rank_that_is_lost():
    """Its guard was killed while others were still to come."""
    result = begin("from accdp_comm import procfs; os.kill([*procfs.descendants([os.getpid()])][-1], 9)")
    assert result.returncode == 128 + signal.SIGKILL, str(result)
    assert result.stdout == "" and "rank 0 (host" in result.stderr, str(result)
