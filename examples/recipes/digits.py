"""What the recipes train: a small network on scikit-learn's handwritten digits, and the line that rank 0 prints."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 30
BATCH_SIZE = 32  # of each rank


def dataset() -> TensorDataset:
    """1797 images (64,) in 0..1 and their digits."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits))


def check_share(batches: DataLoader) -> None:
    """Refuse what would be an epoch without a step."""
    if len(batches) == 0:
        raise SystemExit(f"the share of a rank among {dist.get_world_size()} is less than one batch")


def network() -> nn.Module:
    """The same first weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def device() -> torch.device:
    """The GPU that the launcher gave to this rank, which is the only one it sees; the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def summary(recipe: str, model: nn.Module, losses: list[float]) -> str:
    """How the training went, as JSON. Collective: says whether all ranks ended with the same weights."""
    weights = torch.cat([weight.detach().flatten().cpu() for weight in model.parameters()])
    low, high = weights.clone(), weights.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    line = {
        "recipe": recipe,
        "ranks": dist.get_world_size(),
        "backend": dist.get_backend(),
        "steps": len(losses),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "weights_agree": torch.equal(low, high),
    }
    return json.dumps(line)
