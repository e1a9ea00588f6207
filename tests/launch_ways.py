"""Ways to start ranks that need a few lines of Python: ``python launch_ways.py WAY RANKS INIT_METHOD [BACKEND]``."""

import os
import sys

import torch.distributed as dist
import torch.multiprocessing
from launch_child import check_and_report


def take_part(rank: int, size: int, init_method: str, backend: str) -> None:
    """Be one rank: form the group by ``init_method``, check, leave."""
    if init_method == "env://":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size)
    check_and_report()
    dist.destroy_process_group()


def spawn(size: int, init_method: str, backend: str) -> None:
    """torch.multiprocessing.spawn."""
    torch.multiprocessing.spawn(take_part, (size, init_method, backend), nprocs=size)


def fork(size: int, init_method: str, backend: str) -> None:
    """Ranks forked from a process that has imported torch, and with it the backend's entry point."""
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            take_part(rank, size, init_method, backend)
            sys.exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(f"children ended with {statuses}" if any(statuses) else 0)


def reverse(size: int, init_method: str, backend: str) -> None:
    """Under an MPI launcher, with torch's ranks in the opposite order of MPI's."""
    mpi_rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    dist.init_process_group(backend, init_method=init_method, rank=size - 1 - mpi_rank, world_size=size)
    assert dist.get_rank() == size - 1 - mpi_rank
    check_and_report()
    dist.destroy_process_group()


def main(way: str, size: str, init_method: str, backend: str = "accdp") -> None:
    {"spawn": spawn, "fork": fork, "reverse": reverse}[way](int(size), init_method, backend)


if __name__ == "__main__":
    main(*sys.argv[1:])
