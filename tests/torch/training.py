"""A small model, its data, and its training in one process, which distributed training must equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

STEPS = 4
ROWS = 12  # of the global batch; 1, 2, 3 and 4 ranks divide it


def make_model(seed: int = 0) -> nn.Module:
    """A perceptron in float64, so that the order of additions hardly shows."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def batches(steps: int = STEPS, rows: int = ROWS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Global batches: inputs and targets."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(rows, 5, generator=generator, dtype=torch.float64),
            torch.randn(rows, 3, generator=generator, dtype=torch.float64),
        )
        for _ in range(steps)
    ]


def share(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """A rank's equal part of the rows."""
    return tensor.chunk(size)[rank]


def train(
    model: nn.Module,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> nn.Module:
    """Plain training; gives the model back."""
    optimizer = make_optimizer(model.parameters(), lr=0.1)
    for inputs, targets in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def shares(rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of all batches."""
    return [(share(inputs, rank, size), share(targets, rank, size)) for inputs, targets in batches()]


def assert_same_parameters(model: nn.Module, expected: nn.Module, tolerance: float = 1e-9) -> None:
    """Close, parameter by parameter."""
    pairs = zip(model.state_dict().items(), expected.state_dict().items(), strict=True)
    for (name, got), (_, want) in pairs:
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
