"""bench/reduce_loops.py: a row for every datatype that can be reduced, and the loops themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accdp_comm import UsageError, _core

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "reduce_loops.py"


def test_every_datatype_has_a_speed(tmp_path):
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--page", str(page)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(_core.Datatype.__members__) - 1  # a head and its line; bytes cannot be reduced
    assert rows[0] == "| GB/s | sum | avg | prod | min | max | band |"
    assert next(row for row in rows if row.startswith("| c64 ")).endswith("|  |  |  |")  # no order, no bits


def test_a_loop_reduces_what_it_is_given():
    sources = [np.arange(1000, dtype=np.float32) + i for i in range(3)]
    out = np.zeros(1000, np.float32)
    places = [source.ctypes.data for source in sources]
    _core.reduce(out.ctypes.data, places, out.size, _core.Datatype.f32, _core.ReduceOp.avg, 3)
    assert (out == sources[1]).all()
    with pytest.raises(UsageError, match="op=band is not defined for float32"):
        _core.reduce(out.ctypes.data, places, out.size, _core.Datatype.f32, _core.ReduceOp.band)
    with pytest.raises(UsageError, match="srcs: expected at least one"):
        _core.reduce(out.ctypes.data, [], out.size, _core.Datatype.f32, _core.ReduceOp.sum)
