"""What is sent: random bytes, zeros, a file's content or gradients; the same on every machine, so it can be checked.

A buffer is a piece of a pool that all ranks hold alike; where it starts depends on who sends it, to whom, and in which
turn. So every rank knows what it must receive. Pools of reductions hold small whole numbers, whose sums are exact.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .memory import exact_bits
from .operations import Refused

KINDS = ("random", "zeros", "weights:FILE", "gradients")
_POOL_BYTES = (1 << 22) + 4096 * 7  # not a power of two: pieces of the usual sizes start at many places
_STEPS = 10  # of training before gradients are taken
_STRIDES = (100_003, 10_007, 1_009)  # elements between the pieces of two senders, receivers and turns


class Data:
    """The source of all buffers of one run.

    Args:
        kind: One of KINDS.
        dtype: Of the elements.
        reduces: Whether buffers are added up, over ``ranks`` ranks.
    Raises:
        Refused: Unknown kind, unreadable file, gradients without torch, floats wanted as integers.
    """

    def __init__(self, kind: str, dtype: np.dtype[Any], *, reduces: bool, ranks: int):
        self.dtype = dtype
        count = _POOL_BYTES // dtype.itemsize
        if kind == "random" and reduces:
            most = _largest(dtype, ranks)
            pool = np.random.default_rng(0).integers(0, most, count, endpoint=True).astype(dtype)
            self.meaning = f"random whole numbers from 0 to {most}"
        elif kind == "random":
            pool = np.random.default_rng(0).integers(0, 256, _POOL_BYTES, np.uint8).view(dtype)
            self.meaning = "random bytes"
        elif kind == "zeros":
            pool, self.meaning = np.zeros(count, dtype), "zeros"
        elif kind.startswith("weights:") or kind == "gradients":
            floats = _gradients() if kind == "gradients" else _read(Path(kind.removeprefix("weights:")))
            pool, self.meaning = _as_elements(floats, dtype, reduces, kind), _MEANINGS[kind.partition(":")[0]]
            if kind != "gradients":
                self.meaning += f" {Path(kind).name}, {floats.size} float32"
        else:
            raise Refused(f"--data {kind}: expected one of {', '.join(KINDS)}")
        self._pool = pool

    def piece(self, count: int, source: int, target: int = 0, turn: int = 0) -> NDArray[Any]:
        """Return the ``count`` elements that rank ``source`` sends to ``target`` in this turn."""
        pool = self._pool
        start = sum(stride * step for stride, step in zip(_STRIDES, (source, target, turn), strict=True)) % len(pool)
        if start + count <= len(pool):
            return pool[start : start + count]
        return np.resize(np.roll(pool, -start), count)

    def total(self, count: int, ranks: int, turn: int) -> NDArray[Any]:
        """Return the sum of what all ranks send."""
        result = np.zeros(count, self.dtype)
        for rank in range(ranks):
            result += self.piece(count, rank, turn=turn)
        return result


def _largest(dtype: np.dtype[Any], ranks: int) -> int:
    """Return up to which number the summands of so many ranks may go, so that no sum on the way is rounded."""
    bits = exact_bits(dtype)
    if not bits:  # integers of 32 bits have room enough, and smaller ones wrap alike in any order
        return max(1, np.iinfo(np.int8).max // ranks) if dtype.itemsize == 1 else 1000
    if ranks > 1 << bits:
        raise Refused(f"-T {dtype.name}: sums over {ranks} ranks are not exact, expected {1 << bits} at most")
    return min(1000, (1 << bits) // ranks)


_MEANINGS = {
    "weights": "the float tensors of",
    "gradients": f"gradients of a small character transformer after {_STEPS} steps of AdamW, repeated where too short",
}


def _as_elements(floats: NDArray[Any], dtype: np.dtype[Any], reduces: bool, kind: str) -> NDArray[Any]:
    """Return float32 as elements of a datatype: as they are, cast to another float type, or as bytes to be moved."""
    if exact_bits(dtype):
        return floats.astype(dtype)
    if reduces:
        raise Refused(f"--data {kind}: expected a -T of floats, since sums of a float's bytes mean nothing")
    return floats.view(np.uint8)[: floats.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)


def _read(path: Path) -> NDArray[np.float32]:
    """Return all floats of a file as one float32 array: .npy, .npz, .pt/.pth/.bin (state_dict), else raw float32."""
    try:
        if path.suffix in (".npy", ".npz"):
            loaded = np.load(path, allow_pickle=False)
            arrays = [loaded] if isinstance(loaded, np.ndarray) else [loaded[name] for name in loaded.files]
        elif path.suffix in (".pt", ".pth", ".bin"):
            arrays = _read_torch(path)
        else:
            raw = path.read_bytes()
            arrays = [np.frombuffer(raw[: len(raw) // 4 * 4], np.float32)]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise Refused(f"--data weights:{path}: {error}") from error
    floats = [array.astype(np.float32).ravel() for array in arrays if array.dtype.kind == "f"]
    if not sum(array.size for array in floats):
        raise Refused(f"--data weights:{path}: expected floats, found none")
    return np.concatenate(floats)


def _read_torch(path: Path) -> list[NDArray[Any]]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, where it is no such file at all
        why = " ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise Refused(f"--data weights:{path}: not a file of tensors alone: {why}") from error
    tensors = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    return [x.float().numpy() for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _gradients() -> NDArray[np.float32]:
    """Train a small transformer on this package's own source, and return the gradients of the last step."""
    try:
        import torch
    except ImportError as error:
        raise Refused(f"--data gradients: torch makes them, and it is missing: {error}") from error
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)
    windows = codes.unfold(0, 33, 33)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Embedding(128, 64),
            torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True),
            torch.nn.Linear(64, 128),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(_STEPS):
            chosen = windows[torch.randint(len(windows), (4,))]
            optimizer.zero_grad()
            scores = model(chosen[:, :-1]).flatten(0, 1)
            torch.nn.functional.cross_entropy(scores, chosen[:, 1:].flatten()).backward()
            optimizer.step()
    return np.concatenate([p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None])
