"""What is shown: the table's rows, the command line of the best point, the picture, and how busy the machine was."""

import io
import re
import sys
import time
import types

import pytest
from rich.console import Console

from accdp_comm.launch import last_error
from accdp_comm.tune import load, report, trial
from accdp_comm.tune.space import Batches, Point
from accdp_comm.tune.trial import Job, Outcome

BATCHES = Batches("global", (64,))
OUTCOMES = [
    Outcome(Point(2, 1, 32), "ok", 100.0, 1.5, 64, 0.02, 9, 12, "optimizer", {"cpu": 50.0, "gpu0": 43.0}),
    Outcome(Point(4, 2, 16), "ok", 158.0, 2.4, 64, 0.01, 9, 12, "optimizer", {"cpu": 70.0, "gpu0": 81.0}),
    Outcome(Point(8, 4, 8), "stopped", 90.0, 1.4, 64, 0.01, 1, 5, "optimizer"),
    Outcome(Point(16, 8, 4), "out of memory", wall_s=4, reason="CUDA out of memory."),
]


def test_table():
    out = io.StringIO()
    Console(file=out, width=140).print(report.table(OUTCOMES, OUTCOMES[1]))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["1", "32", "64", "100", "2.0 %", "50", "43", "12.0", ""],
        ["2", "16", "64", "158", "1.0 %", "70", "81", "12.0", "best"],
        ["4", "8", "64", "90", "1.0 %", "", "", "5.0", "stopped"],
        ["8", "4", "64", "", "", "", "", "4.0", "out of memory: CUDA out of memory."],
    ]


def test_command_line(tmp_path):
    job = Job(("train.py", "--batch", "{batch_size}", "a b"), tmp_path, ("--mps", "on"))
    assert report.command_line(job, OUTCOMES[1]) == (
        "ACCDP_TUNED_BATCH_SIZE=16 ACCDP_TUNED_GLOBAL_BATCH_SIZE=64 "
        "accdp run --ranks-per-gpu 2 --mps on -- train.py --batch 16 'a b'"
    )


def test_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="the package matplotlib is not installed")
    path = tmp_path / "picture.png"
    assert report.picture(path, OUTCOMES, BATCHES)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert report.picture(path, OUTCOMES[3:], BATCHES)  # nothing was measured


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not report.picture(tmp_path / "picture.png", OUTCOMES, BATCHES)


@pytest.mark.parametrize(
    "said",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes.",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 EiB",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "accdp run: rank 1 (pid 7, host n1) was killed by SIGKILL and wrote nothing to standard error",
        "accdp run: rank 1 (pid 7, host n1) lost its guard, which was killed, or whose connection broke; this is",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_words_of_exhausted_memory(said):
    assert trial._EXHAUSTED.search(f"some line\n{said}\nanother")


@pytest.mark.parametrize("said", ["ValueError: no", "=   EXIT CODE: 9", "Killed 3 workers", "peak memory 90 MiB"])
def test_words_of_other_mistakes(said):
    assert not trial._EXHAUSTED.search(said)


def test_gpus_by_nvml(monkeypatch):
    """A made-up NVML of two GPUs, of which one works half of the time."""
    made = types.ModuleType("pynvml")
    made.NVMLError = RuntimeError
    made.nvmlInit = lambda: None
    made.nvmlDeviceGetCount = lambda: 2
    made.nvmlDeviceGetHandleByIndex = lambda index: index
    made.nvmlDeviceGetUtilizationRates = lambda index: types.SimpleNamespace(gpu=50 * index)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(load, "_EVERY_S", 0.001)
    sampler = load.Sampler()
    assert sampler.means() == {}
    sampler.begin()
    try:
        deadline = time.monotonic() + 10
        while "gpu1" not in (found := sampler.means()):
            assert time.monotonic() < deadline
    finally:
        sampler.end()
    assert (found["gpu0"], found["gpu1"]) == (0, 50)


def test_without_a_driver(monkeypatch):
    made = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def no_driver():
        raise NVMLError("Driver Not Loaded")

    made.NVMLError, made.nvmlInit = NVMLError, no_driver
    monkeypatch.setitem(sys.modules, "pynvml", made)
    assert load.nvml() is None


TRACEBACK = "Traceback (most recent call last):\n  File 'x'\n"


@pytest.mark.parametrize(
    ("said", "is_exhausted"),
    [
        (
            "MemoryError: falling back\nValueError: no licence\naccdp run: rank 0 (pid 7, host n) ended with status 1",
            False,
        ),
        (f"[1] {TRACEBACK}[1] MemoryError\naccdp run: rank 1 (pid 7, host n) x; its error stands above", True),
        (f"MemoryError\n{TRACEBACK}ValueError: no\naccdp run: rank 1 (pid 7, host n) x; its error stands above", False),
        (
            f"[rank0]: {TRACEBACK}[rank0]: MemoryError\n[rank0]: During handling of the above exception, another\n"
            f"[rank0]: {TRACEBACK}[rank0]: ValueError\naccdp run: rank 0 (pid 7, host n) x; its error stands above",
            True,
        ),
        (f"accdp run: rank 1 (pid 7, host n) x; this is its error:\n    {TRACEBACK}    MemoryError", True),
        (f"MemoryError\naccdp run: rank 1 (pid 7, host n) x; this is its error:\n    {TRACEBACK}    ValueError", False),
        ("accdp run: rank 1 (pid 7, host n) was killed by SIGKILL and wrote nothing to standard error", True),
        ("a message\nstd::bad_alloc", True),
        (f"[100] loss 0.3\n{TRACEBACK}MemoryError\naccdp run: rank 0 (pid 7) x; its error stands above", True),
        (
            f"{TRACEBACK}MemoryError\n"
            + "step\n" * 500
            + "no licence\naccdp run: rank 0 (pid 7) x; its error stands above",
            False,
        ),
        (
            f"[0] {TRACEBACK}[0] MemoryError\n" + "[0] step\n" * 500 + "[0] no licence\n"
            "accdp run: rank 0 (pid 7) x; its error stands above",
            False,
        ),
        (
            f"[1] {TRACEBACK}[1] MemoryError\n[0] Traceback (most recent call last):\n[0] ValueError\n"
            "accdp run: rank 0 (pid 7) x; its error stands above",
            False,
        ),
        ("MemoryError: caught\n" + "step\n" * 30, False),
    ],
)
def test_memory_is_exhausted_where_that_ended_the_job(said, is_exhausted):
    is_labelled = re.search(r"^\[\d+\] [^l]", said, re.MULTILINE) is not None
    assert bool(trial._EXHAUSTED.search(last_error.find(said.encode(), is_labelled))) == is_exhausted
