"""One rank of bench/gpu_check.py: checks the operations on device memory, then times some beside Gloo or NCCL.

Started by ``accdp run``; every rank prints nothing, rank 0 writes one JSON file. ``--device cpu`` runs the same on host
memory, where there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accdp_comm import Communicator, allreduce_compressed, bcast_compressed, relative
from accdp_comm.hooks import compressed_allreduce

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


def check_torch(comm: Communicator, device: str, counts: list[int]) -> None:
    """Compare the torch backend's operations with what torch makes of the same inputs; none is followed by a sync."""
    for count in counts:
        everyone = [inputs(rank, count, torch.float32, device) for rank in range(comm.size)]
        total = torch.stack(everyone).sum(0)
        x = everyone[comm.rank].clone()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert torch.equal(x, total)
        out = torch.empty(comm.size * count, device=device)
        dist.all_gather_into_tensor(out, everyone[comm.rank])
        assert torch.equal(out, torch.cat(everyone))
        part = torch.empty_like(total)
        dist.reduce_scatter_tensor(part, torch.cat([everyone[comm.rank]] * comm.size))
        assert torch.equal(part, total)
        if count:
            table = inputs(comm.rank, 2 * count, torch.float32, device).reshape(2, count).t()
            dist.all_reduce(table)  # not contiguous
            flat = torch.stack([inputs(rank, 2 * count, torch.float32, device) for rank in range(comm.size)]).sum(0)
            assert torch.equal(table, flat.reshape(2, count).t())
        if comm.size > 1:
            there, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            got = torch.empty_like(total)
            works = [dist.isend(everyone[comm.rank], there), dist.irecv(got, back)]
            for work in works:
                work.wait()
            assert torch.equal(got, everyone[back])
        y = everyone[comm.rank].clone()
        bcast_compressed(y, root=comm.size - 1)
        assert torch.equal(y, everyone[-1])
        z = everyone[comm.rank].clone()
        allreduce_compressed(z)
        assert torch.equal(z, total)
    check_training(comm, device)
    if device != "cpu":
        check_capture(device)
        check_beside_capture(comm, device)


def check_float8(comm: Communicator, count: int, device: str) -> None:
    """Compare reductions of 8-bit floats with those of float32: small integers, which every sum of them fits."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        wide = torch.stack([(inputs(rank, count, torch.float32, device) % 3 - 1) for rank in range(comm.size)])
        total = wide.sum(0)
        assert torch.equal(comm.allreduce(wide[comm.rank].to(dtype)).float(), total.to(dtype).float())
        part = comm.reduce_scatter(torch.stack([wide[comm.rank].to(dtype)] * comm.size))
        assert torch.equal(part.reshape(-1).float(), total.to(dtype).float())


def check_rank_order(counts: list[int], device: str) -> None:
    """Compare deterministic reductions with those of host memory, bit by bit; their order shows in the values."""
    with Communicator(timeout_s=120, deterministic=True) as comm:
        for count in counts:
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                draw = torch.Generator().manual_seed(comm.rank)
                values = (torch.randn(count, generator=draw) * 10.0 ** (comm.rank % 4)).to(dtype)
                on_device = comm.allreduce(values.to(device, copy=True))
                assert torch.equal(on_device.cpu(), comm.allreduce(values.clone()))


def check_training(comm: Communicator, device: str) -> None:
    """Compare gradients of DistributedDataParallel, plain and with the hook, with those of all rows in one process."""
    for hook in (None, compressed_allreduce()):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8)).to(device)
        rows = torch.randn(4 * comm.size, 64, device=device, generator=torch.Generator(device).manual_seed(1))
        model(rows).square().mean().backward()
        wanted = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
        if hook:
            ddp.register_comm_hook(None, hook)
        ddp(rows[4 * comm.rank : 4 * comm.rank + 4]).square().mean().backward()
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def check_capture(device: str) -> None:
    """Expect a collective to be refused while a CUDA graph is captured, and to work after."""
    x = torch.ones(8, device=device)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(x)
    except (ValueError, RuntimeError) as error:
        assert "captured into a CUDA graph" in str(error), error
    else:
        raise AssertionError("all_reduce was not refused while a CUDA graph was captured")
    dist.all_reduce(x)
    assert torch.equal(x, torch.full_like(x, dist.get_world_size()))


def check_beside_capture(comm: Communicator, device: str) -> None:
    """Expect what a group does in the background, its first call at that, to leave rank 0's capture alone."""
    group = dist.new_group()
    x, y = torch.ones(1 << 20, device=device), torch.ones(8, device=device)
    graph = torch.cuda.CUDAGraph()
    comm.barrier()
    if comm.rank:
        time.sleep(0.3)  # the call goes on when rank 0 captures
    work = dist.all_reduce(x, group=group, async_op=True)
    if comm.rank == 0:
        with torch.cuda.graph(graph):
            y.mul_(2)
            time.sleep(0.8)
        graph.replay()
        assert torch.equal(y, torch.full_like(y, 2))
    work.wait()
    assert torch.equal(x, torch.full_like(x, comm.size))
    dist.destroy_process_group(group)


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


