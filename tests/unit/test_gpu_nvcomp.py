"""bench/gpu_nvcomp.py without a GPU: its calls go to a library that only looks like nvCOMP, and to nvCOMP itself."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accdp_comm import nvcomp

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_check  # found only after the line above
import gpu_codecs
import gpu_nvcomp
import gpu_run

# A chunk of one byte again and again is that byte behind a 1; any other is itself behind a 0.
LIBRARY = r"""
#include <stdint.h>
#include <string.h>
typedef struct { char raw[64]; } Options;
int failing; /* 1: chunks cannot be encoded; 2: nor decoded; 3: come back shorter; 4: as something else; 5: calls */
int CompressGetMaxOutputChunkSize(size_t bytes, Options how, size_t* most) { *most = bytes + 1; return how.raw[63]; }
int CompressGetTempSize(size_t chunks, size_t bytes, Options how, size_t* room, size_t all, void* stream) {
  *room = chunks * bytes == all && !stream && !how.raw[63] ? 100 : 0;
  return 0;
}
int DecompressGetTempSize(size_t chunks, size_t bytes, Options how, size_t* room, size_t all, void* stream) {
  return CompressGetTempSize(chunks, bytes, how, room, all / 2, stream);
}
int CompressAsync(char** in, size_t* in_bytes, size_t most, size_t chunks, char* room, size_t room_bytes, char** out,
                  size_t* out_bytes, Options how, int* statuses, void* stream) {
  if (failing == 5 || room_bytes != 100 || most != CHUNK || stream) return 11;
  memset(room, 1, room_bytes);
  for (size_t i = 0; i < chunks; ++i) {
    const int same = !memcmp(in[i], in[i] + 1, in_bytes[i] - 1);
    out[i][0] = same;
    out_bytes[i] = 1 + (same ? 1 : in_bytes[i]);
    memcpy(out[i] + 1, in[i], out_bytes[i] - 1);
    statuses[i] = failing == 1 ? 12 : 0;
  }
  return 0;
}
int DecompressAsync(char** in, size_t* in_bytes, size_t* most, size_t* out_bytes, size_t chunks, char* room,
                    size_t room_bytes, char** out, Options how, int* statuses, void* stream) {
  for (size_t i = 0; i < chunks; ++i) {
    const int same = in[i][0];
    out_bytes[i] = same ? most[i] : in_bytes[i] - 1;
    same ? memset(out[i], in[i][1], most[i]) : memcpy(out[i], in[i] + 1, in_bytes[i] - 1);
    if (failing == 3) --out_bytes[i];
    if (failing == 4) out[i][most[i] - 1] ^= 1;
    statuses[i] = failing == 2 ? 12 : 0;
  }
  return 0;
}
"""
STEPS = [line.split()[1].split("(")[0] for line in LIBRARY.splitlines() if line.startswith("int ") and "(" in line]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("nvcomp") / "looks_like.so"
    names = [f"-D{step}=nvcompBatchedCascaded{step}" for step in STEPS]
    command = [compiler, "-shared", "-fPIC", "-xc", f"-DCHUNK={gpu_nvcomp.CHUNK}", *names, "-", "-o", str(path)]
    subprocess.run(command, input=LIBRARY, text=True, check=True)
    return path


@pytest.fixture
def library(built):
    found = ctypes.CDLL(str(built))
    yield found
    ctypes.c_int.in_dll(found, "failing").value = 0


def tensor():
    """A run of chunks of zeros, one of others, and a short one at the end."""
    made = torch.zeros((gpu_nvcomp.AT_ONCE + 1) * gpu_nvcomp.CHUNK + 40, dtype=torch.uint8)
    made[5 * gpu_nvcomp.CHUNK + 7] = 9
    return made.view(torch.float32)


def test_there_and_back(library):
    one = gpu_nvcomp.Trial(library, "cascaded", tensor())
    one.encode()
    # What did not become smaller travels as it is.
    assert one.check() == gpu_nvcomp.CHUNK + 2 * (gpu_nvcomp.AT_ONCE + 1)


@pytest.mark.parametrize(
    "failing, text", [(1, "not encode"), (2, "not decode"), (3, "not decode"), (4, "something else")]
)
def test_what_went_wrong(library, failing, text):
    ctypes.c_int.in_dll(library, "failing").value = failing
    one = gpu_nvcomp.Trial(library, "cascaded", tensor())
    one.encode()
    with pytest.raises(AssertionError, match=text):
        one.check()


def test_a_call_that_fails(library):
    ctypes.c_int.in_dll(library, "failing").value = 5
    with pytest.raises(RuntimeError, match="nvcompBatchedCascadedCompressAsync failed with status 11"):
        gpu_nvcomp.Trial(library, "cascaded", tensor()).encode()


@pytest.mark.parametrize("codec", gpu_nvcomp.CODECS)
@pytest.mark.parametrize("width", [2, 4])
def test_nvcomp_takes_the_options(codec, width):
    """What it says of a chunk needs no GPU; options that it does not know it refuses."""
    if gpu_codecs.why_not(codec, "float32"):
        pytest.skip(gpu_codecs.why_not(codec, "float32"))
    api = gpu_nvcomp.Batched(nvcomp.library(), codec, width)
    assert gpu_nvcomp.CHUNK <= api.room(gpu_nvcomp.CHUNK) < 1.1 * gpu_nvcomp.CHUNK
    if codec == "cascaded":
        api._compression = gpu_nvcomp.Options.from_buffer_copy(b"\xff" * 64)
        with pytest.raises(RuntimeError, match="failed with status"):
            api.room(gpu_nvcomp.CHUNK)


def test_what_works_is_asked_in_a_process_of_its_own(monkeypatch):
    assert set(gpu_check.nvcomp_functions()) == {"device_codecs", "why_not", "work_here"}
    lines = ["accdp: nvCOMP's lz4 of int8 is not used on GPU 0: it encoded nothing", '[["LZ4"], "", ["fpk", "qpk"]]']
    monkeypatch.setattr(gpu_check, "run", lambda command, limit_s: gpu_run.Ended(0, "\n".join(lines)))
    assert gpu_check.nvcomp_functions() == {
        "device_codecs": ["LZ4"],
        "why_not": "",
        "work_here": ["fpk", "qpk"],
        "said": lines[0],
    }
