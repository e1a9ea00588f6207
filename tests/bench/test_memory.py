"""bench/memory.py: long operations keep little in memory beside the buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jobs

MEMORY = Path(__file__).resolve().parents[2] / "bench" / "memory.py"


def test_the_library_keeps_less_than_64_mib():
    argv = [sys.executable, str(MEMORY), "--sizes", "32M", "--placements", "1x2,2x1"]
    done = subprocess.run(argv, env=jobs.environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("\n") == 1 + 2 * 6  # a head, and six operations at each placement
