"""One rank of bench/gpu_check.py: checks the operations on device memory, then times some beside Gloo or NCCL.

Started by ``accdp run``. Rank 0 writes a JSON file FILE.json: the way that data go before the first check, and after
each row all rows until then. What fails is added to FILE.failures, a line each, by the rank that saw it; all go on, and
such a rank ends with status 1. ``--device cpu`` runs the same on host memory, where there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import gc
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import gpu_ops
import gpu_overlap
import torch
import torch.distributed as dist
from gpu_checks import Checks, Expect, inputs, seconds
from torch.nn.parallel import DistributedDataParallel

from accdp_comm import Communicator, allreduce_compressed, bcast_compressed, nvcomp, relative, settings
from accdp_comm.hooks import compressed_allreduce

CHECKED = (0, 1, 1000, 65_537, 3_000_001)  # elements
BYTES = (4 << 10, 1 << 20, 64 << 20, 256 << 20)
SLOTS, SLOTS_BYTES = ("1M", "2M", "4M", "8M", "16M", "32M"), 64 << 20
GLOO_MOST_BYTES = 64 << 20  # through the host, of ranks that share a GPU: above, it alone would take most of the time
MEETING_S = 45.0  # that ranks wait for each other between checks: longer than inside them
CALL_S = 30.0
CODEC_S = 8.0  # of a call whose codec may have failed on one rank only
TYPES = (torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_missing = nvcomp.missing_codecs()
CODECS = [codec for codec in ("auto", "fpk", "qpk", "lz4", "bitcomp", "ans") if codec not in _missing]


def check(comm: Communicator, expect: Expect, count: int, dtype: torch.dtype, device: str) -> None:
    """Compare every collective with what torch makes of the same inputs. Results are read without synchronising."""
    mine = inputs(comm.rank, count, dtype, device)
    everyone = [inputs(rank, count, dtype, device) for rank in range(comm.size)]
    total = torch.stack(everyone).sum(0).to(dtype)
    same = torch.equal
    root = comm.size - 1
    expect(same(comm.allreduce(mine.clone()), total), "allreduce")
    expect(same(comm.allreduce(mine, out=torch.empty_like(mine)), total), "allreduce with out")
    expect(same(comm.bcast(mine.clone(), root), everyone[root]), "bcast")
    reduced = comm.reduce(mine.clone(), root=root)
    expect(comm.rank != root or same(reduced, total), "reduce")
    expect(same(comm.allgather(mine), torch.stack(everyone)), "allgather")
    gathered = comm.gather(mine, root)
    expect(comm.rank != root or same(gathered, torch.stack(everyone)), "gather")
    expect(same(comm.scatter(torch.stack(everyone), torch.empty_like(mine), root), mine), "scatter")
    many = torch.stack([mine + rank for rank in range(comm.size)])
    expect(same(comm.alltoall(many), torch.stack([one + comm.rank for one in everyone])), "alltoall")
    part = comm.reduce_scatter(torch.stack([mine] * comm.size))
    expect(same(part.reshape(-1), total), "reduce_scatter")
    if comm.size > 1:
        there, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got = torch.empty_like(mine)
        if comm.rank % 2 == 0:
            comm.send(mine, there)
        comm.recv(got, back)
        if comm.rank % 2 == 1:
            comm.send(mine, there)
        expect(same(got, everyone[back]), "send and recv")


def check_many(comm: Communicator, expect: Expect, count: int, dtype: torch.dtype, device: str) -> None:
    """What is checked of many ranks: allreduce and bcast, of Communicator and of the torch backend."""
    everyone = [inputs(rank, count, dtype, device) for rank in range(comm.size)]
    total = torch.stack(everyone).sum(0).to(dtype)
    root = comm.size - 1
    calls = {
        "allreduce": (comm.allreduce, total),
        "all_reduce": (dist.all_reduce, total),
        "bcast": (lambda x: comm.bcast(x, root), everyone[root]),
        "broadcast": (lambda x: dist.broadcast(x, root), everyone[root]),
    }
    for name, (call, wanted) in calls.items():
        x = everyone[comm.rank].clone()
        call(x)
        expect(torch.equal(x, wanted), name)


def check_torch(comm: Communicator, expect: Expect, count: int, device: str) -> None:
    """Compare the torch backend's operations with what torch makes of the same inputs; none is followed by a sync."""
    same = torch.equal
    everyone = [inputs(rank, count, torch.float32, device) for rank in range(comm.size)]
    total = torch.stack(everyone).sum(0)
    x = everyone[comm.rank].clone()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    expect(same(x, total), "all_reduce")
    out = torch.empty(comm.size * count, device=device)
    dist.all_gather_into_tensor(out, everyone[comm.rank])
    expect(same(out, torch.cat(everyone)), "all_gather_into_tensor")
    part = torch.empty_like(total)
    dist.reduce_scatter_tensor(part, torch.cat([everyone[comm.rank]] * comm.size))
    expect(same(part, total), "reduce_scatter_tensor")
    if count:
        table = inputs(comm.rank, 2 * count, torch.float32, device).reshape(2, count).t()
        dist.all_reduce(table)  # not contiguous
        flat = torch.stack([inputs(rank, 2 * count, torch.float32, device) for rank in range(comm.size)]).sum(0)
        expect(same(table, flat.reshape(2, count).t()), "all_reduce, not contiguous")
    if comm.size > 1:
        there, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got = torch.empty_like(total)
        works = [dist.isend(everyone[comm.rank], there), dist.irecv(got, back)]
        for work in works:
            work.wait()
        expect(same(got, everyone[back]), "isend and irecv")


