"""bench/gpu_codecs.py: its rows stand by themselves, and are kept whatever ends it."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_check
import gpu_codecs
import gpu_table


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
