"""What the examples share: options, the process group, loading data once, and what rank 0 shows.

Nothing here depends on the backend, except that ``Report.operations`` asks accdp what it did, and that `accdp tune`
learns what a step is.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # otherwise loaded by the first optimizer: its functions keep the group that is there then
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from accdp_comm import step, tuned  # for `accdp tune`; elsewhere they do nothing

T = TypeVar("T")


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def options(description: str, *, epochs: int, batch_size: int, lr: float, data: str) -> argparse.ArgumentParser:
    """The options of every example.

    Args:
        description: What the example trains.
        epochs, batch_size, lr: Defaults; the batch is that of all ranks together.
        data: What ``--data-limit`` counts.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--backend", default="accdp", help="torch.distributed backend, such as accdp or gloo")
    parser.add_argument("--epochs", type=positive, default=epochs, help="passes over the training data")
    batch_size, workers = tuned("global_batch_size", batch_size), tuned("workers", 0)
    parser.add_argument("--batch-size", type=positive, default=batch_size, help="of all ranks together")
    parser.add_argument("--workers", type=int, default=workers, help="processes that load each rank's data")
    parser.add_argument("--lr", type=float, default=lr, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and of the order of the samples")
    parser.add_argument("--data-limit", type=positive, help=f"use at most so many {data}, for a quick look")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the last line")
    return parser


@contextmanager
def process_group(args: argparse.Namespace) -> Iterator[None]:
    """Join the process group on the way in and leave it on the way out, also after an error."""
    # Ranks share the cores of a node: a thread pool in each would only make them wait for one another.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    dist.init_process_group(args.backend)
    try:
        yield
    finally:
        # DistributedDataParallel is part of a reference cycle. Left to the end of the interpreter it would keep the
        # group's threads until then, and one that wants Python at that moment aborts the process (seen with gloo).
        gc.collect()
        dist.destroy_process_group()


def refuse(reason: str) -> None:
    """End every rank with status 2; only rank 0 says why. Collective."""
    if dist.get_rank() == 0:
        print(f"{os.path.basename(sys.argv[0])}: {reason}", file=sys.stderr, flush=True)
    dist.barrier()  # a launcher that sees one rank end may end the others, before the reason is out
    sys.exit(2)


def from_rank_0(load: Callable[[], T]) -> T:
    """Call ``load`` on rank 0 alone and give its result to all ranks, so that all train on the same data."""
    box = [load() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[return-value]


def batches(args: argparse.Namespace, *data: Tensor) -> tuple[DataLoader, DistributedSampler]:
    """This rank's share of each global batch.

    A step takes the same ``batch_size`` samples whatever the number of ranks, since the sampler deals a permutation
    that depends on seed and epoch alone round the ranks; so 1, 2 and 4 ranks train the same model up to rounding.
    The incomplete batch at the end is left out: an epoch later others are in it.
    """
    size, count = dist.get_world_size(), len(data[0])
    if args.batch_size % size:
        refuse(f"--batch-size {args.batch_size} cannot be divided evenly among {size} ranks")
    if count < args.batch_size:
        refuse(f"{count} training samples are fewer than one batch of {args.batch_size}")
    dataset = TensorDataset(*data)
    sampler: DistributedSampler = DistributedSampler(dataset, seed=args.seed, drop_last=True)
    share = BatchSampler(sampler, args.batch_size // size, drop_last=True)
    # batch_size=None: an item of `share` is a list of indices, with which the tensors are indexed once per batch.
    # Workers stay, or they would be started anew in each epoch.
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return DataLoader(dataset, sampler=share, batch_size=None, **workers), sampler


def total(*values: float) -> list[float]:
    """The sums of some numbers over all ranks; exact for counts."""
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def weights_agree(model: nn.Module) -> bool:
    """Whether all ranks hold the same weights, bit for bit, as they must after any number of equal steps."""
    low = torch.cat([weight.detach().flatten() for weight in model.parameters()]).view(torch.int32)  # float32 as bits
    high = low.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return torch.equal(low, high)


class Report:
    """What rank 0 shows while it trains; the other ranks stay silent.

    Args:
        args: The options.
        steps: Steps of all epochs together.
    """

    def __init__(self, args: argparse.Namespace, steps: int) -> None:
        self.args = args
        self.speaks = dist.get_rank() == 0 and not args.quiet
        self.console = Console(quiet=not self.speaks, highlight=False, soft_wrap=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            # Epoch lines are progress enough where a bar could not be redrawn (a file, a launcher's pipe).
            disable=not (self.speaks and self.console.is_terminal),
        )
        self.task = self.bar.add_task("training", total=steps, loss=math.nan)
        self.steps, self.seconds, self.loss = 0, 0.0, math.nan

    def __enter__(self) -> Report:
        self.bar.start()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def step(self, loss: float) -> None:
        """Count a step; ``loss`` is this rank's."""
        self.steps += 1
        step(samples=self.args.batch_size / dist.get_world_size())
        self.bar.update(self.task, advance=1, loss=loss)

    def epoch(self, epoch: int, loss_sum: float, steps: int) -> None:
        """Say how an epoch went. Collective: the mean loss is that of all ranks."""
        self.loss = total(loss_sum / steps)[0] / dist.get_world_size()
        self.seconds = time.perf_counter() - self.start
        rate = self.steps * self.args.batch_size / self.seconds
        self.console.print(f"epoch {epoch + 1:3d}/{self.args.epochs}   loss {self.loss:.4f}   {rate:8.0f} samples/s")

    def operations(self) -> list[dict]:
        """What the backend did on this rank, as a table and as rows: accdp counts it, others do not."""
        if dist.get_backend() != "accdp":
            return []
        import accdp_comm  # training does not need it

        rows = accdp_comm.stats()
        table = Table(title="what the backend did (rank 0)", title_justify="left")
        table.add_column("operation")
        for heading in ("calls", "KiB", "ms", "us/call"):
            table.add_column(heading, justify="right")
        for row in rows:
            calls, seconds = row["calls"], row["seconds"]
            each = f"{seconds / calls * 1e6:.1f}" if calls else ""
            table.add_row(row["op"], f"{calls}", f"{row['bytes'] / 1024:.1f}", f"{seconds * 1e3:.1f}", each)
        self.console.print(table)
        return rows

    def result(self, example: str, model: nn.Module, **measured: float) -> None:
        """Print the table of operations and the last line, one JSON object. Collective."""
        agree = weights_agree(model)
        rows = self.operations()
        for name, value in measured.items():
            self.console.print(f"{name.replace('_', ' ')}: {value:.4f}")
        line = {
            "example": example,
            "backend": dist.get_backend(),
            "ranks": dist.get_world_size(),
            **measured,
            "train_loss": self.loss,
            "samples_per_s": round(self.steps * self.args.batch_size / self.seconds, 1),
            "train_seconds": round(self.seconds, 3),
            "epochs": self.args.epochs,
            "steps": self.steps,
            "batch_size": self.args.batch_size,
            "seed": self.args.seed,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "weights_agree": agree,
            "torch": torch.__version__,
            "operations": rows,
        }
        if dist.get_rank() == 0:
            # JSON knows neither NaN nor infinity, which a learning rate chosen too high ends in.
            finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
            print(json.dumps(finite, allow_nan=False), flush=True)
