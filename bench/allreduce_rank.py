"""One rank of a job of bench/allreduce_hosts.py: all methods take turns, sample by sample or step by step.

A sample is the slowest rank's time. Rank 0 appends one JSON line per method to a file.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import rank_job
import real_tensors
import torch
import torch.distributed as dist
import train_char_lm
from rank_job import slowest
from real_tensors import LEARNING_RATES, MIB, Recipe
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import accdp_comm
from accdp_comm.bench.statistics import spread
from accdp_comm.hooks import compressed_allreduce

BOUND = 0.01  # of the standard deviation
RELATIVE = f"relative({BOUND})"
_BATCH = 4  # windows per rank and step
_WARM_UP = 3  # steps


def mpi_allreduce(tensor: Tensor, gloo: dist.ProcessGroup) -> None:
    """MPI's own."""
    from mpi4py import MPI  # who asks for the names of methods is no rank

    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy())


# How the sum of a tensor is made, in place; each returns what accdp reports, or None.
METHODS: dict[str, Callable[[Tensor, dist.ProcessGroup], Any]] = {
    "gloo": lambda tensor, gloo: dist.all_reduce(tensor, group=gloo) and None,
    "accdp": lambda tensor, gloo: dist.all_reduce(tensor) and None,
    "MPI_Allreduce": mpi_allreduce,
    "lossless": lambda tensor, gloo: accdp_comm.allreduce_compressed(tensor),
    RELATIVE: lambda tensor, gloo: accdp_comm.allreduce_compressed(tensor, error_bound=accdp_comm.relative(BOUND)),
}


def methods_for(tensor: Tensor, gloo: dist.ProcessGroup, names: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """Those methods, of a tensor; MPI has no bfloat16."""
    takes = [name for name in names if tensor.dtype == torch.float32 or METHODS[name] is not mpi_allreduce]
    return {name: partial(METHODS[name], tensor, gloo) for name in takes}


def check(method: str, call: Callable[[], Any], tensor: Tensor, mine: Tensor, gloo: dist.ProcessGroup) -> None:
    """The method's result against a sum in float64."""
    tensor.copy_(mine)
    call()
    wanted = mine.double()
    variance = wanted.var().reshape(1)
    dist.all_reduce(wanted, group=gloo)
    dist.all_reduce(variance, group=gloo)
    # A datatype's rounding comes on top: of every contribution, and of the sums on the way.
    rounding = 8 * torch.finfo(mine.dtype).eps * wanted.abs().max().item()
    most = rounding + (BOUND * variance.sqrt().item() if method == RELATIVE else 0)
    off = slowest((tensor.double() - wanted).abs().max().item(), gloo)
    if off > most:
        raise RuntimeError(f"{method}: the sum is off by {off:.3g}, expected at most {most:.3g}")


def summary(seconds: list[float], result: Any) -> dict[str, Any]:
    row: dict[str, Any] = {**spread(seconds), "samples": len(seconds)}
    if result is None:
        return row | {"ratio": 1.0}
    return row | {"ratio": result.ratio, "codec": result.codec, "algorithm": result.algorithm}


def measure_allreduce(
    folder: Path, quick: bool, gloo: dist.ProcessGroup, dtypes: list[str], methods: list[str]
) -> list[dict[str, Any]]:
    """One row per datatype and method. Collective."""
    rows = []
    nbytes = (16 if quick else 64) * MIB
    for dtype in dtypes:
        whole = real_tensors.load(folder, "gradients", dtype, nbytes)
        # Other gradients on every rank, of the same kind.
        mine = whole.roll(dist.get_rank() * (whole.numel() // dist.get_world_size()) + dist.get_rank())
        tensor = mine.clone()
        calls = methods_for(tensor, gloo, methods)
        for method, call in calls.items():
            check(method, call, tensor, mine, gloo)
        times: dict[str, list[float]] = {method: [] for method in calls}
        results: dict[str, Any] = {}
        turns, order = list(calls), random.Random(0)  # shuffled alike on all ranks
        for _ in range(3 if quick else 9):
            order.shuffle(turns)
            for method in turns:
                tensor.copy_(mine)
                dist.barrier(group=gloo)
                began = perf_counter()
                results[method] = calls[method]()
                times[method].append(slowest(perf_counter() - began, gloo))
        rows += [
            {"data": "gradients", "dtype": dtype, "bytes": nbytes, "method": method}
            | summary(times[method], results[method])
            for method in calls
        ]
    return rows


class Trainee:
    """A copy of the model under DistributedDataParallel, with one way to average its gradients."""

    def __init__(self, method: str, recipe: Recipe, gloo: dist.ProcessGroup):
        group = gloo if method == "gloo" else None
        self.method = method
        self.model = DistributedDataParallel(real_tensors.model_of(recipe), process_group=group)
        self.hook = None
        if method in ("lossless", RELATIVE):
            bound = None if method == "lossless" else accdp_comm.relative(BOUND)
            self.hook = compressed_allreduce(bound)
            self.model.register_comm_hook(None, self.hook)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATES[0])
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def step(self, windows: Tensor, gloo: dist.ProcessGroup) -> None:
        dist.barrier(group=gloo)
        began = perf_counter()
        self.optimizer.zero_grad()
        loss = real_tensors.loss_of(self.model, windows)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(slowest(perf_counter() - began, gloo))
        mean = loss.detach().double().reshape(1)
        dist.all_reduce(mean, group=gloo)
        self.losses.append(mean.item() / dist.get_world_size())


def measure_training(recipe: Recipe, quick: bool, gloo: dist.ProcessGroup) -> list[dict[str, Any]]:
    """One row per method; all train the same model on the same windows, each its own copy. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    windows = train_char_lm.load()
    trainees = [Trainee(method, recipe, gloo) for method in ("gloo", "accdp", "lossless", RELATIVE)]
    chooser = torch.Generator().manual_seed(3)
    steps = 20 if quick else 300
    for _ in range(steps):
        chosen = torch.randint(len(windows), (size, _BATCH), generator=chooser)[rank]
        for trainee in trainees:
            trainee.step(windows[chosen], gloo)
    nbytes = sum(p.numel() * p.itemsize for p in trainees[0].model.parameters())
    return [
        {"data": "gradients of the character model", "dtype": "float32", "bytes": nbytes, "method": trainee.method}
        | summary(trainee.seconds[_WARM_UP:], trainee.hook.last if trainee.hook else None)
        | {"loss": statistics.mean(trainee.losses[-10:]), "lr": LEARNING_RATES[0]}
        for trainee in trainees
    ]


def main(part: str, folder: str, length: str, dtypes: str, methods: str, out: str) -> None:
    quick = length == "quick"
    with rank_job.world():
        gloo = dist.new_group(backend="gloo")
        if part == "training":
            rows = measure_training(real_tensors.QUICK, quick, gloo)
        else:
            rows = measure_allreduce(Path(folder), quick, gloo, dtypes.split(","), methods.split(","))
        rank_job.write(out, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
