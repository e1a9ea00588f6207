"""Check and time the codecs on GPU 0; a step of bench/gpu_check.py.

    python bench/gpu_codecs.py --out FILE.json --cache FOLDER [--codecs CODEC,...] [--nbytes N] [--check]

Data are weights and gradients of a small model (bench/real_tensors.py), random bits and zeros. Every chunk of fpk and
qpk is compared, byte for byte, with what the codecs of the host write. The lz4 and bitcomp of nvCOMP may write other
bytes on a GPU: the host decodes what the GPU encoded, and the GPU what the host did. What ans encodes only the GPU can
decode, and so it is done with what nvCOMP has besides (bench/gpu_nvcomp.py). Without nvCOMP they are skipped. A row
that fails says why, and the next is measured; the file has all rows until then; the status is 1.
With --check nothing is timed, and each chunk becomes memory of its own, as compute-sanitizer wants it. Times are of all
kernels of an encoding or decoding of up to 64 MiB in chunks of 256 KiB, medians; `copy_bytes_per_s` is a
device-to-device copy of the same tensor in the same run, its bytes counted once. A link that is slower than
`wins_below_gbit` carries the tensor sooner encoded, where all stages overlap.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import itertools
import json
import signal
import statistics
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_nvcomp
import numpy as np
import real_tensors
import torch
from gpu_checks import said_of

from accdp_comm import _core, nvcomp

DEVICE = "cuda"
CHUNK = 256 << 10
NBYTES = 64 << 20
AT_ONCE = 32
REPEATS = 5
TYPES = {
    "float32": _core.Datatype.f32,
    "bfloat16": _core.Datatype.bf16,
    "float16": _core.Datatype.f16,
}
DATA = ("weights", "gradients", "random", "zeros")
CODECS = ("fpk", "qpk", "lz4", "bitcomp", "ans")
SAME_BYTES = ("fpk", "qpk")  # as the host's
OTHER_BYTES = ("lz4", "bitcomp")  # than the host's, which it reads
ALL_CODECS = (*CODECS, *gpu_nvcomp.CODECS)
CYCLES = 20_000_000  # some 10 ms
BOUND = 0.01  # qpk: of the tensor's standard deviation


def seconds(run: Callable[[], object]) -> float:
    """Median of the device's time of one call."""
    times = []
    for turn in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Until all is queued: the host takes longer to start so many kernels than they run. Not seen by bitcomp's
        # decoder, which waits for the stream.
        torch.cuda._sleep(CYCLES)
        start.record()
        run()
        end.record()
        end.synchronize()
        if turn >= 3:
            times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


