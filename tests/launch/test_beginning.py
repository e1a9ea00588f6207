"""What comes between the first rank's call and the order to start: signals, and ranks that are killed."""

import signal
import sys

import jobs
import pytest

# A launcher that starts its ranks one by one, and lets the test do something while one has called.
JOB = """
import os, signal, subprocess, sys, threading, time
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


def begin(action: str, *others: tuple[str, str]) -> jobs.Result:
    """Run it, with other words in it."""
    text = JOB.replace("ACTION", action)
    for found, put in others:
        assert text.count(found) == 1
        text = text.replace(found, put)
    return jobs.run([sys.executable, "-c", text])


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_comes_too_early_is_told_and_ends_nothing(number):
    result = begin(f"os.kill(os.getpid(), {int(number)})")
    assert result.returncode == 0 and result.stdout == "it began\n" * 2, str(result)
    assert result.stderr == f"accdp run: {number.name} came before the ranks had begun, and is not passed on\n"


def test_no_script_begins_beside_a_rank_that_is_lost():
    """Its guard was killed while others were still to come."""
    result = begin("from accdp_comm import procfs; os.kill([*procfs.descendants([os.getpid()])][-1], 9)")
    assert result.returncode == 128 + signal.SIGKILL and result.seconds < 15, str(result)
    assert result.stdout == "" and "rank 0 (host" in result.stderr, str(result)


def test_ctrl_c_while_ranks_are_still_to_come():
    """Those that have called are let go at once."""
    result = begin("os.kill(os.getpid(), signal.SIGINT); time.sleep(0.3)")
    assert result.returncode == 128 + signal.SIGINT and result.stdout == "" and result.seconds < 15, str(result)


def test_a_launcher_that_starts_a_rank_twice():
    result = begin("pass", ('"R": "1"', '"R": "0"'))
    assert result.returncode == 1 and result.stdout == "" and result.seconds < 20, str(result)
    assert "the launcher started rank 0 twice" in result.stderr, str(result)


def test_a_rank_that_is_never_started():
    started = 'second = subprocess.Popen(sys.argv[1:], env={**os.environ, "R": "1"})'
    limit = ("job = Job(", "sys.modules[Job.__module__]._START_LIMIT_S = 1.0\njob = Job(")
    result = begin("pass", (started, "second = first"), limit)
    assert result.returncode == 1 and result.stdout == "" and result.seconds < 20, str(result)
    assert "rank 1 did not start within 1 s of the first rank" in result.stderr, str(result)
