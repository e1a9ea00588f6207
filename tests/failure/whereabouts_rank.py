"""A rank of test_whereabouts.py: the last one does not come to what the others wait for, and they say what it does."""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(mode: str, gate: Path) -> None:
    dist.init_process_group("accdp", timeout=timedelta(seconds=2))
    rank = dist.get_rank()
    pids: list = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    pair = dist.new_group([1, 2], timeout=timedelta(seconds=30))
    values = torch.ones(3)
    dist.barrier()
    try:
        if rank == 2 and mode == "elsewhere":
            dist.all_reduce(values, group=pair)
        elif rank == 2 and mode == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rank == 2:
            while not gate.exists():
                time.sleep(0.02)
        elif mode == "message" and rank == 0:
            dist.recv(values, 2)
        elif mode != "message":
            dist.all_reduce(values)
    except dist.DistBackendError as error:
        print(json.dumps({"rank": rank, "said": str(error)}), flush=True)
    if rank == 0:
        gate.touch()
    if rank == 0 and mode == "stopped":
        os.kill(pids[2], signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
