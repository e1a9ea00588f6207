"""Ranks on several hosts add up and broadcast tensors, compressed and as they are, check what arrives, and print how
many bytes went over the links.

Bytes are those that the busiest host sent, as its network interfaces count them, the median of several rounds in which
all ways take turns. Unlike times they do not depend on what else runs on the machine.
"""

import json
import socket
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import accdp_comm
from accdp_comm import Options, allreduce_compressed, bcast_compressed

COUNT = 4 << 20  # float32: 16 MiB
ROUNDS = 3
CODECS = ("none", "auto", "zstd", "fpk", "lz4")


def sparse(seed: int) -> torch.Tensor:
    """Zeros but for every fiftieth value, as in gradients of rows that were hardly used."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(COUNT, generator=generator)
    return torch.where(torch.rand(COUNT, generator=generator) < 0.02, values, 0.0)


def sent_by_this_host() -> int:
    """Bytes that left by its network interfaces so far; a network namespace has counters of its own."""
    rows = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines() if ":" in line)
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


def link_bytes_of(call) -> int:
    """How many bytes the busiest host sends for a call."""
    dist.barrier()
    before = sent_by_this_host()
    call()
    dist.barrier()
    most = torch.tensor([sent_by_this_host() - before])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most.item())


def main() -> None:
    dist.init_process_group("accdp")
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts: list = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    compressed = dist.new_group(pg_options=Options(codec="auto"))
    sent = sparse(seed=0)
    here = {row["name"] for row in accdp_comm._core.codecs() if not row["why_not"] and row["datatypes"]}
    codecs = [codec for codec in CODECS if codec in here or codec in ("none", "auto")]

    def check(root: int, call) -> int:
        tensor = sent.clone() if rank == root else torch.ones_like(sent)
        link_bytes = link_bytes_of(lambda: call(tensor, root))
        assert torch.equal(tensor, sent), f"rank {rank}: wrong after {call}"
        return link_bytes

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
    counts: dict[str, list[int]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, call in ways.items():
            link_bytes = check(0, call)
            if turn:  # the first one warms up
                counts[name].append(link_bytes)
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
        "link_bytes": {name: statistics.median(some) for name, some in counts.items()},
        "wire_bytes": wire[0],
        "logical_bytes": sent.nbytes,
        "first_allreduce": {"codec": first.codec, "ratio": first.ratio},
    }
    print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
