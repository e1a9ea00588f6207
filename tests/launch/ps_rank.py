"""A rank that test_ps.py looks at: does what its mode says until a file is there, then what lets all end."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import accdp_comm


def main(mode: str, gate: Path) -> None:
    dist.init_process_group("accdp")
    rank = dist.get_rank()
    values = torch.ones(1000)
    for _ in range(3):
        dist.all_reduce(values)
    pair = dist.new_group([1, 2])
    child = fork_idle(gate) if rank == 0 else 0
    if rank == 1:
        threading.Thread(target=open_and_close, args=(gate,)).start()
    print(json.dumps({"rank": rank, "pid": os.getpid()}), flush=True)

    def hold() -> None:
        while not gate.exists():
            time.sleep(0.02)

    if mode == "late":
        if rank == 2:
            hold()
        dist.all_reduce(values)
    elif mode == "message":
        if rank == 0:
            dist.recv(values, 1)
        elif rank == 1:
            hold()
            dist.send(values, 0)
            dist.send(values, 2)
        else:
            work = dist.irecv(values, 1)
            hold()
            work.wait()
    elif mode == "pair":
        if rank == 2:
            hold()
        if rank in (1, 2):
            dist.all_reduce(values, group=pair)
    elif mode == "background":  # each begins one collective, and comes to the other later
        first = dist.all_reduce(values, group=pair if rank == 1 else None, async_op=True)
        if rank > 0:
            hold()
            dist.all_reduce(values, group=None if rank == 1 else pair)
        else:
            time.sleep(0.3)  # by then a worker has it
        first.wait()
    elif mode == "future":  # as DDP waits, which is not seen
        work = dist.all_reduce(values, async_op=True) if rank < 2 else None
        if rank == 2:
            hold()
            work = dist.all_reduce(values, async_op=True)
        work.get_future().wait()
    elif mode == "communicator":  # whose operation another thread runs
        with accdp_comm.Communicator() as comm:
            if rank == 2:
                hold()
            accdp_comm.bcast_compressed(values, group=comm, async_op=True).wait()
    elif mode == "circle":  # of which nobody comes out
        if rank == 1:
            dist.all_reduce(values, group=pair)
        dist.all_reduce(values)
    if child:
        os.waitpid(child, 0)
    dist.destroy_process_group()


def fork_idle(gate: Path) -> int:
    """A process that has the rank's descriptors, as a data loader's worker has."""
    child = os.fork()
    if child == 0:
        while not gate.exists() and os.getppid() != 1:
            time.sleep(0.02)
        os._exit(0)
    return child


def open_and_close(gate: Path) -> None:
    """Files of which who lists them finds some that are gone by then."""
    while not gate.exists():
        os.close(os.open(os.devnull, os.O_RDONLY))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
