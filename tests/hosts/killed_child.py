"""The last rank kills itself in the middle of a loop of all_reduce; each other rank says, as JSON, what it was told.

Arguments: the group's time limit, and for how long the others do something else first; seconds.
"""

import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

ROUNDS_BEFORE = 3


def main(timeout_s: str, pause_s: str = "0", backend: str = "accdp") -> None:
    dist.init_process_group(backend)
    # A group of its own has the short limit: ranks may need longer than that to start on a busy machine.
    group = dist.new_group(timeout=datetime.timedelta(seconds=float(timeout_s)))
    rank, victim = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(ROUNDS_BEFORE):
        dist.all_reduce(torch.ones(1000), group=group)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(pause_s))  # in which MPI learns of it
    began = time.monotonic()
    said = []
    for _ in range(2):  # the second call: the group stays broken, with the first reason
        try:
            dist.all_reduce(torch.ones(1000), group=group)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            sys.exit(f"rank {rank}: all_reduce succeeded without rank {victim}")
    report = {"rank": rank, "seconds": time.monotonic() - began, "said": said}
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
