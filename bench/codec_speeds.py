"""Measure what every codec makes of real tensors on one core of this machine: ratio, speeds, where it pays.

    python bench/codec_speeds.py                                                  a table
    taskset -c 1 python bench/codec_speeds.py --page docs/compression.md          also in that page

Weights, gradients and differences are those of bench/real_tensors.py, which makes them at its first call (a minute or
two). GB/s are of tensor bytes, checksums not included, the median of some turns; in each turn every codec has one. A
codec pays on links below the last column: there encoding, sending and decoding in a pipeline take less time than to
send the tensor as it is, as long as the core does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import marked
import numpy as np
import real_tensors
from rich.console import Console
from rich.table import Table

from accdp_comm import _core, nvcomp
from accdp_comm.bench.record import replace_json

ROOT = Path(__file__).resolve().parent.parent
BOUND = 0.01  # of lossy codecs, in standard deviations
CHUNK_BYTES = 1 << 20
HEADS = ("data", "codec", "ratio", "encode GB/s", "decode GB/s", "pays to Gbit/s")


@dataclass(frozen=True)
class Data:
    """Something to encode."""

    name: str
    words: np.ndarray  # raw, of any datatype of that width
    datatype: _core.Datatype
    deviation: float | None  # None: no bound is given


def tensors(folder: Path, nbytes: int) -> list[Data]:
    """Return what is measured, ``nbytes`` of each."""
    found = []
    for name in ("weights", "gradients"):
        for long, short in (("float32", "f32"), ("bfloat16", "bf16")):
            tensor = real_tensors.load(folder, name, long, nbytes)
            words = tensor.view(real_tensors.torch.uint8).numpy()
            datatype = _core.Datatype.__members__[short]
            deviation = _core.standard_deviation(words.ctypes.data, nbytes // datatype.itemsize, datatype)
            found.append(Data(f"{name} {short}", words, datatype, deviation))
    for rate in real_tensors.LEARNING_RATES:
        before, after = (
            real_tensors.load(folder, f"{when}_{rate:g}", "bfloat16", nbytes).view(real_tensors.torch.uint8).numpy()
            for when in ("before", "after")
        )
        out = np.empty_like(after)
        datatype = _core.delta_encode(
            after.ctypes.data, before.ctypes.data, out.ctypes.data, nbytes, _core.Datatype.bf16
        )
        found.append(Data(f"step {rate:g} bf16", out, datatype, None))
    ids = real_tensors.load(folder, "ids", "int32", nbytes).view(real_tensors.torch.uint8).numpy()
    return [*found, Data("ids i32", ids, _core.Datatype.i32, None)]


def pays_below_gbps(ratio: float, encode: float, decode: float) -> float:
    """Return the link's bytes per second, in GB/s, below which a pipeline with the codec is the faster one.

    A byte takes 1 / link as it is. With a codec it takes as long as the slowest of three stages: encoding, decoding,
    and 1 / (ratio * link), which is less in any case. So the slower side of the codec is the limit.
    """
    return min(encode, decode) if ratio > 1 else 0.0


def measure(data: Data, turns: int) -> list[dict]:
    """Return a row for every codec that works here and takes the datatype."""
    names = [
        row["name"]
        for row in nvcomp.codecs()
        if not (row["why_not"] or row["stand_in"])
        and (data.deviation or not row["lossy"])
        and _core.codec_takes(row["name"], data.datatype)
    ]
    bound = BOUND * (data.deviation or 0)
    times: dict[str, list[tuple[int, float, float]]] = {}
    for _ in range(turns):
        for name in names:
            room = data.words.copy()
            found = _core.encode_and_decode(name, data.datatype, room.ctypes.data, room.nbytes, CHUNK_BYTES, bound)
            times.setdefault(name, []).append(found)
    rows = []
    for name, found in times.items():
        ratio = data.words.nbytes / found[0][0]
        encode, decode = (data.words.nbytes / median(turn[side] for turn in found) / 1e9 for side in (1, 2))
        rows.append(
            {
                "data": data.name,
                "codec": name,
                "bytes": data.words.nbytes,
                "chunk_bytes": CHUNK_BYTES,
                "bound": bound,
                "ratio": ratio,
                "encode_gbps": encode,
                "decode_gbps": decode,
                "turns": turns,
            }
        )
    return rows


def cells(row: dict) -> list[str]:
    """Return a row's cells of the table."""
    limit = 8 * pays_below_gbps(row["ratio"], row["encode_gbps"], row["decode_gbps"])
    return [
        row["data"],
        row["codec"],
        f"{row['ratio']:.2f}",
        f"{row['encode_gbps']:.2f}",
        f"{row['decode_gbps']:.2f}" if row["ratio"] > 1.005 else "",
        f"{limit:.0f}" if row["ratio"] > 1.005 else "never",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="whose table is written anew")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench", help="folder for the real tensors")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results" / "codecs.jsonl")
    parser.add_argument("--mib", type=int, default=32, help="of each tensor")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="tensors of a small model")
    args = parser.parse_args()
    if args.mib < 1 or args.turns < 1:
        parser.error("--mib and --turns: expected at least 1")
    nvcomp.find()
    folder = real_tensors.make(args.cache, real_tensors.QUICK if args.quick else real_tensors.FULL)
    rows = [row for data in tensors(folder, args.mib << 20) for row in measure(data, args.turns)]
    lines = [cells(row) for row in rows]
    table = Table(*HEADS, title=f"codecs on one core, {_core.reduce_isa()}, chunks of {CHUNK_BYTES >> 20} MiB")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    replace_json(args.json, rows)
    if args.page:
        marked.write(args.page, "bench/codec_speeds.py", marked.table(HEADS, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
