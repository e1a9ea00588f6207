"""DeepSpeed: `init_distributed(dist_backend="accdp")`, then its collectives and DDP over that group.

Needs: deepspeed (0.19 was tried, on the CPU: its init and its communication calls; its engine wants a GPU or its own
CPU operators). Its init compiles one of those the first time: a minute, and a C++ compiler. With ranks from MPI it is
told not to look for them itself, which would need mpi4py and a free port.

    accdp run -n 2 examples/recipes/deepspeed_digits.py
"""

from __future__ import annotations

import os

import deepspeed
import digits
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    os.environ.setdefault("LOCAL_RANK", "0")  # the launcher left each rank one GPU
    deepspeed.init_distributed(dist_backend="accdp", auto_mpi_discovery=False, verbose=False)
    data = digits.dataset()
    loader = DataLoader(data, digits.BATCH_SIZE, sampler=DistributedSampler(data), drop_last=True)
    digits.check_share(loader)
    device = digits.device()
    model = DistributedDataParallel(digits.network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < digits.STEPS:
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            deepspeed.comm.all_reduce(mean)
            losses.append(mean.item() / deepspeed.comm.get_world_size())
    line = digits.summary("deepspeed", model.module, losses)
    if dist.get_rank() == 0:
        print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