def copy_behind(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Copy a tensor to so many elements behind the begin of memory, which is at a multiple of all that kernels want."""
    room = torch.empty(elements + tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return room[elements:].copy_(tensor)


def check_codec(comm: Communicator, expect: Expect, count: int, device: str, codec: str, group) -> None:
    """Compare what came through a codec with what was sent: exactly, or within an error bound."""
    how = {"group": group, "codec": codec, "error_bound": 0.01 if codec == "qpk" else None}
    everyone = [inputs(rank, count, torch.float32, device) for rank in range(comm.size)]
    for behind in (0, 1):
        y, z = (copy_behind(everyone[comm.rank], behind) for _ in range(2))
        bcast_compressed(y, root=comm.size - 1, **how)
        allreduce_compressed(z, **how)
        for got, wanted, what in ((y, everyone[-1], "bcast"), (z, torch.stack(everyone).sum(0), "allreduce")):
            is_near = bool((got - wanted).abs().le(how["error_bound"] or 0).all())
            expect(is_near, f"{what}_compressed of {count}, {behind} behind")
    if how["error_bound"] is None:
        x, before = everyone[comm.rank].clone(), inputs(comm.size, count, torch.float32, device)
        bcast_compressed(x, root=comm.size - 1, reference=before, **how)
        expect(torch.equal(x, everyone[-1]), f"bcast_compressed of {count} with a reference")


def check_float8(comm: Communicator, expect: Expect, count: int, device: str) -> None:
    """Compare reductions of 8-bit floats with those of float32: small integers, which every sum of them fits."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        wide = torch.stack([(inputs(rank, count, torch.float32, device) % 3 - 1) for rank in range(comm.size)])
        total = wide.sum(0)
        wanted = total.to(dtype).float()
        expect(torch.equal(comm.allreduce(wide[comm.rank].to(dtype)).float(), wanted), f"allreduce, {dtype}")
        part = comm.reduce_scatter(torch.stack([wide[comm.rank].to(dtype)] * comm.size))
        expect(torch.equal(part.reshape(-1).float(), wanted), f"reduce_scatter, {dtype}")


def check_rank_order(expect: Expect, counts: list[int], device: str) -> None:
    """Compare deterministic reductions with those of host memory, bit by bit; their order shows in the values."""
    with Communicator(timeout_s=CALL_S, deterministic=True) as comm:
        for count in counts:
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                draw = torch.Generator().manual_seed(comm.rank)
                values = (torch.randn(count, generator=draw) * 10.0 ** (comm.rank % 4)).to(dtype)
                on_device = comm.allreduce(values.to(device, copy=True))
                in_host = comm.allreduce(values.clone())
                expect(torch.equal(on_device.cpu(), in_host), f"allreduce, {count} of {dtype}")


def check_training(comm: Communicator, expect: Expect, device: str) -> None:
    """Compare gradients of DistributedDataParallel, plain and with the hook, with those of all rows in one process."""
    plain = (torch.float32, 1.3e-6, 1e-5)  # assert_close's tolerances
    lossy = (torch.bfloat16, 0.02, 1e-3)  # several roundings of bfloat16, and bounds; gradients are up to 0.05
    hooks = {"plain": None, "with the hook": compressed_allreduce(), "with its feedback": compressed_allreduce(1e-4)}
    for how, hook in hooks.items():
        dtype, rtol, atol = lossy if "feedback" in how else plain
        torch.manual_seed(0)
        layers = torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8)
        model = torch.nn.Sequential(*layers).to(device, dtype)
        rows = torch.randn(4 * comm.size, 64, device=device, generator=torch.Generator(device).manual_seed(1)).to(dtype)
        model(rows).square().mean().backward()
        wanted = [parameter.grad.clone() for parameter in model.parameters()]
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
        if hook:
            ddp.register_comm_hook(None, hook)
        for _ in range(4):  # what a step left out is in the next one
            model.zero_grad()
            ddp(rows[4 * comm.rank : 4 * comm.rank + 4]).square().mean().backward()
        for i, (parameter, gradient) in enumerate(zip(model.parameters(), wanted, strict=True)):
            is_close = torch.allclose(parameter.grad, gradient, rtol=rtol, atol=atol)
            expect(is_close, f"gradient of parameter {i}, {how}")


