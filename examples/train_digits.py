"""Train a small CNN on scikit-learn's handwritten digits with DistributedDataParallel.

    accdp run -n 4 examples/train_digits.py               or mpiexec -n 4 python examples/train_digits.py
    torchrun --nproc-per-node 4 examples/train_digits.py  or python examples/train_digits.py (a world of one)

The 1797 images of 8 x 8 pixels come with scikit-learn; a fixed fifth of them is the test set. The global batch is the
same for any number of ranks, so 1, 2 and 4 ranks reach the same accuracy from the same seed, with any backend.
"""

from __future__ import annotations

import argparse

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (n, 1, 8, 8) in 0..1 and their digits, then test images and digits. The split never changes."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images, digits, test_size=0.2, stratify=digits, random_state=0)
    train, test = (torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 for part in parts[:2])
    return train, torch.tensor(parts[2]), test, torch.tensor(parts[3])


def network() -> nn.Module:
    """Two convolutions and a linear layer; no batch statistics, so a rank's share of the batch does not matter."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, digits: Tensor) -> tuple[float, float]:
    """Accuracy and mean loss over the test set; each rank looks at its share, and no image is seen twice."""
    rank, size = dist.get_rank(), dist.get_world_size()
    scores, expected = model(images[rank::size]), digits[rank::size]
    right = (scores.argmax(1) == expected).sum().item()
    loss = F.cross_entropy(scores, expected, reduction="sum").item()
    right, loss, count = common.total(right, loss, len(expected))
    return right / count, loss / count


def train(args: argparse.Namespace) -> None:
    """Train and report. The model, which holds on to the process group, is gone when this returns."""
    train_images, train_digits, test_images, test_digits = common.from_rank_0(load)
    limit = args.data_limit
    loader, sampler = common.batches(args, train_images[:limit], train_digits[:limit])
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    with common.Report(args, steps) as report:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            loss_sum = 0.0
            for images, digits in loader:
                # Smoothed labels: 1437 images are few, and a network too sure of them errs more on new ones.
                loss = F.cross_entropy(model(images), digits, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.item()
                report.step(loss.item())
            report.epoch(epoch, loss_sum, len(loader))

    accuracy, test_loss = evaluate(model.module, test_images[:limit], test_digits[:limit])
    report.result("train_digits", model.module, test_accuracy=accuracy, test_loss=test_loss)


def main() -> None:
    args = common.options(__doc__.splitlines()[0], epochs=15, batch_size=64, lr=8e-3, data="images").parse_args()
    with common.process_group(args):
        train(args)


if __name__ == "__main__":
    main()
