"""bench/gpu_memory.py on host memory: which scenes are played, what is said of the others, and what is kept."""

import os
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)
import gpu_memory  # noqa: E402
import gpu_run  # noqa: E402
import gpu_table  # noqa: E402

# What of CuPy the scenes use, on NumPy's arrays.
CUPY = """
import contextlib, types
import numpy
cupy = types.ModuleType("cupy")
cupy.__version__, cupy.float32 = "0", numpy.float32
cupy.arange, cupy.empty_like, cupy.ones = numpy.arange, numpy.empty_like, numpy.ones
cupy.get_default_memory_pool = lambda: types.SimpleNamespace(total_bytes=lambda: 512)
cupy.cuda = types.SimpleNamespace(Stream=lambda non_blocking: contextlib.nullcontext())
sys.modules["cupy"] = cupy
gpu_memory.SLOW = 8
"""
# Segments as torch shows them, and a name for its allocator.
TORCH = """
import torch
gpu_memory.segments = lambda device: [{"is_expandable": True}]
"""


@pytest.fixture
def on_host(monkeypatch, tmp_path):
    def prepare(*parts):
        rank = tmp_path / "rank.py"
        head = f"import sys\nsys.argv += ['--device', 'cpu']\nsys.path.insert(0, {str(BENCH)!r})\nimport gpu_memory\n"
        rank.write_text("\n".join([head, *parts, "gpu_memory.main()", ""]))
        monkeypatch.setattr(gpu_check, "MEMORY", rank)
        monkeypatch.setattr(gpu_check, "place", lambda ranks, mps: ["-n", str(ranks)])

    return prepare


def test_scenes_are_played(on_host):
    on_host(CUPY, TORCH)
    found = gpu_check.memory(mps=False)
    assert "failures" not in found, found
    rows = {row["scene"]: row for row in found["rows"]}
    assert list(rows) == list(gpu_memory.SCENES)
    assert rows["expandable segments"]["memory"] == "expandable segments of torch"
    assert rows["CuPy pool"]["memory"] == "CuPy 0, 512 bytes in its pool"
    assert rows["CuPy stream"]["memory"] == "CuPy 0 on a stream of its own"
    assert rows["cudaMallocAsync"]["skipped"].startswith("torch's allocator is ")
    assert rows["MemPool"]["skipped"] == "this torch has no MemPool"
    assert not gpu_table.has_failed({"runs": [], "memory": found})
    assert "memory of CuPy pool: checked: CuPy 0, 512 bytes in its pool" in gpu_table.table_of_memory(found)


def test_what_fails_is_told_and_the_other_scenes_go_on(on_host, monkeypatch):
    monkeypatch.setattr(gpu_check, "ALLOCATORS", {"MemPool,CuPy pool,CuPy stream": ""})
    wrong = "def mem_pool(comm, expect, device):\n    expect(comm.rank != 1, 'a sum')\n    return 'a pool'"
    on_host("sys.modules['cupy'] = None", wrong, "gpu_memory.SCENES['MemPool'] = mem_pool")
    found = gpu_check.memory(mps=False)
    assert found["failures"] == ["rank 1: memory of MemPool: a sum"]
    pool, cupy, stream, all_of_them = found["rows"]
    assert pool["memory"] == "a pool" and "skipped" not in pool
    assert cupy["skipped"].startswith("CuPy is not there: ") and stream["skipped"] == cupy["skipped"]
    assert "1 checks failed, first rank 1: memory of MemPool: a sum" in all_of_them["failed"]
    assert gpu_table.has_failed({"runs": [], "memory": found})
    lines = gpu_table.table_of_memory(found)
    assert lines[0] == "memory: 1 checks failed, first rank 1: memory of MemPool: a sum"
    assert lines[2].startswith("memory of CuPy pool: skipped: CuPy is not there: ")


def test_torch_is_told_which_allocator_and_cupy_where_libraries_are(monkeypatch, tmp_path):
    told = []

    def run(command, limit_s, **environment):
        told.append((command[command.index("--scenes") + 1], environment))
        return gpu_run.Ended(None, "no time left")

    monkeypatch.setattr(gpu_check, "run", run)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", "before")
    (tmp_path / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    rows = gpu_check.memory(mps=True)["rows"]
    assert told == [
        ("expandable segments", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("cudaMallocAsync", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
        ("MemPool,CuPy pool,CuPy stream", {"LD_LIBRARY_PATH": f"before{os.pathsep}{tmp_path}/nvidia/cu13/lib"}),
    ]
    assert {name for scenes, _ in told for name in scenes.split(",")} == set(gpu_memory.SCENES)
    assert [row["not_done"] for row in rows] == ["no time left"] * 3
