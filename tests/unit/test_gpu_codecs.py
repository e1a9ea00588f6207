"""bench/gpu_codecs.py: its rows stand by themselves, and are kept whatever ends it."""

import ctypes
import json
import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_check
import gpu_codecs
import gpu_table

from accdp_comm import _core


def test_each_row_of_the_codecs_stands_by_itself(monkeypatch, tmp_path):
    out = tmp_path / "codecs.json"

    def measure(cache, row):
        row["ratio"] = 2.0
        if row["dtype"] == "float16":
            raise AssertionError("chunk 3 is not what the host writes\nmore")
        if row["codec"] == "qpk" and row["data"] == "zeros":  # as where the limit comes
            raise KeyboardInterrupt

    has = type("DeviceCodec", (), {"has": staticmethod(lambda codec, dtype: codec in gpu_codecs.SAME_BYTES)})
    monkeypatch.setattr(gpu_codecs._core, "DeviceCodec", has, raising=False)
    monkeypatch.setattr(gpu_codecs.nvcomp, "find_directory", lambda: None)
    monkeypatch.setattr(gpu_codecs.nvcomp, "device_codecs", lambda: ([], "nvCOMP is not installed"))
    monkeypatch.setattr(gpu_codecs, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["gpu_codecs.py", "--out", str(out), "--cache", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        gpu_codecs.main()
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 7 * len(gpu_codecs.TYPES)  # fpk's four kinds of data, and qpk's but the last
    fpk = [row for row in rows if row["codec"] == "fpk" and row["data"] == "weights"]
    assert fpk[0] == {"codec": "fpk", "dtype": "float32", "data": "weights", "ratio": 2.0}
    failed = next(row["failed"] for row in fpk if row["dtype"] == "float16")
    assert re.fullmatch(r"AssertionError: chunk 3 is not what the host writes \(test_gpu_codecs.py:\d+\)", failed)
    monkeypatch.setattr(gpu_codecs, "DATA", ("weights",))
    with pytest.raises(SystemExit, match="2 of 21 rows failed"):
        gpu_codecs.main()
    lz4 = [row for row in json.loads(out.read_text())["rows"] if row["codec"] == "lz4"]
    assert {row["skipped"] for row in lz4} == {"nvCOMP is not installed"}
    assert gpu_table.has_failed({"runs": [], "codecs": gpu_check.kept(out)})


class HostCodec:
    """What the device's codec does, by the host's, on host memory; and what it may not touch is looked at."""

    def __init__(self, chunks, chunk_bytes):
        self.chunks, self.chunk_bytes = chunks, chunk_bytes

    @staticmethod
    def has(codec, dtype):
        return codec in gpu_codecs.SAME_BYTES

    @staticmethod
    def room(codec, dtype, chunk_bytes):
        return chunk_bytes + 64

    def encode(self, codec, dtype, bound, jobs, sizes, stream):
        assert len(jobs) <= self.chunks
        for number, (given, nbytes, out, room, _) in enumerate(jobs):
            chunk = _core.encode_chunk(codec, dtype, ctypes.string_at(given, nbytes), bound)
            assert len(chunk) <= room == self.room(codec, dtype, room - 64) and nbytes <= self.chunk_bytes
            ctypes.memmove(out, chunk, len(chunk))
            ctypes.c_uint32.from_address(sizes + 4 * number).value = len(chunk)

    def decode(self, codec, dtype, jobs, damaged, stream):
        for given, nbytes, out, most, step in jobs:
            chunk = ctypes.string_at(given, nbytes)
            assert codec != "qpk" or step == struct.unpack("<d", chunk[:8])[0]
            ctypes.memmove(out, _core.decode_chunk(codec, dtype, chunk, most), most)


@pytest.mark.parametrize("check", [True, False])
def test_a_pass_through_the_codecs_of_the_host(monkeypatch, tmp_path, check):
    """All that is not a GPU's: chunks, their places, what is compared. A codec that changes a byte is found."""
    monkeypatch.setattr(gpu_codecs, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_codecs._core, "DeviceCodec", HostCodec, raising=False)
    monkeypatch.setattr(gpu_codecs, "DATA", ("random", "zeros"))
    monkeypatch.setattr(gpu_codecs.torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(gpu_codecs, "seconds", lambda run: (run(), 1.0)[1])
    words = ["--codecs", "fpk,qpk", "--nbytes", str((1 << 20) + 4100), *(["--check"] if check else [])]
    out = tmp_path / "codecs.json"
    monkeypatch.setattr(sys, "argv", ["gpu_codecs.py", "--out", str(out), "--cache", str(tmp_path), *words])
    gpu_codecs.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["codec"] for row in rows] == ["fpk"] * 6 + ["qpk"] * 6
    assert all(row["bytes"] == (1 << 20) + 4100 and ("copy_bytes_per_s" in row) != check for row in rows)
    assert all(row["ratio"] > 100 for row in rows if row["data"] == "zeros")

    def spoils(self, codec, dtype, jobs, damaged, stream):
        HostCodec.decode(self, codec, dtype, jobs, damaged, stream)
        ctypes.c_uint8.from_address(jobs[-1][2] + jobs[-1][3] - 1).value ^= 1

    monkeypatch.setattr(gpu_codecs._core, "DeviceCodec", type("Spoils", (HostCodec,), {"decode": spoils}))
    with pytest.raises(SystemExit, match="6 of 12 rows failed, first fpk, zeros of float32: .* chunk 4 is not decoded"):
        gpu_codecs.main()
