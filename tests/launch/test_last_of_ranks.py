"""The last that a rank says, and the last that it leaves: the one arrives, the other ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest
from running import ACCDP, act

from accdp_comm import procfs

LINES = 200  # which pipes and sockets have room for even where these did not grow, and a pipe alone has not
TALKER = f"""
import os, pathlib, sys
for _ in range({LINES}):
    print("x" * 999)
sys.stdout.flush()
pathlib.Path(sys.argv[1]).write_text(f"{{os.getpid()}}\\n")
"""


def test_a_signal_after_a_rank_has_ended_costs_nothing_of_what_it_said(tmp_path):
    """It reaches guards that have said all, part of which lies in sockets while nobody reads."""
    marks = [tmp_path / f"rank{rank}" for rank in range(2)]
    script = tmp_path / "talk.py"
    script.write_text(TALKER)
    command = [*ACCDP, "run", "-n", "2", "--gpus", "none", "--", "sh", "-c"]
    # A rank that is late does not mind; the guards get the signal in any case.
    rank = f"trap '' USR1; exec {sys.executable} {script} {tmp_path}/rank${{RANK}}"
    with subprocess.Popen([*command, rank], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert not jobs.until_empty(lambda: [mark for mark in marks if not has_ended(mark)], 50)
        time.sleep(1)  # for their guards to say so, and to leave if they did that
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # for the signal to be passed on
        out, err = process.communicate(timeout=60)
    assert (process.returncode, len(out.splitlines())) == (0, 2 * LINES), err


def has_ended(mark: Path) -> bool:
    text = mark.read_text() if mark.exists() else ""
    return text.endswith("\n") and not procfs.start_time(int(text))


BREEDER = """
import json, os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "40"])
        time.sleep(0.004)
    os._exit(0)
time.sleep(60)
"""


def test_what_goes_on_starting_others_ends_with_them(tmp_path):
    """act() looks for what stays."""
    script = tmp_path / "breed.py"
    script.write_text(BREEDER)

    def end(process, _):
        time.sleep(0.5)  # with some children
        process.terminate()

    result = act(["run", "--grace", "1", "-n", "1", "--gpus", "none", str(script)], 1, end, {})
    assert result.returncode == 128 + signal.SIGTERM and result.seconds < jobs.SOON_S, str(result)


FAILS_ON_ONE = """
import os, signal, sys, time
from pathlib import Path
ready = Path(sys.argv[1])
if os.environ["RANK"] == "0":
    while not ready.exists():
        time.sleep(0.01)
    raise ValueError("enough")
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
ready.touch()
time.sleep(0.4)  # longer than torchrun takes to end the others of a job
print("rank 1 misses rank 0", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_who_misses_a_rank_that_failed_has_time_to_say_so(launcher, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS_ON_ONE)
    script = [str(tmp_path / "fails.py"), str(tmp_path / "ready")]
    result = jobs.run([*ACCDP, "run", "--launcher", launcher, "-n", "2", *script], timeout=60.0)
    assert result.returncode == 1 and "rank 1 misses rank 0" in result.stdout, str(result)
    assert result.stderr.count("accdp run: rank 0 (pid") == 1 and "accdp run: rank 1" not in result.stderr, str(result)
