"""Every rank of a job of test_deterministic.py: the same reductions on nodes declared in several ways.

Rank 0 prints one JSON line: by placement, a checksum over the results of all ranks.
"""

import json
import math
import sys
import zlib

import torch
import torch.distributed as dist

from accdp_comm import Communicator, Options, settings

COUNTS = (7, 3000, 50_001)
LARGE = 1_100_000  # more than what goes in one turn between nodes
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
)
# What else decides how a reduction is cut and by which way it goes: none of it may show.
WAYS = (
    {"allreduce": "ring", "chunk_bytes": "64k", "flat_bytes": "4k"},
    {"allreduce": "direct", "chunk_bytes": "8k", "flat_bytes": "0", "slot_stores": "streaming"},
)


def contribution(rank: int, count: int, dtype: torch.dtype, op: str = "sum") -> torch.Tensor:
    """Values whose sum and product depend on the order, or, for min and max, which zero or NaN is the result."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    if op in ("min", "max"):  # ranks after the first have zeros and NaNs of either sign
        values[::2] = math.copysign(0.0, rank % 2 - 0.5) if rank else 1.0 if op == "min" else -1.0
        values[2::64] = math.copysign(math.nan, rank % 2 - 0.5) if rank else 0.0
    if dtype.itemsize == 1:
        return values.to(dtype)  # few sums of larger ones would be finite
    return (values * 10.0 ** (rank % 4)).to(dtype)


def ops_of(dtype: torch.dtype) -> tuple[str, ...]:
    return ("sum", "avg", "prod") if dtype.is_complex else ("sum", "avg", "prod", "min", "max")


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def results(comm: Communicator) -> int:
    """Checksum of what this rank gets from all kinds of reductions."""
    check = 0
    for dtype in DTYPES:
        for count in (*COUNTS, LARGE) if dtype is torch.float32 else COUNTS:
            for op in ops_of(dtype) if count == COUNTS[1] else ("sum", "avg"):
                x = contribution(comm.rank, count, dtype, op)
                comm.allreduce(x, op)
                mine = contribution(comm.rank, count, dtype, op)
                root = comm.reduce(mine, op, root=comm.size - 1, out=torch.empty_like(mine))
                whole = contribution(comm.rank, (count // comm.size + 1) * comm.size, dtype, op)
                part = comm.reduce_scatter(whole, op)
                for tensor in (x, part, *([root] if comm.rank == comm.size - 1 else [])):
                    check = zlib.crc32(bytes_of(tensor), check)
    return check


def of_one(comm: Communicator) -> torch.Tensor:
    return comm.allreduce(contribution(comm.rank, COUNTS[-1], torch.float32))


def check_other_ways(placement: str, wanted: torch.Tensor) -> None:
    """Chunks, algorithms and torch groups change nothing."""
    for way in WAYS:
        with settings.override(topology=placement, **way), Communicator(deterministic=True) as comm:
            assert bytes_of(of_one(comm)) == bytes_of(wanted), f"{placement}, {way}"
    with settings.override(topology=placement):
        group = dist.new_group(pg_options=Options("none", deterministic=True))
        x = contribution(dist.get_rank(), COUNTS[-1], torch.float32)
        mine, part = x.clone(), x[: len(x) // dist.get_world_size()].clone()
        dist.all_reduce(mine, group=group)
        assert bytes_of(mine) == bytes_of(wanted), f"{placement}, dist.all_reduce"
        whole = x[: len(part) * dist.get_world_size()]
        dist.reduce_scatter_tensor(part, whole, group=group)
        at = dist.get_rank() * len(part)
        assert bytes_of(part) == bytes_of(wanted[at : at + len(part)]), f"{placement}, dist.reduce_scatter_tensor"


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
            wanted = of_one(comm)
        check_other_ways(placement, wanted)
    refuse_ranks_that_disagree()
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
