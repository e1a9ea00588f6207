"""The benchmarks that start commands of ours: one tiny run of each."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jobs
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["small_hosts.py", "--placements", "2x1,x"], "--placements: expected some of"),
        (["small_hosts.py", "--ops", "sum"], "--ops: expected some of"),
        (["allreduce_hosts.py", "--placements", "x"], "--placements: expected some of"),
        (["allreduce_hosts.py", "--dtypes", "int8"], "--dtypes: expected some of float32, bfloat16, got 'int8'"),
        (["allreduce_hosts.py", "--methods", "gloo,zip"], "--methods: expected some of gloo, accdp"),
        (["bcast_hosts.py", "--links", "10"], "--links: expected some of 1000, 10000, got '10'"),
        (["compare.py", "--peers", "gloo", "--sizes", "abc"], "--sizes: expected bytes, with k, M, G"),
        (["compare.py", "--peers", "gloo", "--seconds", "0"], "--seconds: expected seconds > 0, got '0'"),
        (["compare.py", "--peers", "gloo", "--rounds", "-1"], "--rounds: expected a whole number >= 1, got '-1'"),
        (["checkouts.py", ".", "--rounds", "1"], "--rounds: expected a whole number >= 2, got '1'"),
        (["report.py", "--ranks", "2,x"], "--ranks: expected numbers >= 1 with commas between them, got '2,x'"),
        (["launch_overhead.py", "--samples", "0"], "--samples: expected a whole number >= 1, got '0'"),
        (["real_tensors.py", "folder", "--quik"], "real_tensors.py: error: unrecognized arguments: --quik"),
        (["tune_digits.py", "--ranks", "x"], "--ranks: expected numbers >= 1 with commas between them, got 'x'"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(words, said):
    result = jobs.run([sys.executable, str(BENCH / words[0]), *words[1:]])
    assert result.returncode == 2 and said in result.stderr.splitlines()[-1].replace("argument ", ""), str(result)
    assert "Traceback" not in result.stderr


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


def test_settings_that_cannot_be_are_one_line():
    for variables, said in (
        ({"ACCDP_CHUNK_BYTES": "4q"}, "accdp bench: ACCDP_CHUNK_BYTES=4q"),
        (
            {"ACCDP_BASELINE": "mpi"},
            "accdp bench: rank 0 of 2: allgather by ACCDP_BASELINE=mpi: expected a group that has MPI",
        ),
    ):
        command = [sys.executable, "-m", "accdp_comm", "bench", "allreduce", "-n", "2", "-m", "4:4"]
        result = jobs.run(command, env=variables, timeout=60.0)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("accdp run: rank 0")]
        assert result.returncode == 2 and len(lines) == 1 and lines[0].startswith(said), str(result)
