"""bench/gpu_check.py without a GPU: it says so, its ranks run on host memory, and its table shows what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accdp_comm import _core

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)


def test_a_machine_without_gpu_is_told(tmp_path):
    if not _core.cuda_report()["why_not"]:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu_check.py"), "--out", str(tmp_path / "x.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gpu_check: nothing to check here: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ranks_check_and_measure(tmp_path):
    out = tmp_path / "rank0.json"
    command = [*gpu_check.ACCDP, "run", "-n", "2", str(gpu_check.RANK), "--device", "cpu", "--most-bytes", "4096"]
    good, said = gpu_check.run([*command, "--out", str(out)], 90)
    assert good, said
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows] == ["allreduce", "bcast", "allreduce gloo", "bcast gloo"]
    assert all(row["bytes"] == 4096 and row["ranks"] == 2 and row["s"] > 0 for row in rows)


def test_limits():
    good, said = gpu_check.run([sys.executable, "-uc", "print('begun'); import time; time.sleep(60)"], 2)
    assert not good and said == "not done after 2 s; begun\n"


def test_table():
    rows = [
        {"what": "allreduce", "bytes": 1 << 20, "ranks": 2, "s": 2e-6},
        {"what": "allreduce gloo", "bytes": 1 << 20, "ranks": 2, "s": 50e-6},
    ]
    runs = [
        {"mps": False, "ranks": 2, "rows": rows, "path": "shared GPU, ordered by events"},
        {"mps": True, "ranks": 8, "rows": [], "failed": "one\nlast line"},
    ]
    lines = gpu_check.table({"machine": {"copy_bytes_per_s": 4 * (1 << 20) / 1e-6}, "runs": runs}).splitlines()
    assert lines[1].split() == ["no", "2", "allreduce", "1048576", "2.0", "0.50", "25.0"]
    assert lines[2].strip() == "shared GPU, ordered by events"
    assert lines[3].startswith("yes") and "last line" in lines[3]