def gradients(count: int, device: str) -> torch.Tensor:
    """Bell-shaped values of a gradient's size, each rank its own."""
    draw = torch.Generator(device).manual_seed(dist.get_rank())
    return torch.randn(count, device=device, generator=draw) * 1e-3


def measure_compressed(comm: Communicator, device: str, most_bytes: int) -> Iterator[dict]:
    """Time compressed allreduces beside a plain one: float32 gradients, lossless and within 0.01 of their deviation."""
    for nbytes in (size for size in BYTES if size <= most_bytes):
        x = gradients(nbytes // 4, device)
        for name, codec, bound in (("none", "none", None), ("fpk", "fpk", None), ("qpk", "qpk", relative(0.01))):
            y = torch.empty_like(x)
            results = []

            def run(x=x, y=y, codec=codec, bound=bound, results=results) -> None:
                y.copy_(x)
                results[:] = [allreduce_compressed(y, codec=codec, error_bound=bound)]

            row = {"what": f"compressed {name}", "bytes": nbytes, "ranks": comm.size}
            row["s"] = seconds(run, comm, device, 10)
            yield row | {"ratio": results[0].ratio, "codec_place": results[0].codec_place}


def measure(comm: Communicator, device: str, most_bytes: int, peers: dict[str, dist.ProcessGroup]) -> Iterator[dict]:
    """Time all libraries by turns at every size: Communicator, the torch backend, and the peers."""
    for nbytes in (size for size in BYTES if size <= most_bytes):
        x = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
        repeats = 50 if nbytes <= 1 << 20 else 15
        ways = {"allreduce": lambda x=x: comm.allreduce(x, "max"), "bcast": lambda x=x: comm.bcast(x)}
        for name, group in {"torch": None, **peers}.items():
            ways |= {
                f"allreduce {name}": lambda x=x, group=group: dist.all_reduce(x, dist.ReduceOp.MAX, group),
                f"bcast {name}": lambda x=x, group=group: dist.broadcast(x, 0, group),
            }
        for name, run in ways.items():
            few = 5 if "gloo" in name and nbytes > 1 << 20 else repeats
            yield {"what": name, "bytes": nbytes, "ranks": comm.size, "s": seconds(run, comm, device, few)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most-bytes", type=int, default=BYTES[-1])
    parser.add_argument("--most-elements", type=int, default=CHECKED[-1], help="of the checks")
    parser.add_argument("--peers", default="gloo", help="backends to time beside, comma separated; may be empty")
    parser.add_argument("--compressed", action="store_true", help="time compressed allreduces, too")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.device != "cpu":
        torch.cuda.set_device(0)
    with Communicator(timeout_s=120) as comm:
        counts = [count for count in CHECKED if count <= options.most_elements]
        for count in counts:
            for dtype in TYPES:
                check(comm, count, dtype, options.device)
            check_float8(comm, count, options.device)
        check_rank_order(counts, options.device)
        store = f"file://{options.out.with_suffix('.store')}"
        limit = datetime.timedelta(seconds=60)
        dist.init_process_group("accdp", init_method=store, rank=comm.rank, world_size=comm.size, timeout=limit)
        check_torch(comm, options.device, counts)
        names = [name for name in options.peers.split(",") if name]
        peers = {name: dist.new_group(backend=name, timeout=limit) for name in names}
        measured = [measure(comm, options.device, options.most_bytes, peers)]
        if options.compressed:  # first: plain allreduces are measured in other runs, too
            measured.insert(0, measure_compressed(comm, options.device, options.most_bytes))
        rows: list[dict] = []
        for row in itertools.chain(*measured):
            rows.append(row)
            if comm.rank == 0:  # after each, for runs that are ended before they are done
                part = options.out.with_suffix(".part")
                part.write_text(json.dumps({"path": comm.device_path, "rows": rows}))
                part.replace(options.out)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
