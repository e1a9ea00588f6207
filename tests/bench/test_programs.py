"""The benchmarks that start commands of ours: one tiny run of each."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jobs
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_launch_overhead(tmp_path):
    out = tmp_path / "o.jsonl"
    words = ["--ranks", "2", "--samples", "2", "--json", str(out)]
    result = jobs.run([sys.executable, str(BENCH / "launch_overhead.py"), *words], timeout=90.0)
    assert result.returncode == 0, str(result)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["way"] for row in rows] == ["mpiexec", "accdp run"] * 2 and all(row["seconds"] > 0 for row in rows)
    assert re.search(r"^overhead +-?\d+\.\d{3} ", result.stdout, re.MULTILINE), str(result)


@pytest.mark.timeout(240)  # two searches, each of which imports torch
def test_tuning_against_a_sweep(tmp_path):
    """Whether the marks are reached is no matter here: there is one point."""
    pytest.importorskip("sklearn")
    out = tmp_path / "o.jsonl"
    words = ["--ranks", "1", "--global-batch", "64", "--workers", "0", "--measure", "0.5", "--json", str(out)]
    result = jobs.run([sys.executable, str(BENCH / "tune_digits.py"), *words], timeout=200.0)
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.returncode == (0 if row["tune_s"] <= 0.5 * row["sweep_s"] else 1), str(result)
    assert row["tune_best"] == row["sweep_best"] and row["speed_ratio"] == 1.0, str(result)
    assert row["tune"][0]["samples_per_s"] > 0 and "speed 1.000 (at least 0.95)" in result.stdout
