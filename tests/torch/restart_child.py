"""Rank 1 dies in the middle of its first attempt; torchrun starts all ranks again, and these end well."""

import json
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("accdp", timeout=timedelta(seconds=30))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
tensor = torch.ones(100_000)
for step in range(3):
    dist.all_reduce(tensor)
    if attempt == 0 and step == 1 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
said = {"rank": dist.get_rank(), "attempt": attempt, "sum": tensor[-1].item()}
dist.destroy_process_group()
os.write(1, (json.dumps(said) + "\n").encode())
