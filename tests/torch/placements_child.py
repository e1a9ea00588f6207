"""Every rank of a job of test_deterministic.py: the same reductions on nodes declared in several ways.

Rank 0 prints one JSON line: by placement, a checksum over the results of all ranks.
"""

import json
import sys
import zlib

import torch
import torch.distributed as dist

from accdp_comm import Communicator, Options, settings

COUNTS = (7, 3000, 50_001)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def contribution(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Values whose sum depends on the order."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    return (values * 10.0 ** (rank % 4)).to(dtype)


def results(comm: Communicator) -> int:
    """Checksum of what this rank gets from all kinds of reductions."""
    check = 0
    for dtype in DTYPES:
        for count in COUNTS:
            for op in ("sum", "avg"):
                x = contribution(comm.rank, count, dtype)
                comm.allreduce(x, op)
                mine = contribution(comm.rank, count, dtype)
                root = comm.reduce(mine, op, root=comm.size - 1, out=torch.empty_like(mine))
                whole = contribution(comm.rank, (count // comm.size + 1) * comm.size, dtype)
                part = comm.reduce_scatter(whole, op)
                for tensor in (x, part, *([root] if comm.rank == comm.size - 1 else [])):
                    check = zlib.crc32(tensor.view(torch.uint8).numpy(), check)
    return check


def refuse_ranks_that_disagree() -> None:
    group = dist.new_group(pg_options=Options("none", deterministic=dist.get_rank() == 0))
    try:
        dist.all_reduce(torch.zeros(10), group=group)
    except dist.DistBackendError as error:
        assert "deterministic" in str(error), error
    else:
        raise AssertionError("ranks that disagree on deterministic were not refused")


def main(*placements: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("accdp")
    found = {}
    for placement in placements:
        with settings.override(topology=placement), Communicator(deterministic=True) as comm:
            every: list = [None] * comm.size
            dist.all_gather_object(every, results(comm))
            found[placement] = zlib.crc32(repr(every).encode())
    refuse_ranks_that_disagree()
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
