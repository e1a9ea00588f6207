"""checkouts.py: which points it calls slower, and one small run of this checkout against itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jobs
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import checkouts  # noqa: E402  (found only after the line above)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([1.0, 1.2, 1.1], [1.3, 1.5, 1.4], "slower"),
        ([1.0, 1.2, 1.1], [1.2, 1.5, 1.4], ""),
        ([1.3, 1.5], [1.0, 1.2], "faster"),
        ([1.3, 1.5], [1.0, 1.3], ""),
        ([1.0, 1.0], [1.01, 1.02], ""),
    ],
)
def test_verdict(before, now, said):
    assert checkouts.verdict(before, now) == said
    line = checkouts.table({("2 ranks, 1 node", "bcast", 4096): [before, now]})[1]
    assert line.startswith("2 ranks, 1 node") and ("slower" in line or "faster" in line) == bool(said), line
    assert re.search(r" bcast +4 KiB +", line), line


def test_layouts():
    said = [str(layout) for layout in checkouts.layouts([2, 3, 4])]
    two_nodes = ["2 ranks, 2 nodes", "4 ranks, 2 nodes", "2 ranks, 2 nodes, torchrun"]
    assert said == ["2 ranks, 1 node", two_nodes[0], "3 ranks, 1 node", "4 ranks, 1 node", *two_nodes[1:]]
    assert checkouts.Layout(4, nodes=2).variables() == {"ACCDP_TOPOLOGY": "2x2"}


def run(*words: str) -> jobs.Result:
    return jobs.run([sys.executable, str(BENCH / "checkouts.py"), *words], timeout=120.0)


def test_this_checkout_against_itself():
    pytest.importorskip("torch")  # for torchrun
    words = ["-n", "2", "--ops", "latency", "--sizes", "4,1k", "--rounds", "2", "--seconds", "0.02"]
    result = run(str(BENCH.parent), *words)
    assert result.returncode in (0, 1), str(result)  # two rounds of so little say nothing
    points = [line for line in result.stdout.splitlines() if " latency " in line]
    assert len(points) == 6 and "6 points: " in result.stdout, str(result)
    assert sum("torchrun" in line for line in points) == 2, str(result)


def test_another_python_is_said(tmp_path):
    """Its calls take another time, whatever the checkout does."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    jobs.write_program(tmp_path / ".venv" / "bin" / "python", "echo /opt/python3")
    result = run(str(tmp_path))
    assert result.returncode == 2 and "got one of /opt/python3 (make PYTHON=" in result.stderr, str(result)
    assert result.stderr.count("\n") == 1, str(result)


def test_what_is_no_checkout_is_said(tmp_path):
    none = run(str(tmp_path))
    assert none.returncode == 2 and "expected a checkout after `make build`" in none.stderr, str(none)
    assert none.stderr.count("\n") == 1, str(none)
    pairs = run(str(BENCH.parent), "-n", "3,4", "--ops", "latency,bw")
    assert pairs.returncode == 2 and "-n 3,4: expected 2 among them for latency,bw" in pairs.stderr, str(pairs)


def test_of_a_job_that_fails_all_is_shown_that_it_said(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    is_asked = f'test "$1" = -c && exec {sys.executable} "$@"'
    fails = "echo the reason >&2; echo the end >&2; exit 3"
    jobs.write_program(tmp_path / ".venv" / "bin" / "python", is_asked, fails)
    result = run(str(tmp_path), "-n", "2", "--ops", "barrier", "--rounds", "2")
    assert result.returncode == 2, str(result)
    last = f"checkouts.py: barrier, 2 ranks, 1 node, in {tmp_path}: the end"
    assert result.stderr.splitlines()[-3:] == ["the reason", "the end", last], str(result)
