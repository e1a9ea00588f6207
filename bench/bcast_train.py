"""One rank of the training job of bench/bcast_hosts.py: rank 0's parameters go to all after every step.

DistributedDataParallel averages the gradients, rank 0 takes a step of AdamW on its float32 parameters and broadcasts
them as one list, in float32 or cast to bfloat16, with which all compute the next gradients. All methods train the same
model with the same batches, each its own copy, and take turns step by step.
"""

from __future__ import annotations

import json
import statistics
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import rank_job
import real_tensors
import torch
import torch.distributed as dist
import train_char_lm
from real_tensors import LEARNING_RATES, Recipe
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import accdp_comm
from accdp_comm.bench.statistics import spread

METHODS = ("gloo", "none", "auto", "reference")
PHASES = ("step", "gradients", "update", "broadcast")
DTYPES = ("float32", "bfloat16")
_WARM_UP = 3  # steps: connections, AdamW's first steps, the first version of WeightSync
_BATCH = 4  # windows per rank
_BUCKET_BYTES = 250 << 20  # as DistributedDataParallel's synchronisation of a module


class Trainee:
    """A copy of the model and how its parameters get to the other ranks."""

    def __init__(self, method: str, dtype: str, recipe: Recipe, start: Tensor, gloo: dist.ProcessGroup):
        self.method, self.dtype = method, dtype
        self.model = real_tensors.model_of(recipe)
        self.parameters = list(self.model.parameters())
        torch.nn.utils.vector_to_parameters(start, self.parameters)
        # accdp is the default group.
        self.ddp = DistributedDataParallel(self.model, process_group=gloo if method == "gloo" else None)
        self.masters = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=LEARNING_RATES[0])
        self.sent = [p.to(getattr(torch, dtype)) for p in self.masters]  # what goes and what arrives
        self.times: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.result: Any = None
        self._broadcast = self._broadcast_by(gloo)

    def _broadcast_by(self, gloo: dist.ProcessGroup) -> Callable[[], Any]:
        if self.method == "gloo":
            return lambda: dist._broadcast_coalesced(gloo, self.sent, _BUCKET_BYTES, 0)
        if self.method == "reference":
            return accdp_comm.WeightSync(self.sent, 0).sync
        return lambda: accdp_comm.bcast_compressed(self.sent, 0, codec=self.method)

    def step(self, windows: Tensor) -> list[float]:
        """One step on this rank's windows; the moments at which its phases began and ended."""
        for p, sent in zip(self.parameters, self.sent, strict=True):
            p.data.copy_(sent)
            p.grad = None
        moments = [perf_counter()]
        real_tensors.loss_of(self.ddp, windows).backward()
        moments.append(perf_counter())
        if dist.get_rank() == 0:
            for master, p in zip(self.masters, self.parameters, strict=True):
                master.grad = p.grad
            self.optimizer.step()
            for master, sent in zip(self.masters, self.sent, strict=True):
                sent.copy_(master)
        moments.append(perf_counter())
        self.result = self._broadcast()
        moments.append(perf_counter())
        return moments

    def checksum(self) -> int:
        """Of the parameters as they were sent."""
        check = 0
        for tensor in self.sent:
            check = zlib.crc32(tensor.view(torch.uint8).flatten().numpy(), check)
        return check

    def row(self, samples: int) -> dict[str, Any]:
        """What rank 0 writes down."""
        times = {phase: values[_WARM_UP:] for phase, values in self.times.items()}
        nbytes = sum(tensor.numel() * tensor.itemsize for tensor in self.sent)
        row = {
            "part": "training",
            "data": "parameters",
            "dtype": self.dtype,
            "bytes": nbytes,
            "method": self.method,
            **spread(times["step"]),
            "samples": samples,
            "lr": LEARNING_RATES[0],
            "tensors": len(self.sent),
            "phases_s": {phase: statistics.median(values) for phase, values in times.items() if phase != "step"},
            "ratio": 1.0,
            "wire_bytes": nbytes,
        }
        if self.result is not None:
            row |= {name: getattr(self.result, name) for name in ("ratio", "wire_bytes", "codec", "algorithm")}
        return row


def train(recipe: Recipe, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Take the steps; one row per method and datatype. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    windows = train_char_lm.load()
    count = sum(p.numel() for p in real_tensors.model_of(recipe).parameters())
    start = real_tensors.load_first(folder, count)  # trained already
    trainees = [Trainee(method, dtype, recipe, start, gloo) for dtype in DTYPES for method in METHODS]
    random = torch.Generator().manual_seed(3)
    for _ in range(_WARM_UP + steps):
        chosen = torch.randint(len(windows), (size, _BATCH), generator=random)[rank]
        for trainee in trainees:
            dist.barrier(group=gloo)
            began, *moments = trainee.step(windows[chosen])
            spent = torch.tensor([moment - began for moment in moments], dtype=torch.float64)
            dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=gloo)
            gradients, updated, ended = spent.tolist()
            # Only rank 0 updates; the others wait for it in the broadcast.
            phases = (ended, gradients, updated - gradients, ended - updated)
            for phase, seconds in zip(PHASES, phases, strict=True):
                trainee.times[phase].append(seconds)
    checks: list[Any] = [None] * size
    dist.all_gather_object(checks, [trainee.checksum() for trainee in trainees])
    assert all(check == checks[0] for check in checks), "all ranks end with the same parameters"
    return [trainee.row(steps) for trainee in trainees]


def main(folder: str, steps: str, out: str) -> None:
    meta = json.loads(Path(folder, "meta.json").read_text())
    with rank_job.world():
        rank_job.write(out, train(Recipe(**meta["recipe"]), Path(folder), int(steps)))


if __name__ == "__main__":
    main(*sys.argv[1:])
