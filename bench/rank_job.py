"""What the ranks of bench/bcast_hosts.py and bench/allreduce_hosts.py begin and end with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from accdp_comm.bench import record


@contextmanager
def world() -> Iterator[None]:
    """Be in the default process group, accdp's, with one thread for torch: the ranks share the cores. Collective."""
    torch.set_num_threads(1)
    dist.init_process_group("accdp")
    try:
        yield
    finally:
        dist.destroy_process_group()


def slowest(seconds: float, group: dist.ProcessGroup) -> float:
    """Return the largest of all ranks' numbers, by a group beside the one that is measured. Collective."""
    box = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(box, op=dist.ReduceOp.MAX, group=group)
    return box.item()


def write(out: str, rows: Sequence[dict[str, Any]]) -> None:
    """Append JSON lines to a file, on rank 0."""
    if dist.get_rank() == 0:
        record.append_json(out, rows)
