"""bench/gpu_kill.py without a GPU: the ranks' memory is the host's, and rank 1 is killed all the same."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_kill  # found only after the line above

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def time_to_start(monkeypatch):
    monkeypatch.setattr(gpu_kill, "STARTING_S", 100.0)


def test_both_ways_of_leaving(monkeypatch, tmp_path):
    out = tmp_path / "killed.json"
    monkeypatch.setattr(sys, "argv", ["gpu_kill.py", "--device", "cpu", "--out", str(out)])
    gpu_kill.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == ["exit", "os._exit"]
    for row in rows:
        assert row["ended"] == 0 and row["ended_s"] < gpu_kill.LEAVING_S and row["in"] == "all_reduce"
        assert row["noticed_s"] < gpu_kill.LIMIT_S and "rank 1 (pid " in row["error"]


def test_what_counts_as_a_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_kill, "LIMIT_S", -gpu_kill.STARTING_S)  # over while rank 1 still lives
    monkeypatch.setattr(gpu_kill, "LEAVING_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["gpu_kill.py", "--device", "cpu", "--out", str(tmp_path / "killed.json")])
    with pytest.raises(SystemExit, match="rank 0 got no error within"):
        gpu_kill.main()
    assert json.loads((tmp_path / "killed.json").read_text())["rows"][0]["ended"] == "killed"
