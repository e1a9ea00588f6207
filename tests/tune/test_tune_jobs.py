"""`accdp tune` over real jobs: scripts that know nothing of it, one that needs too much memory, an interruption."""

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import jobs
import pytest

from accdp_comm import cli
from accdp_comm.tune import record, trial
from accdp_comm.tune.space import Point

TORCH = """
import argparse, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
batch = parser.parse_args().batch
dist.init_process_group("accdp")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    model(torch.ones(batch, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NUMPY = """
import sys, time
import numpy as np
from accdp_comm import Communicator, tuned
batch = tuned("batch_size", 4)
if batch >= 32:
    np.empty(1 << 60, np.uint8)
with Communicator() as comm:
    gradients, loss = np.ones(1000, np.float32), np.ones(1)
    while True:
        time.sleep(0.005)
        comm.allreduce(gradients)
        comm.allreduce(loss)
"""
QUICK = ("--measure", "0.9")


def tune(folder, script: str, *options: str, arguments: tuple[str, ...] = (), timeout: float = 90.0) -> jobs.Result:
    return jobs.run(command(folder, script, *options, arguments=arguments), timeout=timeout)


def command(folder, script: str, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    path = folder / "train.py"
    path.write_text(script)
    where = ("--output", str(folder / "out"))
    return [sys.executable, "-m", "accdp_comm", "tune", *QUICK, *where, *options, "--", str(path), *arguments]


def rows(folder) -> list[dict]:
    """The last line of each point."""
    lines = (folder / "out" / "trials.jsonl").read_text().splitlines()[1:]
    return [*{json.dumps(row["point"]): row for row in map(json.loads, lines)}.values()]


@pytest.mark.timeout(240)  # three commands, two of whose trials import torch
def test_an_unchanged_script(tmp_path):
    """Steps are those of its optimizer, the global batch stays, a picture and a profile are there; then nothing is
    left to do."""
    options = ("--ranks", "1,2,3", "--global-batch", "64", "--run=--grace 2")
    arguments = ("--batch", "{batch_size}")
    first = tune(tmp_path, TORCH, *options, arguments=arguments)
    assert first.returncode == 0, str(first)
    assert "The global batch stays 64" in first.stdout and "64 among 3 ranks" in first.stdout
    done = rows(tmp_path)
    assert [(row["point"]["ranks"], row["point"]["batch_size"], row["seen_by"]) for row in done] == [
        (1, 64, "optimizer"),
        (2, 32, "optimizer"),
    ]
    assert all(row["samples_per_s"] == pytest.approx(64 * row["steps_per_s"]) for row in done)
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "out" / "throughput.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "no picture: matplotlib is not installed" in first.stdout
    best = max((row for row in done if row["status"] == "ok"), key=lambda row: row["samples_per_s"])["point"]
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert profile["script"] == [str(tmp_path / "train.py"), "--batch", str(64 // best["ranks"])]
    assert (profile["ranks"], profile["ranks_per_gpu"]) == (best["ranks"], None)
    assert f"accdp run -n {best['ranks']} --grace 2 -- {' '.join(profile['script'])}" in first.stdout
    by_profile = f"or:   accdp run --grace 2 --profile {tmp_path / 'out' / 'profile.json'}"
    assert by_profile in first.stdout.splitlines(), str(first)

    again = tune(tmp_path, TORCH, *options, arguments=arguments)
    assert again.returncode == 0 and rows(tmp_path) == done, str(again)
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    other = tune(tmp_path, TORCH, *options, arguments=(*arguments, "--more"))
    assert other.returncode == 2 and "outcomes of another search (script differ)" in other.stderr, str(other)


def test_steps_by_collectives_alone_and_memory(tmp_path):
    """A loop without torch: two collectives a step, at most 200 steps a second. 32 samples do not fit into memory."""
    result = tune(tmp_path, NUMPY, "--ranks", "1,2", "--batch-size", "16,32,64")
    assert result.returncode == 0, str(result)
    assert "the global batch grows with the ranks" in result.stdout
    done = rows(tmp_path)
    found = [(row["point"]["ranks"], row["point"]["batch_size"], row["status"]) for row in done]
    assert found[0] == (1, 16, "ok") and found[1][2] in ("ok", "stopped")
    assert [status for _, _, status in found[2:]] == ["out of memory", "skipped", "skipped", "skipped"]
    assert done[0]["seen_by"] == "collectives" and 2 < done[0]["steps_per_s"] < 200
    assert done[0]["samples_per_s"] == pytest.approx(16 * done[0]["steps_per_s"])
    assert "MemoryError" in done[2]["reason"]


def test_a_script_that_says_its_samples_but_takes_no_batch_size(tmp_path):
    script = NUMPY.replace("comm.allreduce(loss)", "step(samples=batch)").replace("tuned", "step")
    script = script.replace('step("batch_size", 4)', "4")
    result = tune(tmp_path, script, "--ranks", "1", "--global-batch", "8")
    assert result.returncode == 1 and "no point was measured" in result.stdout, str(result)
    assert "worked off batches of 4, not of 8" in rows(tmp_path)[0]["reason"]
    kept = tune(tmp_path, script, "--ranks", "1", "--fresh")
    assert kept.returncode == 0 and rows(tmp_path)[0]["global_batch"] == 4, str(kept)


def test_what_cannot_be_measured_is_said(tmp_path):
    failing = tune(tmp_path, "import nothing_of_that_name", "--ranks", "1")
    assert failing.returncode == 1 and "No module named 'nothing_of_that_name'" in failing.stdout, str(failing)
    short = tune(tmp_path, "from accdp_comm import Communicator\nCommunicator().close()", "--ranks", "1", "--fresh")
    assert short.returncode == 1 and "ended before 15 steps were seen" in short.stdout, str(short)
    no_samples = tune(tmp_path, NUMPY, "--ranks", "1", "--fresh")
    assert no_samples.returncode == 2 and "nothing tells how many samples a step has" in no_samples.stderr


def test_a_script_that_hangs_has_failed(tmp_path):
    """However fast it was before."""
    script = tmp_path / "train.py"
    script.write_text(
        NUMPY.replace("while True:", "until = time.monotonic() + 2.5\n    while time.monotonic() < until:")
        + "    time.sleep(1000)\n"
    )
    job = trial.Job((str(script),), tmp_path, start_s=10.0)
    outcome = trial.run(job, Point(2), lambda level, so_far: True)
    assert outcome.status == "failed" and "logged nothing for 1" in outcome.reason


def test_a_script_none_of_whose_ranks_is_seen(tmp_path):
    """As where all of them run on other hosts, which have no such folder."""
    script = tmp_path / "train.py"
    script.write_text('import os\nos.environ["ACCDP_STEP_LOG"] = "/nonexistent"\n' + NUMPY)
    job = trial.Job((str(script),), tmp_path, start_s=5.0)
    outcome = trial.run(job, Point(1), lambda level, so_far: True)
    assert outcome.status == "failed" and "no rank ran on this host" in outcome.reason
    assert str(tmp_path / "r1.log") in outcome.reason


def test_a_full_disk_is_said_with_what_was_measured(tmp_path, monkeypatch, capsys):
    def add(record, outcome):
        if record.outcomes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        record.outcomes.append(outcome)

    def run(job, point, *_):
        return trial.Outcome(point, "ok", 100.0 * point.ranks, point.ranks, 64)

    monkeypatch.setattr(record.Record, "add", add)
    monkeypatch.setattr(trial, "run", run)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", "--ranks", "1,2,4", "--global-batch", "64", "true"]) == 1
    said = capsys.readouterr().out
    assert "accdp-tune: cannot write results there: No space left on device" in said and "200" in said
    assert "\nbest: " in said and not (tmp_path / "accdp-tune" / "profile.json").exists()


def test_a_disk_that_is_full_at_the_end(tmp_path, monkeypatch, capsys):
    """What the search has found is said."""
    monkeypatch.setattr(trial, "run", lambda job, point, *_: trial.Outcome(point, "ok", 9.0, point.ranks, 64))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "accdp-tune").mkdir()
    (tmp_path / "accdp-tune" / "profile.json.new").symlink_to("/dev/full")
    assert cli.main(["tune", "--ranks", "1", "--global-batch", "64", "true"]) == 1
    best, trouble = capsys.readouterr().out.splitlines()[-2:]
    assert best.startswith("best: ") and best.endswith(" accdp run -n 1 -- true")
    assert trouble == "accdp-tune: cannot write results there: No space left on device"
    assert [path.name for path in (tmp_path / "accdp-tune").iterdir()] == ["trials.jsonl"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_interruption_leaves_nothing_behind(tmp_path, number, code):
    """Interrupted in the second trial; the first one's outcome is kept, and no rank lives on. So when it is killed."""
    argv = command(tmp_path, NUMPY, "--ranks", "1,2", "--batch-size", "16")
    token = {"TEST_JOB_TOKEN": str(tmp_path), "TMPDIR": str(tmp_path)}  # the folder of a trial that SIGKILL ends stays
    with subprocess.Popen(argv, env=jobs.environment(**token), stdout=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "out" / "logs" / "r2-b16.log").exists():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            said = process.communicate(timeout=40)[0]
        finally:
            process.kill()
    assert process.returncode == code, said
    assert number == signal.SIGKILL or "interrupted; the same command goes on from here" in said
    assert [row["point"]["ranks"] for row in rows(tmp_path)] == [1]
    assert jobs.until_empty(lambda: jobs._carrying(str(tmp_path))) == []
