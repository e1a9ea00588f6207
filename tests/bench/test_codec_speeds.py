"""bench/codec_speeds.py: a row for every codec and datatype it takes, with what the codec really makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import jobs_of_bench  # noqa: E402  (found only after the line above)

from accdp_comm import UsageError, _core, nvcomp  # noqa: E402


def test_every_codec_has_rows(tmp_path):
    page, out = tmp_path / "page.md", tmp_path / "rows.jsonl"
    words = ["--quick", "--mib", "2", "--turns", "1", "--cache", tmp_path / "tensors", "--json", out, "--page", page]
    done = subprocess.run(
        [sys.executable, str(BENCH / "codec_speeds.py"), *map(str, words)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    rows = {(row["data"], row["codec"]): row for row in jobs_of_bench.read(out)}
    assert {codec for _, codec in rows} == {
        row["name"] for row in nvcomp.codecs() if not (row["why_not"] or row["stand_in"])
    }
    # A bound allows what exact codecs cannot do, and differences of one step are small.
    assert rows["weights f32", "qpk"]["ratio"] > 3 > rows["weights f32", "fpk"]["ratio"] > 1
    assert rows["step 6e-06 bf16", "fpk"]["ratio"] > rows["step 0.0006 bf16", "fpk"]["ratio"] > 2
    assert ("weights bf16", "bitcomp_lossy") not in rows, "it takes no bfloat16"
    assert all(row["encode_gbps"] > 0 < row["decode_gbps"] for row in rows.values())
    assert len([line for line in page.read_text().splitlines() if line.startswith("| ")]) == 2 + len(rows)


def test_the_data_come_back():
    """Through a codec in chunks, the last of them short; those that do not get smaller count as they are."""
    words = np.concatenate(
        [np.linspace(1, 2, 5000, dtype=np.float32), np.frombuffer(np.random.default_rng(1).bytes(4096), "f4")]
    )
    kept = words.copy()
    stored, encode_s, decode_s = _core.encode_and_decode(
        "fpk", _core.Datatype.f32, words.ctypes.data, words.nbytes, 4096
    )
    parts = [kept[at : at + 1024].tobytes() for at in range(0, len(kept), 1024)]
    alone = [len(_core.encode_chunk("fpk", _core.Datatype.f32, part)) or len(part) for part in parts]
    assert stored == sum(alone) < kept.nbytes
    assert words.tobytes() == kept.tobytes() and encode_s > 0 < decode_s
    with pytest.raises(UsageError, match="codec=fpk: expected float32, .*chunks of whole elements"):
        _core.encode_and_decode("fpk", _core.Datatype.f32, words.ctypes.data, words.nbytes, 4098)
