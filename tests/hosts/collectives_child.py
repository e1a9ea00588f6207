"""Ranks on several hosts check collectives of the world and of groups across and within hosts, and print one JSON line.

Values are small integers, so that sums are exact in every datatype and order.
"""

import json
import socket
import sys

import torch
import torch.distributed as dist

COUNTS = (1, 1000, 300_001)
DTYPES = (torch.float32, torch.int64, torch.bfloat16)


def value(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank contributes."""
    return ((torch.arange(count) + 3 * rank) % 7).to(dtype)


def total(ranks: list[int], count: int, dtype: torch.dtype) -> torch.Tensor:
    """The sum of what these ranks contribute."""
    return torch.stack([value(rank, count, torch.int64) for rank in ranks]).sum(0).to(dtype)


def same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert torch.equal(got, wanted), f"rank {dist.get_rank()}, {what}: {got} instead of {wanted}"


def check_reductions(group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    rank = dist.get_rank()
    for count in COUNTS:
        for dtype in DTYPES:
            what = f"{count} of {dtype} among {ranks}"
            mine = value(rank, count, dtype)
            dist.all_reduce(mine, group=group)
            same(mine, total(ranks, count, dtype), f"all_reduce {what}")
            for root in (ranks[0], ranks[-1]):
                mine = value(rank, count, dtype)
                dist.reduce(mine, root, group=group)
                if rank == root:
                    same(mine, total(ranks, count, dtype), f"reduce to {root} {what}")
            pieces = [value(rank + part, count, dtype) for part in range(len(ranks))]
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(out, pieces, group=group)
            part = ranks.index(rank)
            same(out, total([other + part for other in ranks], count, dtype), f"reduce_scatter {what}")


def check_movement(group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    rank, me = dist.get_rank(), ranks.index(dist.get_rank())
    for count in COUNTS:
        what = f"{count} among {ranks}"
        mine = value(rank, count, torch.float32)
        everyone = [value(other, count, torch.float32) for other in ranks]
        for position, root in enumerate(ranks):
            message = mine.clone()
            dist.broadcast(message, root, group=group)
            same(message, everyone[position], f"broadcast from {root} {what}")
        parts = [torch.empty(count) for _ in ranks]
        dist.all_gather(parts, mine, group=group)
        for position, part in enumerate(parts):
            same(part, everyone[position], f"all_gather {what}")
        root = ranks[-1]
        dist.gather(mine, parts if rank == root else None, root, group=group)
        for position, part in enumerate(parts):
            same(part, everyone[position], f"gather {what}")
        out = torch.empty(count)
        dist.scatter(out, everyone if rank == root else None, root, group=group)
        same(out, mine, f"scatter {what}")
    # Rank i sends i + j + 1 elements to rank j.
    send = [me + other + 1 for other in range(len(ranks))]
    got = torch.empty(sum(send))
    dist.all_to_all_single(got, torch.full((sum(send),), float(me)), send, send, group=group)
    wanted = torch.cat([torch.full((me + other + 1,), float(other)) for other in range(len(ranks))])
    same(got, wanted, f"all_to_all_single among {ranks}")
    dist.barrier(group=group)


def check_ring() -> None:
    """Send to the next rank, receive from the previous one, small and large."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in COUNTS:
        got = torch.empty(count)
        sent = dist.isend(value(rank, count, torch.float32), (rank + 1) % size, tag=count)
        dist.recv(got, (rank - 1) % size, tag=count)
        sent.wait()
        same(got, value((rank - 1) % size, count, torch.float32), f"ring of {count}")


def main(backend: str = "accdp") -> None:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts: list = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    everyone = list(range(size))
    check_reductions(None, everyone)
    check_movement(None, everyone)
    check_ring()

    # One group per host, made by its members alone. First, since torch derives the name of such a group from the number
    # of groups that a rank is in.
    neighbours = [other for other in everyone if hosts[other] == hosts[rank]]
    local = dist.new_group(neighbours, use_local_synchronization=True)
    check_reductions(local, neighbours)
    check_movement(local, neighbours)
    # Across hosts, in an order that is not the world's; only members call what comes after the creation.
    across = [size - 1, 0]
    group = dist.new_group(across)
    if rank in across:
        ranks = dist.get_process_group_ranks(group)
        check_reductions(group, ranks)
        check_movement(group, ranks)
    # The first rank of each host, then the world again.
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    group = dist.new_group(leaders)
    if rank in leaders:
        check_reductions(group, leaders)
    check_reductions(None, everyone)
    dist.barrier()
    print(json.dumps({"rank": rank, "size": size, "hosts": hosts}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
