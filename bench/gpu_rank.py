"""One rank of bench/gpu_check.py: checks the collectives on device memory, then times allreduce and bcast.

Started by ``accdp run``; every rank prints nothing, rank 0 writes one JSON file. ``--device cpu`` runs the same on host
memory, where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from accdp_comm import Communicator

CHECKED = (0, 1, 1000, 65_537, 3_000_001)  # elements
BYTES = (4 << 10, 1 << 20, 64 << 20, 256 << 20)
TYPES = (torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def inputs(rank: int, count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Small integers, so that sums are exact in every type; made on the device, by work on the current stream."""
    return ((torch.arange(count, device=device) * 7 + rank) % 13).to(dtype)


def check(comm: Communicator, count: int, dtype: torch.dtype, device: str) -> None:
    """Compare every collective with what torch makes of the same inputs. Results are read without synchronising."""
    mine = inputs(comm.rank, count, dtype, device)
    everyone = [inputs(rank, count, dtype, device) for rank in range(comm.size)]
    total = torch.stack(everyone).sum(0).to(dtype)
    same = torch.equal
    root = comm.size - 1
    assert same(comm.allreduce(mine.clone()), total)
    assert same(comm.allreduce(mine, out=torch.empty_like(mine)), total)
    assert same(comm.bcast(mine.clone(), root), everyone[root])
    reduced = comm.reduce(mine.clone(), root=root)
    assert comm.rank != root or same(reduced, total)
    assert same(comm.allgather(mine), torch.stack(everyone))
    gathered = comm.gather(mine, root)
    assert comm.rank != root or same(gathered, torch.stack(everyone))
    assert same(comm.scatter(torch.stack(everyone), torch.empty_like(mine), root), mine)
    many = torch.stack([mine + rank for rank in range(comm.size)])
    assert same(comm.alltoall(many), torch.stack([one + comm.rank for one in everyone]))
    part = comm.reduce_scatter(torch.stack([mine] * comm.size))
    assert same(part.reshape(-1), total)
    if comm.size > 1:
        there, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got = torch.empty_like(mine)
        if comm.rank % 2 == 0:
            comm.send(mine, there)
        comm.recv(got, back)
        if comm.rank % 2 == 1:
            comm.send(mine, there)
        assert same(got, everyone[back])


def seconds(run, comm: Communicator, device: str, repeats: int) -> float:
    """Median of the slowest rank's time of one call, the device's work included."""
    slowest = torch.empty(1, dtype=torch.float64)
    times = []
    for turn in range(repeats + 3):
        comm.barrier()
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        slowest[0] = time.perf_counter() - start
        comm.allreduce(slowest, "max")
        if turn >= 3:
            times.append(float(slowest[0]))
    return statistics.median(times)


def measure(comm: Communicator, device: str, most_bytes: int, gloo: bool) -> list[dict]:
    """Time both libraries by turns at every size."""
    rows = []
    for nbytes in (size for size in BYTES if size <= most_bytes):
        x = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
        repeats = 50 if nbytes <= 1 << 20 else 15
        ways = {"allreduce": lambda x=x: comm.allreduce(x, "max"), "bcast": lambda x=x: comm.bcast(x)}
        if gloo:
            ways |= {
                "allreduce gloo": lambda x=x: dist.all_reduce(x, dist.ReduceOp.MAX),
                "bcast gloo": lambda x=x: dist.broadcast(x, 0),
            }
        for name, run in ways.items():
            few = 5 if "gloo" in name and nbytes > 1 << 20 else repeats
            rows.append({"what": name, "bytes": nbytes, "ranks": comm.size, "s": seconds(run, comm, device, few)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most-bytes", type=int, default=BYTES[-1])
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.device != "cpu":
        torch.cuda.set_device(0)
    with Communicator(timeout_s=120) as comm:
        for count in CHECKED:
            for dtype in TYPES:
                check(comm, count, dtype, options.device)
        if not options.no_gloo:
            store = options.out.with_suffix(".store")
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
        rows = measure(comm, options.device, options.most_bytes, not options.no_gloo)
        path = comm.device_path
        if comm.rank == 0:
            options.out.write_text(json.dumps({"path": path, "rows": rows}))
        if not options.no_gloo:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
