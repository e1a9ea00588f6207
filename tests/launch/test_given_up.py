"""What `accdp run` does not wait for without end: guards that say nothing, launchers that stay, or leave too early."""

import os
import signal
import sys

import jobs

# A job of one rank, by a launcher of the test's, whose limits are short.
JOB = """
import os, signal, sys
from accdp_comm.launch.job import Job
from accdp_comm.launch.programs import Program

limits = sys.modules[Job.__module__]
limits.GUARD_S, limits._LAUNCHER_END_S, limits._AFTER_LAUNCHER_S, limits._AFTER_LAUNCHER_AT_MOST_S = 5.0, 0.5, 0.5, 1.0
launcher, rank, *given_up = sys.argv[1:]
order = {
    "argv": [sys.executable, "-c", f"import os, signal, time\\njob = {os.getpid()}\\n" + rank],
    "env": {}, "cpus": [], "terminate_client": [],
}
program = Program("torchrun", [sys.executable, "-c", "import os, signal, subprocess, sys, time\\n" + launcher], "R")
code = Job(program, 1, [], lambda ranks: [order], {"o": False, "e": False}, 0.5).run()
for name in given_up:
    os.kill(int(open(name).read()), signal.SIGKILL)
sys.exit(code)
"""
START = "guard = subprocess.Popen(sys.argv[1:], env={**os.environ, 'R': '0'})\n"


def run(launcher: str, rank: str, *given_up: str) -> jobs.Result:
    return jobs.run([sys.executable, "-c", JOB, launcher, rank, *given_up])


def test_a_guard_that_is_stopped(tmp_path):
    guard = str(tmp_path / "guard")
    stops = f"open({guard!r}, 'w').write(str(os.getppid()))\nos.kill(os.getppid(), signal.SIGSTOP)\n"
    result = run(START + "guard.wait()", stops + "os.kill(job, signal.SIGINT)\ntime.sleep(60)", guard)
    assert result.returncode == 128 + signal.SIGINT and result.seconds < 25, str(result)


def test_a_launcher_that_stays_and_does_not_hear():
    result = run("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + START + "guard.wait()\ntime.sleep(60)", "pass")
    assert result.returncode == 0 and result.seconds < 20, str(result)
    assert result.stderr == "accdp run: torchrun did not end after its ranks, and was ended\n", str(result)


def test_a_launcher_that_leaves_its_ranks(tmp_path):
    """That it says nothing is wrong does not make it so."""
    begun = str(tmp_path / "begun")
    leaves = f"while not os.path.exists({begun!r}):\n    time.sleep(0.05)\nos._exit(0)"
    result = run(START + leaves, f"print(os.getpid(), flush=True)\nopen({begun!r}, 'w').close()\ntime.sleep(60)")
    assert result.returncode == 1 and result.seconds < 20, str(result)
    assert "torchrun ended" in result.stderr, str(result)
    assert not os.path.exists(f"/proc/{int(result.stdout)}"), str(result)


def test_a_launcher_that_starts_nothing():
    result = run("pass", "pass")
    assert result.returncode == 1, str(result)
    assert result.stderr == "accdp run: torchrun ended before all ranks had begun\n", str(result)
