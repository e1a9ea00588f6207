"""Train a small transformer, character by character, on the source of Python's own standard library.

    accdp run -n 4 examples/train_char_lm.py               or mpiexec -n 4 python examples/train_char_lm.py
    torchrun --nproc-per-node 4 examples/train_char_lm.py  or python examples/train_char_lm.py (a world of one)

The text is the beginning of a fixed list of modules, so it is there on every machine and the same wherever Python is.
Rank 0 reads it for all: hosts with different versions of Python still train on one text.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MODULES = ("argparse", "ast", "csv", "enum", "functools", "heapq", "inspect", "pickle", "random", "shutil", "zipfile")
MODULE_CHARS = 16 * 1024  # of each module, from its beginning
ALPHABET = 128  # ASCII; the few other characters in the text become a question mark
CONTEXT = 64  # characters that the model sees at once
WIDTH = 64


def load() -> Tensor:
    """The text as windows (n, CONTEXT + 1) of character codes, each window starting with the last one's last."""
    text = ""
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RuntimeError(f"this Python comes without the source of its module {name}")
        text += Path(spec.origin).read_text(encoding="utf-8")[:MODULE_CHARS]
    codes = torch.tensor(list(text.encode("ascii", errors="replace")))
    return codes.unfold(0, CONTEXT + 1, CONTEXT).contiguous()


class CharTransformer(nn.Module):
    """Predicts each next character from those before it; (batch, CONTEXT) codes in, scores over ALPHABET out."""

    def __init__(self, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.character = nn.Embedding(ALPHABET, WIDTH)
        self.position = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        for table in (self.character.weight, self.position):
            nn.init.normal_(table, std=0.1)  # both alike: attention has to learn soon which character came just before
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, heads, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, ALPHABET)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.character(codes) + self.position
        # Made anew each time: as a buffer of the module, DistributedDataParallel would broadcast it in each step.
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=codes.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.scores(self.norm(hidden))


@torch.no_grad()
def evaluate(model: nn.Module, windows: Tensor) -> tuple[float, float]:
    """Share of characters guessed right, and mean loss, over windows kept from training; each rank takes its share."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    right = loss = count = 0.0
    for window in windows[rank::size].split(64):
        scores, expected = model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten()
        right += (scores.argmax(1) == expected).sum().item()
        loss += F.cross_entropy(scores, expected, reduction="sum").item()
        count += len(expected)
    right, loss, count = common.total(right, loss, count)
    return right / count, loss / count


def train(args: argparse.Namespace) -> None:
    """Train and report. The model, which holds on to the process group, is gone when this returns."""
    # Every tenth window is kept for the test: all modules have their part in both.
    windows = common.from_rank_0(load)[: args.data_limit]
    test = torch.arange(len(windows)) % 10 == 9
    if not test.any():
        common.refuse(f"--data-limit {args.data_limit} leaves nothing to test with; 10 or more do")
    loader, sampler = common.batches(args, windows[~test])
    model = DistributedDataParallel(CharTransformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    per_epoch = min(args.steps or len(loader), len(loader))
    steps = args.epochs * per_epoch
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )

    with common.Report(args, steps) as report:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            loss_sum = 0.0
            for _, (window,) in zip(range(per_epoch), loader, strict=False):
                loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.item()
                report.step(loss.item())
            report.epoch(epoch, loss_sum, per_epoch)

    accuracy, test_loss = evaluate(model.module, windows[test])
    bits = test_loss / math.log(2)
    measured = {"test_accuracy": accuracy, "test_loss": test_loss, "bits_per_character": bits}
    report.result("train_char_lm", model.module, **measured)


def main() -> None:
    parser = common.options(__doc__.splitlines()[0], epochs=5, batch_size=32, lr=1e-2, data="windows of 64 characters")
    parser.add_argument("--steps", type=common.positive, help="take at most so many steps in an epoch")
    args = parser.parse_args()
    with common.process_group(args):
        train(args)


if __name__ == "__main__":
    main()
