"""The runs of bench/gpu_check.py with MPS and without: what is kept of them, and what counts as a failure."""

import json
import sys
from pathlib import Path

import pytest

from accdp_comm import nvcomp

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)
import gpu_run  # noqa: E402
import gpu_table  # noqa: E402


@pytest.mark.parametrize("is_installed", [False, True])
def test_runs_with_mps_end_where_it_is_refused(monkeypatch, tmp_path, is_installed):
    kept = []
    refused = {"failed": "accdp run: --mps on: why\nmore"}

    def refuse(ranks, mps, peers="gloo", options=()):
        return {"ranks": ranks, "mps": mps} | (refused if mps else {})

    monkeypatch.setattr(gpu_check, "ranks_on_one_gpu", refuse)
    monkeypatch.setenv("PATH", str(tmp_path))
    if is_installed:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.touch(0o755)
    verdict = "does not work" if is_installed else "not available"
    assert gpu_check.two_ranks(kept.append) == f"{verdict}: accdp run: --mps on: why"
    gpu_check.more_ranks(False, kept.append)
    gpu_check.most_ranks(False, kept.append)
    without = [{"ranks": ranks, "mps": False} for ranks in (2, 4, 16, 8)]
    with_mps = [{"ranks": 2, "mps": True} | refused] if is_installed else []
    assert kept == [without[0], *with_mps, *without[1:]]
    assert gpu_table.has_failed({"runs": kept}) is is_installed


def ended_with(monkeypatch, status, **logs):
    """Commands end with that status, and MPS has logged that; what was run is returned."""
    commands = []

    def run(command, limit_s, **environment):
        commands.append((command, limit_s))
        folder = Path(environment["ACCDP_RUN_MPS_LOGS"], "a daemon")
        folder.mkdir(parents=True)
        for name, text in logs.items():
            (folder / f"{name}.log").write_text(text)
        return gpu_run.Ended(status, "why")

    monkeypatch.setattr(gpu_check, "run", run)
    return commands


def test_logs_of_mps_are_kept_where_a_run_fails(monkeypatch):
    ended_with(monkeypatch, 1, control="begun\nended", server="x" * 3000 + "\nno memory")
    found = gpu_check.ranks_on_one_gpu(2, mps=True)
    assert found["mps_logs"]["control.log"] == "begun\nended"
    assert len(found["mps_logs"]["server.log"]) == gpu_check.LOG_TAIL
    ends = ["control.log of MPS ends: ended", "server.log of MPS ends: no memory"]
    assert gpu_table.what_is_missing(found) == ["failed: why", *ends]
    ended_with(monkeypatch, 0, control="begun")
    assert "mps_logs" not in gpu_check.ranks_on_one_gpu(2, mps=True)


def test_ranks_that_take_turns_have_less_to_do_and_more_time(monkeypatch):
    commands = ended_with(monkeypatch, gpu_check.LATE)
    assert gpu_check.ranks_on_one_gpu(4, mps=False)["not_done"] == "why"
    assert gpu_check.ranks_on_one_gpu(16, mps=False)["not_done"] == "why"
    assert gpu_check.ranks_on_one_gpu(4, mps=True)["failed"] == "why"
    assert gpu_check.ranks_on_one_gpu(2, mps=False)["failed"] == "why"
    assert [limit_s for _, limit_s in commands] == [200, 200, 140, 130]
    assert ["--most-bytes" in command for command, _ in commands] == [True, True, False, False]


def test_broadcast_between_hosts(tmp_path):
    """The step `hosts` on host memory, where this machine can make hosts; it says so where not."""
    ans = [codec for codec in ("ans",) if codec not in nvcomp.missing_codecs()]
    out = tmp_path / "hosts.json"
    command = [sys.executable, str(gpu_check.HOSTS), "--device", "cpu", "--count", "65536", "--out", str(out)]
    ended = gpu_check.run(command, 100)
    assert ended.status == 0, ended.said
    found = json.loads(out.read_text())
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert "failed" not in found, found
    assert [(row["link_gbit"], row["codec"]) for row in found["rows"]] == [
        (gbit, codec) for gbit in (10, 25) for codec in ("none", "fpk", *ans, "auto", "auto")
    ]
    assert all(row["s"] > 0 and row["wire_bytes"] > 0 for row in found["rows"])
