"""bench/gpu_probe.py without a GPU: its calls go to a library that only looks like the driver; and what may fail."""

import ctypes
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)
import gpu_probe  # noqa: E402
import gpu_run  # noqa: E402
import gpu_table  # noqa: E402

# Ranks are threads, a handle holds the address itself, and of a stream's work only what comes after a wait is put off.
LIBRARY = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char reserved[64]; } Handle;
typedef struct { volatile uint32_t *awaited, *marked; uint32_t value, mark; } Stream;
int behaviour; /* 1: waits hold nothing back; 2: others' values do not come; 3: none do; 4: no memory can be opened */
static uint32_t *own;
int cuGetErrorName(int code, const char** text) { *text = code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "?"; return 0; }
int cuCtxGetDevice(int* device) { *device = 3; return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) { *value = which == 125 && device == 3; return 0; }
int cuMemAlloc_v2(uint64_t* at, size_t bytes) { own = malloc(bytes); *at = (uint64_t)own; return 0; }
int cuMemFree_v2(uint64_t at) { free((void*)at); return 0; }
int cuIpcGetMemHandle(Handle* handle, uint64_t at) { memset(handle, 1, 64); memcpy(handle, &at, 8); return 0; }
int cuIpcOpenMemHandle_v2(uint64_t* at, Handle handle, unsigned flags) {
  if (behaviour == 4 || flags != 1 || handle.reserved[63] != 1) return 801;
  memcpy(at, &handle, 8);
  return 0;
}
int cuIpcCloseMemHandle(uint64_t at) { return at == (uint64_t)own ? 0 : 1; }
int cuStreamCreate(Stream** stream, unsigned flags) {
  *stream = calloc(1, sizeof(Stream));
  return flags != 1;
}
int cuStreamQuery(Stream* stream) {
  if (stream->awaited && *stream->awaited < stream->value) return 600;
  if (stream->marked) *stream->marked = stream->mark;
  stream->awaited = stream->marked = NULL;
  return 0;
}
int cuMemsetD32Async(uint64_t at, uint32_t value, size_t count, Stream* stream) {
  if (count != 1) return 1;
  stream->marked = (uint32_t*)at;
  stream->mark = value;
  if (!stream->awaited) cuStreamQuery(stream);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
  memcpy(to, (void*)from, bytes);
  return stream->awaited != NULL;
}
int cuStreamWaitValue32_v2(Stream* stream, uint64_t at, uint32_t value, unsigned flags) {
  if (behaviour == 1) return 0;
  stream->awaited = (uint32_t*)at;
  stream->value = value;
  return flags;
}
int cuStreamWriteValue32_v2(Stream* stream, uint64_t at, uint32_t value, unsigned flags) {
  static int times;
  ++times;
  if (behaviour == 3 || (behaviour == 2 && times == 1)) return 0;
  *(volatile uint32_t*)at = value;
  return flags;
}
"""


class Together:
    """Two ranks as threads."""

    size = 2

    def __init__(self, rank, barrier, shared):
        self.rank, self._barrier, self._shared = rank, barrier, shared

    def barrier(self):
        self._barrier.wait(20)

    def allgather(self, mine):
        self._shared[self.rank] = mine.copy()
        self.barrier()
        every = np.stack([self._shared[rank] for rank in range(self.size)])
        self.barrier()
        return every

    def bcast(self, data):
        data[:] = self.allgather(data)[0]


def on_two_ranks(work):
    barrier, shared = threading.Barrier(2), {}
    found = [None, None]

    def one(rank):
        found[rank] = work(Together(rank, barrier, shared))

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "driver.so", folder / "driver.c"], check=True)
    return folder / "driver.so"


@pytest.mark.parametrize(
    "behaviour, found",
    [
        (0, "works"),
        (1, "rank 0: cuStreamWaitValue32 did not hold the stream back"),
        (2, "rank 0: the value that another process wrote did not end cuStreamWaitValue32"),
        (3, f"rank 0: rank 0: the value that another process wrote did not end cuStreamWaitValue32, {gpu_probe.STUCK}"),
        (4, "rank 1: cuIpcOpenMemHandle_v2: CUDA_ERROR_NOT_SUPPORTED"),
    ],
)
def test_values_in_shared_memory(library, tmp_path, monkeypatch, behaviour, found):
    monkeypatch.setattr(gpu_probe, "COMES_S", 0.2)
    copy = shutil.copy(library, tmp_path)  # its state is the case's
    ctypes.c_int.in_dll(ctypes.CDLL(str(copy)), "behaviour").value = behaviour
    driver = gpu_probe.Driver(str(copy))
    assert driver.attribute(gpu_probe.IPC_EVENTS) == 1 and driver.attribute(1) == 0
    assert on_two_ranks(lambda comm: gpu_probe.exchange_value(driver, comm)) == [found, found]


def test_a_rank_without_memory(library):
    """What fails before anything is shared; the other rank hears of it."""

    class Full(gpu_probe.Driver):
        def allocate(self, nbytes):
            raise gpu_probe.DriverError("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")

    driver = Full(str(library))
    wanted = "rank 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"
    assert on_two_ranks(lambda comm: gpu_probe.exchange_value(driver, comm)) == [wanted, wanted]


@pytest.mark.parametrize(
    "path, memory, events",
    [
        ("shared GPU, ordered by events", "works", "works"),
        ("shared GPU, ordered by the host (rank 1: no (x) event)", "works", "rank 1: no (x) event"),
        ("staged: a rank has no memory to share", "staged: a rank has no memory to share", "not tried"),
    ],
)
def test_what_the_first_call_found(path, memory, events):
    assert gpu_probe.ipc_of(path) == {"ipc_memory": memory, "ipc_events": events}


def write_rank(folder, *lines):
    rank = folder / "rank.py"
    head = ["import sys", "sys.argv += ['--device', 'cpu']", f"sys.path.insert(0, {str(BENCH)!r})", "import gpu_probe"]
    rank.write_text("\n".join([*head, *lines, "gpu_probe.main()", ""]))
    return rank


@pytest.fixture
def on_host(monkeypatch):
    monkeypatch.setattr(gpu_check, "place", lambda ranks, mps: ["-n", str(ranks)])


def test_the_step_on_a_machine_without_driver(on_host, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "PROBE", write_rank(tmp_path, "gpu_probe.Driver.__init__.__defaults__ = ('no.so',)"))
    rows = gpu_check.probe()["rows"]
    assert [row["mps"] for row in rows] == [False, True]
    for row in rows:
        assert "failed" not in row, row
        assert row["ipc_events"] == "not tried"
    assert rows[0]["wait_value"].startswith("rank 0: no.so: ")
    assert "wait_value" not in rows[1]  # not under MPS


def test_a_probe_that_hangs_is_ended_and_told(on_host, monkeypatch, tmp_path):
    lines = [  # its time counts from here on: what comes before takes as long as the machine needs
        "import faulthandler, functools, time",
        "arm, armed = faulthandler.dump_traceback_later, []",
        "faulthandler.dump_traceback_later = lambda s, exit: armed.append(functools.partial(arm, 2, exit=exit))",
        "def hang(*_): armed.pop()(); time.sleep(60)",
        "gpu_probe.exchange_value = hang",
    ]
    lines += ["gpu_probe.Driver = lambda: type('D', (), {'attribute': lambda self, number: 1})()"]
    monkeypatch.setattr(gpu_check, "PROBE", write_rank(tmp_path, *lines))
    row = gpu_check.probe()["rows"][0]
    assert "failed" in row and row["ipc_events_by_driver"] is True  # what was found before is kept
    assert gpu_table.has_failed({"runs": [], "probe": {"rows": [row]}})


@pytest.mark.parametrize("is_installed", [False, True])
def test_mps_that_is_refused(monkeypatch, tmp_path, is_installed):
    refused = gpu_run.Ended(2, "accdp run: --mps on: why\nmore")
    monkeypatch.setattr(
        gpu_check, "run", lambda command, *_, **__: refused if "on" in command else gpu_run.Ended(0, "")
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    if is_installed:
        (tmp_path / "nvidia-cuda-mps-control").touch(0o755)
    found = gpu_check.probe()
    word = "failed" if is_installed else "skipped"
    assert found == {"rows": [{"mps": False}, {"mps": True, word: "accdp run: --mps on: why"}]}
    assert gpu_table.has_failed({"runs": [], "probe": found}) is is_installed


def test_table_of_the_probe():
    row = {"mps": False, "ipc_memory": "works", "ipc_events": "rank 1: why", "wait_value": "works"}
    lines = gpu_table.table_of_probe({"rows": [row, {"mps": True, "skipped": "no MPS"}]})
    assert lines == [
        "2 processes without MPS: IPC memory works",
        "2 processes without MPS: IPC events rank 1: why",
        "2 processes without MPS: values in IPC memory works",
        "2 processes with MPS: skipped: no MPS",
    ]


def test_mpi_of_this_machine():
    found = gpu_check.mpi()
    assert found["cuda_aware"] in ("yes", "no") or found["cuda_aware"].startswith("unknown"), found
    assert isinstance(found["wheels"], list) and found["library"]
