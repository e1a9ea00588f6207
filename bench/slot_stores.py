"""Measure how ranks of a node had better write what others read: by ordinary stores, past the caches, or as it pays.

    mpiexec -n 2 python bench/slot_stores.py                                    a minute
    mpiexec -n 2 -bind-to user:0,32 python bench/slot_stores.py --seconds 10    on two cores of your choice

The three (ACCDP_SLOT_STORES) take turns, in one start of the ranks; microseconds of the slowest rank, median. What is
best depends on how far apart the ranks' cores are, and virtual machines move theirs about: rounds are told apart by how
long a broadcast of 64 KiB by ordinary stores took, to within a factor of two.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import numpy as np
from marked import table

from accdp_comm import Communicator, settings
from accdp_comm.bench.graph import size_name

STORES = ("cached", "streaming", "auto")
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
OPS = ("bcast", "allreduce", "allgather", "send, recv")
TELLS_DISTANCE = ("bcast", 64 << 10, "cached")
BYTES_A_TURN, BUFFER_BYTES = 4 << 20, 32 << 20
Point = tuple[str, int, str]


def calls(comm: Communicator, nbytes: int) -> dict[str, Callable[[int], object]]:
    """The operations on the i-th of some buffers, which together are larger than a rank's own caches."""
    sets = range(max(1, min(8, BUFFER_BYTES // nbytes)))
    xs = [np.random.default_rng(i).standard_normal(nbytes // 4).astype(np.float32) for i in sets]
    out, rows = np.zeros_like(xs[0]), np.zeros((comm.size, nbytes // 4), np.float32)

    def message(i: int) -> None:  # there and back
        if comm.rank == 0:
            comm.send(xs[i], 1)
            comm.recv(out, 1)
        elif comm.rank == 1:
            comm.recv(out, 0)
            comm.send(xs[i], 0)

    return {
        "bcast": lambda i: comm.bcast(xs[i]),
        "allreduce": lambda i: comm.allreduce(xs[i], out=out),
        "allgather": lambda i: comm.allgather(xs[i], rows),
        "send, recv": message,
    }


def measure_round(world: Communicator, ways: dict[Point, Callable[[int], object]]) -> dict[Point, float]:
    """Return each point's time in microseconds."""
    took = np.zeros(len(ways))
    for number, ((_, nbytes, _), call) in enumerate(ways.items()):
        times = []
        for i in range(max(3, min(40, BYTES_A_TURN // nbytes))):
            world.barrier()
            began = time.perf_counter()
            call(i % max(1, min(8, BUFFER_BYTES // nbytes)))
            times.append(time.perf_counter() - began)
        took[number] = median(times) * 1e6
    world.allreduce(took, "max")
    return dict(zip(ways, took.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with Communicator() as world:
        if world.size < 2:
            parser.error("expected at least 2 ranks: mpiexec -n 2 python bench/slot_stores.py")
        groups = {}
        for stores in STORES:
            with settings.override(slot_stores=stores):
                groups[stores] = world.split(0)
        made = {(nbytes, stores): calls(comm, nbytes) for nbytes in SIZES for stores, comm in groups.items()}
        ways = {(op, nbytes, s): made[nbytes, s][op] for op in OPS for nbytes in SIZES for s in STORES}
        rounds, is_late, began = [], np.zeros(1), time.monotonic()
        while not is_late[0]:
            rounds.append(measure_round(world, ways))
            is_late[0] = time.monotonic() - began > args.seconds
            world.bcast(is_late)
    if world.rank:
        return
    by_distance = defaultdict(list)
    for one in rounds:
        by_distance[math.floor(math.log2(one[TELLS_DISTANCE]))].append(one)
    for _, some in sorted(by_distance.items()):
        print(f"\n{len(some)} of {len(rounds)} rounds: 64 KiB by ordinary stores in "
              f"{median(one[TELLS_DISTANCE] for one in some):.1f} us\n")  # fmt: skip
        cells = [
            [op, size_name(nbytes), *(f"{median(one[op, nbytes, s] for one in some):.1f}" for s in STORES)]
            for op in OPS
            for nbytes in SIZES
        ]
        print("\n".join(table(["operation", "bytes", *STORES], cells)), flush=True)


if __name__ == "__main__":
    main()