def check_capture(expect: Expect, device: str) -> None:
    """Expect a collective to be refused while a CUDA graph is captured, and to work after."""
    x = torch.ones(8, device=device)
    said = "it was not"
    gc.collect()  # while a graph is captured no memory may be freed
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(x)
    except (ValueError, RuntimeError) as error:
        said = str(error)
    expect("captured into a CUDA graph" in said, f"all_reduce to be refused, but {said}")
    dist.all_reduce(x)
    expect(torch.equal(x, torch.full_like(x, dist.get_world_size())), "all_reduce after it was refused")


def check_beside_capture(comm: Communicator, expect: Expect, device: str) -> None:
    """Expect what a group does in the background, its first call at that, to leave rank 0's capture alone."""
    group = dist.new_group()
    x, y = torch.ones(1 << 20, device=device), torch.ones(8, device=device)
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    comm.barrier()
    if comm.rank:
        time.sleep(0.3)  # the call goes on when rank 0 captures
    work = dist.all_reduce(x, group=group, async_op=True)
    if comm.rank == 0:
        with torch.cuda.graph(graph):
            y.mul_(2)
            time.sleep(0.8)
        graph.replay()
        expect(torch.equal(y, torch.full_like(y, 2)), "what was captured")
    work.wait()
    expect(torch.equal(x, torch.full_like(x, comm.size)), "all_reduce")
    dist.destroy_process_group(group)


def gradients(count: int, device: str) -> torch.Tensor:
    """Bell-shaped values of a gradient's size, each rank its own."""
    draw = torch.Generator(device).manual_seed(dist.get_rank())
    return torch.randn(count, device=device, generator=draw) * 1e-3


