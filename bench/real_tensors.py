"""Real tensors to send: weights and gradients of examples/train_char_lm.py's model, made once and kept in a folder.

    python bench/real_tensors.py build/bench [--quick]

The example's transformer, made wider, is trained on the example's text. Snapshots of all weights and gradients are
written down on the way, and pairs of weights before and after one more step of AdamW at three learning rates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import train_char_lm

MIB = 1 << 20
LEARNING_RATES = (6e-4, 6e-5, 6e-6)
_FORMAT = 1  # of the folder
_TORCH = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained and what is kept of it."""

    width: int
    layers: int
    batch: int
    steps: int
    snapshots: int  # of weights and of gradients, evenly spaced over the last three quarters of the steps
    pairs: int  # consecutive steps per learning rate

    @property
    def every(self) -> int:
        """Steps between two snapshots."""
        return max(1, self.steps * 3 // 4 // self.snapshots)


FULL = Recipe(width=256, layers=4, batch=12, steps=320, snapshots=12, pairs=11)
QUICK = Recipe(width=128, layers=2, batch=16, steps=60, snapshots=6, pairs=4)


@contextlib.contextmanager
def _width(width: int) -> Iterator[None]:
    """The example's model takes its width from its module."""
    before = train_char_lm.WIDTH
    train_char_lm.WIDTH = width
    try:
        yield
    finally:
        train_char_lm.WIDTH = before


def model_of(recipe: Recipe) -> torch.nn.Module:
    """The example's model in the size of a recipe, with its first weights; the same on every call."""
    torch.manual_seed(0)
    with _width(recipe.width):
        return train_char_lm.CharTransformer(recipe.layers)


def loss_of(model: torch.nn.Module, windows: Tensor) -> Tensor:
    """Mean loss of windows (batch, CONTEXT + 1) of codes."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def _flat(model: torch.nn.Module, gradients: bool = False) -> Tensor:
    found = [weight.grad if gradients else weight.detach() for weight in model.parameters()]
    return torch.cat([tensor.flatten() for tensor in found if tensor is not None])


class _Training:
    """AdamW with a warm-up of 20 steps, batches drawn from a seed."""

    def __init__(self, recipe: Recipe):
        self.windows, self.batch, self.taken = train_char_lm.load(), recipe.batch, 0
        self.model = model_of(recipe)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATES[0])
        self.random = torch.Generator().manual_seed(1)

    def step(self, lr: float) -> float:
        """Take one step; its gradients stay in the model. Returns the loss."""
        chosen = torch.randint(len(self.windows), (self.batch,), generator=self.random)
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = lr * min(1.0, self.taken / 20)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.windows[chosen])
        loss.backward()
        self.optimizer.step()
        return loss.item()


def make(cache: Path, recipe: Recipe) -> Path:
    """Train, unless that was done before, and return the folder with the tensors."""
    folder = cache / f"char_lm_w{recipe.width}_l{recipe.layers}_s{recipe.steps}"
    wanted = {"format": _FORMAT, "recipe": asdict(recipe), "torch": torch.__version__}
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        if json.loads((folder / "meta.json").read_text()).items() >= wanted.items():
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").unlink(missing_ok=True)
    torch.set_num_threads(1)  # a second one gains little here, and loses much where other work wants the core
    began = time.monotonic()
    training, weights, gradients, losses = _Training(recipe), [], [], []
    for step in range(recipe.steps):
        losses.append(training.step(LEARNING_RATES[0]))
        if (recipe.steps - 1 - step) % recipe.every == 0:
            weights.append(_flat(training.model))
            gradients.append(_flat(training.model, gradients=True))
    count = recipe.snapshots  # the last ones, and those first
    _write(folder / "weights", torch.cat(weights[: -count - 1 : -1]))
    _write(folder / "gradients", torch.cat(gradients[: -count - 1 : -1]))
    for lr in LEARNING_RATES:
        before, after = [], []
        for _ in range(recipe.pairs):
            before.append(_flat(training.model).bfloat16())
            training.step(lr)
            after.append(_flat(training.model).bfloat16())
        _write(folder / f"before_{lr:g}", torch.cat(before))
        _write(folder / f"after_{lr:g}", torch.cat(after))
    _write(folder / "ids", _codes())
    parameters = sum(weight.numel() for weight in training.model.parameters())
    meta = wanted | {
        "parameters": parameters,
        "first_loss": round(losses[0], 4),
        "last_loss": round(sum(losses[-20:]) / len(losses[-20:]), 4),
        "seconds": round(time.monotonic() - began, 1),
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def _codes() -> Tensor:
    """The standard library's own source as character codes, file by file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    return torch.frombuffer(bytearray(text.encode("ascii", errors="replace")), dtype=torch.uint8)


def _write(path: Path, tensor: Tensor) -> None:
    tensor.contiguous().view(torch.uint8).numpy().tofile(path)


def _read(path: Path, dtype: torch.dtype) -> Tensor:
    return torch.from_file(str(path), shared=False, size=path.stat().st_size // dtype.itemsize, dtype=dtype)


def _repeat(tensor: Tensor, count: int) -> Tensor:
    """Exactly ``count`` elements: from the middle of a tensor, or the tensor again and again; memory of its own."""
    if len(tensor) >= count:
        start = (len(tensor) - count) // 2
        return tensor[start : start + count].clone()
    return tensor.repeat(-(-count // len(tensor)))[:count].clone()


def load(folder: Path, data: str, dtype: str, nbytes: int) -> Tensor:
    """Return ``nbytes`` of something, in one dimension; the same on every rank.

    Args:
        folder: Of make().
        data: random, zeros, ids, weights, gradients, before_LR or after_LR.
        dtype: float32 or bfloat16 for weights and gradients, bfloat16 for before and after, any for others.
        nbytes: A multiple of the datatype's size.
    """
    kind = _TORCH[dtype]
    count = nbytes // kind.itemsize
    if data == "random":
        random = torch.Generator().manual_seed(7)
        return torch.randint(-(1 << 63), (1 << 63) - 1, (-(-nbytes // 8),), generator=random).view(kind)[:count].clone()
    if data == "zeros":
        return torch.zeros(count, dtype=kind)
    if data == "ids":
        return _repeat(_read(folder / "ids", torch.uint8), count).to(kind)
    if data in ("weights", "gradients"):
        stored = _read(folder / data, torch.float32)
        most = 64 * MIB // 4
        if kind is torch.float32 and nbytes <= 64 * MIB:
            return _repeat(stored[:most], count)
        return _repeat(stored.to(kind), count)
    return _repeat(_read(folder / data, torch.bfloat16), count)


def load_first(folder: Path, count: int) -> Tensor:
    """The weights of the last snapshot: the first ``count`` numbers, one model's."""
    return _read(folder / "weights", torch.float32)[:count].clone()


def describe(folder: Path, data: str, dtype: str) -> str:
    """Say in a sentence what load() returns."""
    if data == "random":
        return "random bytes"
    if data == "zeros":
        return "zeros"
    if data == "ids":
        return f"character codes of the standard library's source as {dtype}, repeated where it is too short"
    meta = json.loads((folder / "meta.json").read_text())
    recipe = Recipe(**meta["recipe"])
    model = (
        f"train_char_lm.py's model, width {recipe.width}, {recipe.layers} layers, {meta['parameters']} parameters, "
        f"AdamW at {LEARNING_RATES[0]:g}, {recipe.steps} steps (loss {meta['first_loss']} to {meta['last_loss']})"
    )
    if data in ("weights", "gradients"):
        cast = "" if dtype == "float32" else f" cast to {dtype},"
        return (
            f"{data} of {model},{cast} the last snapshots of {recipe.snapshots} that are {recipe.every} steps apart, "
            "one after the other, repeated where they are too short"
        )
    lr = data.rpartition("_")[2]
    return (
        f"weights of {model}, before and after a step at {lr}, cast to bfloat16: {recipe.pairs} consecutive steps, "
        "one after the other, repeated where they are too short"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the tensors are kept; what is there is not made again")
    parser.add_argument("--quick", action="store_true", help="a small model, few steps")
    args = parser.parse_args()
    print((make(args.folder, QUICK if args.quick else FULL) / "meta.json").read_text())
