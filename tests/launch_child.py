"""The script that every launcher starts, unchanged: it knows torch and the name "accdp" and nothing else.

Each rank checks a few collectives and prints one JSON line.
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


def check_and_report() -> None:
    """Check collectives of the default group, then print who this rank is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.arange(1000, dtype=torch.float32) + rank
    dist.all_reduce(total)
    assert torch.equal(total, torch.arange(1000.0) * size + size * (size - 1) / 2), total

    for root in range(size):
        message = torch.full((300_000,), rank, dtype=torch.int32)
        dist.broadcast(message, root)
        assert message.eq(root).all(), (root, message)

    parts = [torch.empty(3, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), rank * 1.5, dtype=torch.float64))
    assert [part.tolist() for part in parts] == [[other * 1.5] * 3 for other in range(size)], parts

    hosts: list = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    dist.barrier()
    report = {"rank": rank, "size": size, "backend": dist.get_backend(), "hosts": hosts, "pid": os.getpid()}
    print(json.dumps(report), flush=True)  # in one write: lines of ranks that share a pipe must not mix


def main(backend: str = "accdp") -> None:
    began = time.monotonic()
    dist.init_process_group(backend)
    print(f"rank {dist.get_rank()}: group after {time.monotonic() - began:.3f} s", file=sys.stderr)
    check_and_report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