class Pass:
    """One tensor through one codec on the device and back.

    Args:
        is_apart: What each chunk becomes lies in memory of its own, of our codecs' no longer than need be: so that what
            looks for overruns can see them.
    """

    def __init__(self, codec: str, dtype: str, bound: float, tensor: torch.Tensor, is_apart: bool):
        self.codec, self.type, self.bound, self._is_apart = codec, TYPES[dtype], bound, is_apart
        self.raw = tensor.view(torch.uint8)
        self.worker = _core.DeviceCodec(AT_ONCE, CHUNK)
        self.begins = list(range(0, self.raw.numel(), CHUNK))
        self._rooms = self._make_rooms()
        self.sizes = torch.zeros(len(self.begins), dtype=torch.int32, device=DEVICE)
        self.back = self.raw.clone()
        self.damaged = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.stream = torch.cuda.current_stream().cuda_stream
        self._steps = [0.0] * len(self.begins)
        self._encoded: list[bytes] = []  # of each chunk; nothing of one that goes as it is
        # Written down before: what Python takes for it would be longer than the kernels.
        jobs = [
            (self.raw.data_ptr() + begin, self._length(i), room.data_ptr(), room.numel(), 0.0)
            for i, (begin, room) in enumerate(zip(self.begins, self._rooms, strict=True))
        ]
        self._encode_runs = [(first, jobs[first : first + AT_ONCE]) for first in range(0, len(jobs), AT_ONCE)]
        self._decode_runs: list[list[tuple]] = []
        self._sources: list[torch.Tensor] = []  # of these

    def _make_rooms(self) -> list[torch.Tensor]:
        room, make = _core.DeviceCodec.room, functools.partial(torch.empty, dtype=torch.uint8, device=DEVICE)
        most = room(self.codec, self.type, CHUNK)
        if not self._is_apart:
            return list(make(len(self.begins) * most).split(most))
        if self.codec not in SAME_BYTES:  # nvCOMP may use of each as much as the longest one needs
            return [make(most) for _ in self.begins]
        return [make(room(self.codec, self.type, self._length(i))) for i in range(len(self.begins))]

    def _length(self, chunk: int) -> int:
        return min(CHUNK, self.raw.numel() - self.begins[chunk])

    def encode(self) -> None:
        """Hand the kernels of all chunks to the current stream."""
        for first, jobs in self._encode_runs:
            sizes = self.sizes.data_ptr() + 4 * first
            self.worker.encode(self.codec, self.type, self.bound, jobs, sizes, self.stream)

    def check(self) -> int:
        """Compare all chunks with the host's, both ways, where it has the codec; returns the bytes that travel."""
        self._fetch()
        total = 0
        raw = self.raw.cpu().numpy()
        for i, found in enumerate(self._encoded):
            chunk = raw[self.begins[i] : self.begins[i] + self._length(i)].tobytes()
            if self.codec in SAME_BYTES:
                wanted = _core.encode_chunk(self.codec, self.type, chunk, self.bound)
                assert found == wanted, f"{self.codec} {self.type}: chunk {i} is not what the host writes"
            total += len(found) or len(chunk)
            if self.codec == "qpk" and found:
                self._steps[i] = struct.unpack("<d", found[:8])[0]
        self._check_decoding(raw)
        if self.codec in OTHER_BYTES:
            for i, begin in enumerate(self.begins):
                chunk = raw[begin : begin + self._length(i)].tobytes()
                self._encoded[i] = _core.encode_chunk(self.codec, self.type, chunk, 0.0)
                given = np.frombuffer(self._encoded[i], np.uint8).copy()
                self._rooms[i][: given.size].copy_(torch.from_numpy(given))
            self._check_decoding(raw)
            self.encode()
            self._fetch()
            self._prepare_decoding()
        return total

    def _fetch(self) -> None:
        pairs = zip(self._rooms, self.sizes.tolist(), strict=True)
        self._encoded = [room[:size].cpu().numpy().tobytes() for room, size in pairs]

    def _prepare_decoding(self) -> None:
        encoded = [i for i, found in enumerate(self._encoded) if found]
        kept = [self._rooms[i][: len(self._encoded[i])] for i in encoded]
        self._sources = [part.clone() for part in kept] if self._is_apart else kept
        jobs = [
            (part.data_ptr(), part.numel(), self.back.data_ptr() + self.begins[i], self._length(i), self._steps[i])
            for i, part in zip(encoded, self._sources, strict=True)
        ]
        self._decode_runs = [jobs[first : first + AT_ONCE] for first in range(0, len(jobs), AT_ONCE)]

    def _check_decoding(self, raw: np.ndarray) -> None:
        self._prepare_decoding()
        self.back.zero_()
        self.decode()
        assert not self.damaged.item(), f"{self.codec} {self.type}: the device refuses chunks"
        back = self.back.cpu().numpy()
        for i, begin in enumerate(self.begins):
            if not self._encoded[i]:
                continue
            found = back[begin : begin + self._length(i)].tobytes()
            if self.codec in SAME_BYTES + OTHER_BYTES:
                wanted = _core.decode_chunk(self.codec, self.type, self._encoded[i], self._length(i))
                assert found == wanted, f"{self.codec} {self.type}: chunk {i} is not decoded as in the host"
            if not self.bound:
                assert found == raw[begin : begin + self._length(i)].tobytes(), f"{self.codec}: chunk {i} was changed"

    def decode(self) -> None:
        """The same for the way back of those that became smaller; after check() has read their sizes."""
        for jobs in self._decode_runs:
            self.worker.decode(self.codec, self.type, jobs, self.damaged.data_ptr(), self.stream)