def measure_compressed(comm: Communicator, device: str, most_bytes: int, codecs: list[str]) -> Iterator[dict]:
    """Time compressed allreduces beside a plain one: float32 gradients, lossless and within 0.01 of their deviation."""
    bounds = {"fpk": None, "ans": None, "qpk": relative(0.01)}
    ways = {"none": None} | {codec: bound for codec, bound in bounds.items() if codec in codecs}
    for nbytes in (size for size in BYTES if size <= most_bytes):
        x = gradients(nbytes // 4, device)
        for codec, bound in ways.items():
            y = torch.empty_like(x)
            results = []

            def run(x=x, y=y, codec=codec, bound=bound, results=results) -> None:
                y.copy_(x)
                results[:] = [allreduce_compressed(y, codec=codec, error_bound=bound)]

            row = {"what": f"compressed {codec}", "bytes": nbytes, "ranks": comm.size}
            row["s"] = seconds(run, comm, device, 10)
            # What stands in for a codec that some GPU lacks is named.
            yield row | {name: getattr(results[0], name) for name in ("ratio", "codec", "codec_place")}


def measure(
    comm: Communicator,
    device: str,
    most_bytes: int,
    peers: dict[str, dist.ProcessGroup],
    attempt: Callable[[str, Callable[[], float]], float | None] = lambda name, take: take(),
) -> Iterator[dict]:
    """Time all libraries by turns at every size: Communicator, the torch backend, and the peers.

    What `attempt` has no time of is not tried again at larger sizes.
    """
    failed = set()
    for nbytes in (size for size in BYTES if size <= most_bytes):
        x = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
        repeats = 50 if nbytes <= 1 << 20 else 15
        ways = {"allreduce": lambda x=x: comm.allreduce(x, "max"), "bcast": lambda x=x: comm.bcast(x)}
        for name, group in {"torch": None, **peers}.items():
            if name == "gloo" and nbytes > GLOO_MOST_BYTES:
                continue
            ways |= {
                f"allreduce {name}": lambda x=x, group=group: dist.all_reduce(x, dist.ReduceOp.MAX, group),
                f"bcast {name}": lambda x=x, group=group: dist.broadcast(x, 0, group),
            }
        for name, run in ways.items():
            if name in failed:
                continue
            few = 5 if "gloo" in name and nbytes > 1 << 20 else repeats
            taken = attempt(f"time of {name}", lambda run=run, few=few: seconds(run, comm, device, few))
            if taken is None:
                failed.add(name)
            else:
                yield {"what": name, "bytes": nbytes, "ranks": comm.size, "s": taken}


def measure_slots(device: str, nbytes: int) -> Iterator[dict]:
    """Time an allreduce with slots of several sizes, each in a group of its own: small ones stay in the GPU's cache."""
    x = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    for size in SLOTS:
        with settings.override(gpu_slot_bytes=size), Communicator(timeout_s=CALL_S) as comm:
            taken = seconds(lambda x=x, comm=comm: comm.allreduce(x, "max"), comm, device, 15)
            yield {"what": f"slots of {size}", "bytes": nbytes, "ranks": comm.size, "s": taken}


class Run:
    """What a rank does, and what rank 0 writes down of it."""

    def __init__(self, comm: Communicator, options: argparse.Namespace):
        self.comm, self.options, self.device = comm, options, options.device
        self.checks = Checks(comm, options.out.with_suffix(".failures"))
        self.expect = self.checks.expect
        self.counts = [count for count in CHECKED if count <= options.most_elements]
        self.limit = datetime.timedelta(seconds=CALL_S)
        self.codecs: list[str] = []  # that passed their checks
        self.found: dict = {"gloo_most_bytes": GLOO_MOST_BYTES, "reductions": {}, "overlap": {}, "rows": []}

    def write(self) -> None:
        """Whole at any time, for runs that are ended before they are done."""
        if self.comm.rank == 0:
            part = self.options.out.with_suffix(".part")
            part.write_text(json.dumps({"device_path": self.comm.device_path, **self.found}))
            part.replace(self.options.out)

    def start_torch(self) -> None:
        store = f"file://{self.options.out.with_suffix('.store')}"
        rank, size = self.comm.rank, self.comm.size
        dist.init_process_group("accdp", init_method=store, rank=rank, world_size=size, timeout=self.limit)

    def check_reductions(self, who: str, calls: dict[str, gpu_ops.Reduce]) -> None:
        self.found["reductions"][who] = gpu_ops.check_all(self.comm, self.checks, self.device, calls, who)
        self.write()

    def check_few(self) -> None:
        """What is checked of many ranks."""
        self.start_torch()
        for count, dtype in itertools.product(self.counts, TYPES):
            with self.checks.one(f"{count} of {dtype}, of many ranks"):
                check_many(self.comm, self.expect, count, dtype, self.device)

    def check_all(self) -> None:
        comm, one, expect, counts, device = self.comm, self.checks.one, self.expect, self.counts, self.device
        for count in counts:
            for dtype in TYPES:
                with one(f"{count} of {dtype}"):
                    check(comm, expect, count, dtype, device)
            with one(f"{count} of 8 bits"):
                check_float8(comm, expect, count, device)
        with one("deterministic"):
            check_rank_order(expect, counts, device)
        self.check_reductions("Communicator", gpu_ops.of_communicator(comm))
        with one("reductions that there are not"):
            gpu_ops.check_refusals(comm, expect, device)
        self.start_torch()
        for count in counts:
            with one(f"torch backend, {count} of torch.float32"):
                check_torch(comm, expect, count, device)
        self.check_reductions("torch backend", gpu_ops.of_torch())
        with one("DistributedDataParallel"):
            check_training(comm, expect, device)
        if comm.size > 1 and self.options.most_bytes >= gpu_overlap.MOST_BYTES:
            with one("gradients during backward"):
                # With one queue a sum that is handed over while backward stands still comes behind that.
                in_one_queue = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
                told = (lambda holds, what: None) if in_one_queue else expect
                self.found["overlap"].update(gpu_overlap.check(comm, told, device))
            with one("backward and gradients at once"):
                self.found["overlap"].update(gpu_overlap.measure(comm, device))
            self.write()
        if device != "cpu":
            with one("capture"):
                check_capture(expect, device)
            with one("beside a capture"):
                check_beside_capture(comm, expect, device)

    def check_codecs(self) -> None:
        """Each in a group of its own, which is of no more use where a codec fails; nor is that codec."""
        for codec in CODECS:
            failures = len(self.checks.failures)
            with self.checks.one(f"codec {codec}"):
                group = dist.new_group(timeout=datetime.timedelta(seconds=self.options.codec_s))
                for count in self.counts:
                    check_codec(self.comm, self.expect, count, self.device, codec, group)
            if self.holds_on_all(len(self.checks.failures) == failures):
                self.codecs.append(codec)

    def holds_on_all(self, holds: bool) -> bool:
        return bool(self.comm.allreduce(torch.tensor([float(holds)]), "min").item())

    def measure(self) -> None:
        """Codecs last, since a kernel that faults leaves a device that does nothing more; first where they are timed.

        Plain allreduces are timed in other runs, too.
        """
        if self.options.compressed:
            self.check_codecs()
            self.keep(measure_compressed(self.comm, self.device, self.options.most_bytes, self.codecs))
        peers = {}
        for name in filter(None, self.options.peers.split(",")):
            with self.checks.one(f"a group of {name}"):
                peers[name] = dist.new_group(backend=name, timeout=self.limit)
            if not self.holds_on_all(name in peers):
                peers.pop(name, None)
        self.keep(measure(self.comm, self.device, self.options.most_bytes, peers, self.attempt))
        if self.options.slots:
            self.keep(measure_slots(self.device, min(SLOTS_BYTES, self.options.most_bytes)))
        if not self.options.compressed and not self.options.few:
            self.check_codecs()

    def attempt(self, name: str, take: Callable[[], float]) -> float | None:
        """What it takes; None where it fails on a rank: a peer that does not get on must not end what follows."""
        taken = None
        with self.checks.one(name):
            taken = take()
        return taken if self.holds_on_all(taken is not None) else None

    def keep(self, rows: Iterable[dict]) -> None:
        for row in rows:
            self.found["rows"].append(row)
            self.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most-bytes", type=int, default=BYTES[-1])
    parser.add_argument("--most-elements", type=int, default=CHECKED[-1], help="of the checks")
    parser.add_argument("--peers", default="gloo", help="backends to time beside, comma separated; may be empty")
    parser.add_argument("--compressed", action="store_true", help="time compressed allreduces, too")
    parser.add_argument("--codec-s", type=float, default=CODEC_S, help="time limit of a call with a codec")
    parser.add_argument("--slots", action="store_true", help="time a long allreduce with slots of several sizes, too")
    parser.add_argument("--few", action="store_true", help="check allreduce and bcast only, for many ranks")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # says where it hung when its limit ends it
    if options.device != "cpu":
        torch.cuda.set_device(0)
    with Communicator(timeout_s=MEETING_S) as comm:
        run = Run(comm, options)
        with run.checks.one("the first call"):
            comm.allreduce(torch.zeros(1, device=options.device))
        run.write()
        if options.few:
            run.check_few()
        else:
            run.check_all()
        run.measure()
        dist.destroy_process_group()
    if failures := run.checks.failures:  # only now, when no other rank waits for this one
        sys.exit(f"gpu_rank.py: {len(failures)} checks failed, first {failures[0]}")


if __name__ == "__main__":
    main()
