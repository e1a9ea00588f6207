"""Ranks on several hosts add up and broadcast tensors, compressed and as they are, check what arrives, and print how
long it took.

Times are of the slowest rank, the median of several rounds in which all ways take turns.
"""

import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist

import accdp_comm
from accdp_comm import Options, allreduce_compressed, bcast_compressed

COUNT = 4 << 20  # float32: 16 MiB
ROUNDS = 5
CODECS = ("none", "auto", "zstd", "fpk", "lz4")


def sparse(seed: int) -> torch.Tensor:
    """Zeros but for every fiftieth value, as in gradients of rows that were hardly used."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(COUNT, generator=generator)
    return torch.where(torch.rand(COUNT, generator=generator) < 0.02, values, 0.0)


def seconds_of(call) -> float:
    """How long the slowest rank needs from a common start."""
    dist.barrier()
    began = time.monotonic()
    call()
    took = torch.tensor([time.monotonic() - began], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def main() -> None:
    dist.init_process_group("accdp")
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts: list = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    compressed = dist.new_group(pg_options=Options(codec="auto"))
    sent = sparse(seed=0)
    here = {row["name"] for row in accdp_comm._core.codecs() if not row["why_not"] and row["datatypes"]}
    codecs = [codec for codec in CODECS if codec in here or codec in ("none", "auto")]

    def check(root: int, call) -> float:
        tensor = sent.clone() if rank == root else torch.ones_like(sent)
        took = seconds_of(lambda: call(tensor, root))
        assert torch.equal(tensor, sent), f"rank {rank}: wrong after {call}"
        return took

    # First of all, so that nothing but the operation itself can know what the link is like.
    total = sent.clone()
    first = allreduce_compressed(total)
    assert torch.equal(total, sent * size), f"rank {rank}: wrong after allreduce_compressed"

    results: dict = {}

    def stream(codec: str):
        def call(tensor: torch.Tensor, root: int) -> None:
            results[codec] = bcast_compressed(tensor, root, codec=codec)

        return call

    ways = {codec: stream(codec) for codec in codecs}
    ways["dist.broadcast"] = lambda tensor, root: dist.broadcast(tensor, root)
    ways["dist.broadcast with options"] = lambda tensor, root: dist.broadcast(tensor, root, group=compressed)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, call in ways.items():
            took = check(0, call)
            if turn:  # the first one warms up
                times[name].append(took)
    for call in ways.values():  # from the other side too
        check(size - 1, call)

    # A step of all weights, as the difference to what the receivers hold.
    new = sent + (sent != 0) * 1e-3
    mine = new.clone() if rank == 0 else sent
    bcast_compressed(mine, codec="zstd", reference=sent)
    assert torch.equal(mine, new), f"rank {rank}: wrong after a reference"
    # Rank 0 is on the first host and everybody is told how it went from there.
    wire = [{name: result.wire_bytes for name, result in results.items()}]
    dist.broadcast_object_list(wire, 0)
    report = {
        "rank": rank,
        "hosts": hosts,
        "seconds": {name: statistics.median(took) for name, took in times.items()},
        "wire_bytes": wire[0],
        "logical_bytes": sent.nbytes,
        "first_allreduce": {"codec": first.codec, "ratio": first.ratio},
    }
    os.write(1, (json.dumps(report) + "\n").encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