def tensor_of(cache: Path, dtype: str, data: str, nbytes: int) -> torch.Tensor:
    """Up to ``nbytes`` of numbers on the GPU."""
    kind = getattr(torch, dtype)
    if data in ("weights", "gradients"):
        folder = real_tensors.make(cache, real_tensors.QUICK)  # once, for all rows
        return real_tensors.load(folder, data, "float32", nbytes).to(kind).to(DEVICE)
    return real_tensors.load(cache, data, "uint8", nbytes).view(kind).to(DEVICE)


def measure(options: argparse.Namespace, row: dict) -> None:
    """Check one kind of data with one codec, then time it; what is found is added to the row as it is found."""
    codec, data = row["codec"], row["data"]
    is_model = data in ("weights", "gradients")
    tensor = tensor_of(options.cache, row["dtype"], data, options.nbytes)
    bound = (BOUND * float(tensor.float().std()) if is_model else 1.0) if codec == "qpk" else 0.0
    one: Pass | gpu_nvcomp.Trial
    if codec in gpu_nvcomp.CODECS:
        one = gpu_nvcomp.Trial(nvcomp.library(), codec, tensor)
    else:
        one = Pass(codec, row["dtype"], bound, tensor, is_apart=options.check)
    one.encode()
    stored = one.check()
    nbytes = one.raw.numel()
    other = torch.empty_like(one.raw)
    row |= {"bytes": nbytes, "ratio": nbytes / stored}
    if options.check:
        return
    row["encode_bytes_per_s"] = nbytes / seconds(one.encode)
    if stored < nbytes:
        row["decode_bytes_per_s"] = nbytes / seconds(one.decode)
        slower = min(row["encode_bytes_per_s"], row["decode_bytes_per_s"])
        row["wins_below_gbit"] = 8e-9 * slower
    row["copy_bytes_per_s"] = nbytes / seconds(lambda: other.copy_(one.raw))


def why_not(codec: str, dtype: str) -> str:
    """Why the GPU does not encode that; empty where it does."""
    if codec in gpu_nvcomp.CODECS:
        have, why = nvcomp.device_codecs()
        name = gpu_nvcomp.CODECS[codec][0]
        return "" if name in have else why or f"nvCOMP has no batched {name}"
    if _core.DeviceCodec.has(codec, TYPES[dtype]):
        return ""
    return "nvCOMP does not work on this device" if nvcomp.find_directory() else "nvCOMP is not installed"


def rows(options: argparse.Namespace) -> Iterator[dict]:
    """All rows, each by itself. Our codecs first: after a kernel that faults the device does nothing more."""
    for codec, data, dtype in itertools.product(options.codecs, DATA, TYPES):
        row = {"codec": codec, "dtype": dtype, "data": data}
        try:
            if reason := why_not(codec, dtype):
                row["skipped"] = reason
            else:
                measure(options, row)
        except Exception as error:
            row["failed"] = said_of(error)
        yield row


def names(text: str) -> list[str]:
    """Return the codecs of an option; raises ArgumentTypeError where there is no such one."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(ALL_CODECS)):
        raise argparse.ArgumentTypeError(f"{','.join(unknown)}: expected of {', '.join(ALL_CODECS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the tensors of the small model")
    parser.add_argument("--codecs", type=names, default=ALL_CODECS, help="comma separated; all of them if not given")
    parser.add_argument("--nbytes", type=int, default=NBYTES, help="of a tensor; a multiple of 4")
    parser.add_argument("--check", action="store_true", help="nothing is timed")
    options = parser.parse_args()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # says where it hung when its limit ends it
    nvcomp.find()
    found = []
    for row in rows(options):
        found.append(row)
        part = options.out.with_suffix(".part")  # whole at any time, for a run that is ended before it is done
        part.write_text(json.dumps({"rows": found}))
        part.replace(options.out)
    if failed := [row for row in found if "failed" in row]:
        first = "{codec}, {data} of {dtype}: {failed}".format(**failed[0])
        sys.exit(f"gpu_codecs.py: {len(failed)} of {len(found)} rows failed, first {first}")


if __name__ == "__main__":
    main()
