"""bench/memory.py: long operations keep little in memory beside the buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jobs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import memory

MEMORY = Path(__file__).resolve().parents[2] / "bench" / "memory.py"
# Twice the limit, so that a copy of a whole message is above it, and one of a rank's half with what else is kept.
SIZE = "128M"


def test_the_library_keeps_less_than_64_mib():
    argv = [sys.executable, str(MEMORY), "--sizes", SIZE, "--placements", "1x2,2x1"]
    done = subprocess.run(argv, env=jobs.environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("\n") == 1 + 2 * len(memory.OPS)  # a head, and all operations at each placement


def test_what_it_does_not_know_is_refused():
    for words in (["--ops", "alreduce"], ["--placements", "3x1"]):
        argv = [sys.executable, str(MEMORY), *words]
        done = subprocess.run(argv, env=jobs.environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "expected some of" in done.stderr, done.stderr


def test_the_page_says_how_much_more_a_byte_costs(tmp_path):
    costs = {16 << 20: 2.0, 64 << 20: 3.0}
    rows = [
        {"op": "bcast", "placement": "1x2", "bytes": size, "ns_per_byte": cost, "extra_bytes": 5 << 20}
        for size, cost in costs.items()
    ]
    memory.write_growth(rows, tmp_path / "page.md")
    assert "| bcast | 1x2 | 2.000 | 3.000 | 1.50 | 5 MiB |" in (tmp_path / "page.md").read_text()
