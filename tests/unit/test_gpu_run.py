"""Commands of bench/gpu_check.py end within their limits, with all that they started, and say how."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_run  # noqa: E402  (found only after the line above)


def test_a_program_that_is_not_there():
    assert gpu_run.run(["no-such-program"], 5) == (127, "no-such-program: No such file or directory")


def test_limits():
    ended = gpu_run.run(["sh", "-c", "echo begun; sleep 60"], 5)
    assert ended.status == gpu_run.LATE and re.fullmatch(r"begun; ended after [5-9] s: its limit", ended.said), ended
    assert ended.trouble() == {"failed": ended.said}


def test_what_is_wanted_is_kept_besides_the_end():
    script = "print('before'); print('wanted one' + 3000 * '.'); print('wanted two'); print(9000 * 'x'); print('end')"
    said = gpu_run.run([sys.executable, "-c", script], 30, wanted="wanted").said
    assert said.startswith("wanted one..") and said.endswith("x\nend") and "two" not in said
    assert len(said) < gpu_run.MOST_FIRST + gpu_run.MOST_SAID + 10
    short = gpu_run.run(["echo", "before wanted"], 30, wanted="wanted").said
    assert short == "before wanted"
    assert gpu_run.run(["seq", "1", "9000"], 30, wanted="none").said.startswith("7401\n")


def test_time_for_all_is_no_limit_of_a_step(monkeypatch):
    monkeypatch.setattr(gpu_run, "_ends_at", time.monotonic() + 6)
    ended = gpu_run.run(["sleep", "60"], 60)
    assert ended.status is None and re.fullmatch(r"; ended after [5-9] s: no time left", ended.said), ended
    assert gpu_run.run(["true"], 60).trouble() == {"not_done": "no time left"}


def test_nothing_is_left_of_a_command_that_does_not_end(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_run, "PATIENCE_S", 1)
    pid = tmp_path / "pid"
    ended = gpu_run.run(["sh", "-c", f"trap '' TERM; sleep 60 & echo $! > {pid}; wait; wait"], 5)
    assert ended.status == gpu_run.LATE
    child = int(pid.read_text())
    assert not jobs.until_empty(lambda: jobs.living(lambda one: one == child))


def test_a_process_that_is_left_over_holds_nobody_up():
    began = time.monotonic()
    assert gpu_run.run(["sh", "-c", "echo said; setsid sleep 20 &"], 60) == (0, "said")
    assert time.monotonic() - began < 10


def test_a_check_that_is_ended_ends_its_command(tmp_path):
    begun, waits, ended = tmp_path / "begun", tmp_path / "waits", tmp_path / "ended"
    jobs.write_program(tmp_path / "child", f"trap 'touch {ended}; exit' TERM", f"touch {begun}", "sleep 60 & wait")
    check = (
        f"import pathlib, signal, subprocess, sys; sys.path.insert(0, {str(BENCH)!r}); import gpu_run\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); wait = subprocess.Popen.wait\n"
        f"subprocess.Popen.wait = lambda *some: pathlib.Path({str(waits)!r}).touch() or wait(*some)\n"
        "gpu_run.run(sys.argv[1:], 60)"
    )
    with subprocess.Popen([sys.executable, "-c", check, str(tmp_path / "child")]) as process:
        # Popen may return later than the child begins, and only then can the child be ended.
        jobs.until(lambda: begun.exists() and waits.exists())
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 3 and ended.exists()
