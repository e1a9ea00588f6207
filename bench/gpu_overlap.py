"""Whether gradients of DistributedDataParallel travel while backward goes on; part of bench/gpu_rank.py.

check(): backward stands still on the device between the gradients of the last layer and those of the first, for long;
the last layer's allreduce must be done before backward goes on. Points in time are events: when a bucket is there, on
the stream of backward; when its sum is there, on a stream that waits for that alone. Nothing else than the order of
streams can make the sum come later. measure(): without standing still, backward and allreduces one after the other
against both at once. On host memory the same with the host's clock.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from gpu_checks import Expect, seconds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accdp_comm import Communicator

HOLD_S = 0.25  # far more than the allreduce takes, for ranks that take turns on the GPU, too
CYCLES_PER_S = 2e9  # of a GPU: not more, so that it stands still for as long at least
STEPS = 3
WIDTH = 1024  # of a layer: 4 MiB of gradients, which fill a bucket
REPEATS = 10
MOST_BYTES = 16 << 20  # of a message here


def mark(device: str) -> torch.cuda.Event | float:
    """Now, in the order of the current stream."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: torch.cuda.Event | float, last: torch.cuda.Event | float) -> float:
    """Seconds from one mark to another, which may be the earlier one; both have come."""
    if isinstance(first, float):
        return last - first
    return first.elapsed_time(last) * 1e-3


def stand_still(device: str) -> None:
    """The current stream, on host memory the calling thread, does nothing for a while."""
    if device == "cpu":
        time.sleep(HOLD_S)
    else:
        torch.cuda._sleep(int(HOLD_S * CYCLES_PER_S))


def buckets(device: str, layers: int, width: int) -> tuple[nn.Sequential, DistributedDataParallel]:
    """Layers of which each fills a bucket, once DDP has seen in which order gradients come."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
    return model, DistributedDataParallel(model, bucket_cap_mb=4 * width * width / (1 << 20) * 0.9)


def check(comm: Communicator, expect: Expect, device: str) -> dict:
    """Expect the first sum to be there before backward ends; returns by how much on the rank where it was closest."""
    model, ddp = buckets(device, 2, WIDTH)
    ready: list = []
    done: list = []

    # Those on which futures call back are of a pool, and share queues of the device with backward's now and then.
    beside = None if device == "cpu" else torch.cuda.Stream(priority=-1)

    def hook(group, bucket):
        ready.append(mark(device))
        work = dist.all_reduce(bucket.buffer().div_(comm.size), async_op=True)

        def summed(future):
            with torch.cuda.stream(beside):  # nothing where it is None
                work.wait()
                done.append(mark(device))
            return future.value()[0]

        return work.get_future().then(summed)

    ddp.register_comm_hook(None, hook)
    x = torch.ones(4, WIDTH, device=device)
    ddp(x).sum().backward()  # in its first step DDP has other buckets
    model[0].register_forward_hook(
        lambda module, inputs, output: output.register_hook(lambda _: stand_still(device)) and None
    )
    spare = []
    for _ in range(STEPS):
        ready.clear(), done.clear()
        ddp(x).sum().backward()
        if device != "cpu":
            torch.cuda.synchronize()
        if len(ready) == 2 and len(done) == 2:
            spare.append((between(done[0], ready[1]), between(ready[0], ready[1])))
    expect(len(spare) == STEPS, f"2 buckets in each step, but had {len(ready)}, of which {len(done)} were summed")
    if not spare:
        return {}
    left, held = (statistics.median(column) for column in zip(*spare, strict=True))
    expect(left > 0, f"the last layer's gradients, which came {-left * 1e3:.1f} ms after backward had ended")
    least = torch.tensor([left, held], dtype=torch.float64)
    comm.allreduce(least, "min")
    return {"during_backward": bool(least[0] > 0), "spare_s": float(least[0]), "stood_still_s": float(least[1])}


def measure(comm: Communicator, device: str) -> dict:
    """Seconds of the slowest rank; hidden: how much of the shorter one is, of backward and allreduces."""
    width, rows = (256, 64) if device == "cpu" else (2048, 4096)
    model, ddp = buckets(device, 6, width)
    x = torch.randn(rows, width, device=device)
    gradients = [torch.ones(width * width + width, device=device) for _ in model]

    def step() -> None:
        ddp(x).square().mean().backward()

    def alone() -> None:
        with ddp.no_sync():
            step()

    def travel() -> None:
        for work in [dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True) for one in gradients]:
            work.wait()

    step(), step()  # DDP makes its buckets anew
    found = {
        f"{name}_s": seconds(run, comm, device, REPEATS)
        for name, run in (("step_alone", alone), ("allreduces", travel), ("together", step))
    }
    apart = found["step_alone_s"] + found["allreduces_s"]
    return found | {"hidden": (apart - found["together_s"]) / min(found["step_alone_s"], found["allreduces_s"])}
