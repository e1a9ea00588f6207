"""Ray Train: `TorchConfig(backend="accdp")`.

Needs: ray[train] (2.60 was tried), and accdp installed on every node of the Ray cluster. Ray forms the group before it
calls the training function; torch finds the backend by itself. Ray starts the ranks, so there is no `accdp run`; give
each a part of a GPU (`resources_per_worker={"GPU": 0.25}`) to have several on one.

    python examples/recipes/ray_digits.py --ranks 2
"""

from __future__ import annotations

import argparse
import tempfile

import digits
import ray
import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train() -> str:
    """What every rank does; rank 0's result comes back to main()."""
    data = DataLoader(digits.dataset(), digits.BATCH_SIZE, shuffle=True, drop_last=True)
    loader = ray.train.torch.prepare_data_loader(data)
    digits.check_share(loader)
    model = ray.train.torch.prepare_model(digits.network())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < digits.STEPS:
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return digits.summary("ray", model.module, losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    share = {"CPU": 1.0, "GPU": 1.0 / args.ranks} if gpu else {"CPU": 1.0}
    ray.init(num_cpus=args.ranks + 1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            torch_config=ray.train.torch.TorchConfig(backend="accdp"),
            scaling_config=ray.train.ScalingConfig(num_workers=args.ranks, use_gpu=gpu, resources_per_worker=share),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        print(trainer.fit().return_value, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
