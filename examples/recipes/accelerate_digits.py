"""Accelerate: its Accelerator over accdp.

Needs: accelerate (1.15 was tried; requirements/recipes.txt has it). The group is formed first, by whatever launcher
there is, and Accelerate takes the one it finds; on the CPU it would refuse every backend but gloo and mpi. It takes
ranks from variables, so they are set.

    accdp run -n 2 examples/recipes/accelerate_digits.py
"""

from __future__ import annotations

import os

import digits
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader


def join() -> None:
    """Form the group, and tell Accelerate each rank's place. The launcher left each rank one GPU, number 0."""
    dist.init_process_group("accdp")
    place = {"RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size(), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # asked for, not used: the group is there
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    join()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = digits.network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(digits.dataset(), digits.BATCH_SIZE, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    digits.check_share(loader)
    losses: list[float] = []
    while len(losses) < digits.STEPS:
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
    line = digits.summary("accelerate", accelerator.unwrap_model(model), losses)
    if accelerator.is_main_process:
        print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
