"""Plain PyTorch: DistributedDataParallel over accdp.

Needs: torch. The backend's name is all that differs from a script for Gloo or NCCL.

    accdp run -n 2 examples/recipes/plain_ddp.py
    accdp tune --ranks 1,2 --global-batch 64 -- examples/recipes/plain_ddp.py --steps 100000
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from accdp_comm import tuned


def train(steps: int) -> None:
    device, data = digits.device(), digits.dataset()
    sampler: DistributedSampler = DistributedSampler(data)
    loader = DataLoader(
        data, tuned("batch_size", digits.BATCH_SIZE), sampler=sampler, num_workers=tuned("workers", 0), drop_last=True
    )
    digits.check_share(loader)
    model = DistributedDataParallel(digits.network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    line = digits.summary("plain_ddp", model.module, losses)
    if dist.get_rank() == 0:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=digits.STEPS, help="at least so many, to the end of an epoch")
    args = parser.parse_args()
    dist.init_process_group("accdp")
    try:
        train(args.steps)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
