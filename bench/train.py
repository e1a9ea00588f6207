"""Training benchmark: throughput and time to a loss of the examples' models, for a backend, ranks, codec and loaders.

    accdp run -n 4 bench/train.py --model digits --backend accdp
    accdp run -n 2 bench/train.py --model char_lm --backend gloo --steps 200 --target-loss 2.2 --json train.jsonl

The same global batches in the same order for any backend and number of ranks. A step is timed from the batch's request
to the end of the optimizer's step, on the slowest rank; waiting for the loader is also given by itself. Rank 0 prints
one line and, with --json, appends it as JSON. run() does the same for a caller that has a process group already.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import train_char_lm
import train_digits

from accdp_comm.bench import record
from accdp_comm.bench.operations import Refused

_WINDOW = 10  # steps whose mean loss is compared with the target: one batch alone may be lucky


@dataclass(frozen=True)
class Recipe:
    """What one of the examples' models needs."""

    data: Callable[[], tuple[Tensor, ...]]  # tensors of samples, first dimension alike
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
    batch_size: int  # of all ranks together
    lr: float
    target_loss: float


def _digits_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def _char_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    windows = batch[0]
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


MODELS = {
    "digits": Recipe(lambda: train_digits.load()[:2], train_digits.network, _digits_loss, 64, 8e-3, 0.7),
    "char_lm": Recipe(lambda: (train_char_lm.load(),), train_char_lm.CharTransformer, _char_loss, 32, 1e-2, 2.4),
}


@dataclass(frozen=True)
class Plan:
    """One run."""

    model: str = "digits"
    steps: int = 100  # measured
    warm_up: int = 5  # before those; they train, too
    batch_size: int | None = None  # of all ranks together; None: the model's
    loader_workers: int = 0  # processes per rank that load batches
    target_loss: float | None = None  # None: the model's
    seed: int = 0
    device: str = "cpu"


class _Loading:
    """Batches of this rank without end; an epoch's order depends on seed and epoch alone."""

    def __init__(self, plan: Plan, samples: tuple[Tensor, ...], batch_size: int):
        dataset = TensorDataset(*samples)
        self._sampler: DistributedSampler = DistributedSampler(dataset, seed=plan.seed, drop_last=True)
        share = BatchSampler(self._sampler, batch_size // dist.get_world_size(), drop_last=True)
        self._loader = DataLoader(
            dataset,
            sampler=share,
            batch_size=None,
            num_workers=plan.loader_workers,
            persistent_workers=plan.loader_workers > 0,  # else they would be started anew in each epoch
            pin_memory=plan.device == "cuda",
        )
        self._epoch, self._batches = 0, iter(self._loader)

    def next(self) -> Any:
        """Return the next batch, of the next epoch where one has ended."""
        for batch in self._batches:
            return batch
        self._epoch += 1
        self._sampler.set_epoch(self._epoch)
        self._batches = iter(self._loader)
        return next(self._batches)


def run(plan: Plan) -> dict[str, Any]:
    """Train and measure in the default process group; return the row, alike on all ranks. Collective.

    Raises:
        Refused: The batch cannot be divided among the ranks, or a batch is more than the data.
    """
    recipe, ranks = MODELS[plan.model], dist.get_world_size()
    batch_size = plan.batch_size or recipe.batch_size
    target = recipe.target_loss if plan.target_loss is None else plan.target_loss
    if batch_size % ranks:
        raise Refused(f"--batch-size {batch_size} cannot be divided evenly among {ranks} ranks")
    samples = recipe.data()
    if len(samples[0]) < batch_size:
        raise Refused(f"--batch-size {batch_size} is more than the {len(samples[0])} samples")
    torch.manual_seed(plan.seed)
    device = torch.device("cuda", torch.cuda.current_device()) if plan.device == "cuda" else torch.device("cpu")
    model = DistributedDataParallel(recipe.model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr)
    loading = _Loading(plan, samples, batch_size)
    steps, loads, losses = [], [], []
    for _ in range(plan.warm_up + plan.steps):
        began = time.perf_counter()
        batch = tuple(tensor.to(device, non_blocking=True) for tensor in loading.next())
        loaded = time.perf_counter()
        optimizer.zero_grad()
        loss = recipe.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the device
        steps.append(time.perf_counter() - began)
        loads.append(loaded - began)
    times = _of_all_ranks([steps, loads, losses], device)
    return _row(plan, batch_size, target, times) | {"parameters": sum(p.numel() for p in model.parameters())}


def _of_all_ranks(columns: list[list[float]], device: torch.device) -> np.ndarray:
    """Return (rank, column, step). The numbers go over the group that trained, after it has trained."""
    mine = torch.tensor(columns, dtype=torch.float64, device=device)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts).cpu().numpy()


def _row(plan: Plan, batch_size: int, target: float, times: np.ndarray) -> dict[str, Any]:
    slowest = times[:, 0].max(axis=0)
    measured, losses = slowest[plan.warm_up :] * 1e6, times[:, 2].mean(axis=0)
    means = np.convolve(losses, np.ones(_WINDOW) / _WINDOW, "valid")  # [i]: of steps i to i + _WINDOW - 1
    below = np.flatnonzero(means <= target)
    reached = int(below[0]) + _WINDOW if below.size else None
    return {
        "op": f"train:{plan.model}",
        "bytes": 0,
        "datatype": "mpi_float",
        "ranks": dist.get_world_size(),
        "median_us": float(np.median(measured)),
        "p10_us": float(np.percentile(measured, 10)),
        "p90_us": float(np.percentile(measured, 90)),
        "samples_per_s": batch_size * len(measured) / float(measured.sum()) * 1e6,  # with what few steps wait for
        "loader_us": float(np.median(times[:, 1].max(axis=0)[plan.warm_up :])) * 1e6,
        "target_loss": target,
        "steps_to_loss": reached,
        "seconds_to_loss": float(slowest[:reached].sum()) if reached else None,
        "last_loss": float(means[-1]),
        "batch_size": batch_size,
        **{name: value for name, value in asdict(plan).items() if name not in ("model", "target_loss", "batch_size")},
    }


def join(backend: str, codec: str, ranks_per_gpu: int | None, device: str) -> None:
    """Join the default process group, with accdp's broadcast codec, on this rank's GPU. Collective.

    Raises:
        Refused: A codec for another backend, or a backend, codec or GPUs that are not there.
    """
    import accdp_comm

    if not dist.is_backend_available(backend):
        raise Refused(f"--backend {backend}: this torch has none of that name")
    if codec != "none" and backend != "accdp":
        raise Refused(f"--codec {codec}: only the backend accdp compresses, not {backend}")
    if ranks_per_gpu is not None and device != "cuda":
        raise Refused("--ranks-per-gpu: expected --device cuda")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # ranks share the cores
    if backend == "accdp":
        try:
            options = accdp_comm.Options(codec=codec)
        except accdp_comm.UsageError as error:
            raise Refused(f"--codec: {error}") from error
        dist.init_process_group("accdp", pg_options=options)
    else:
        # The launcher may be MPI's, which only accdp's rendezvous knows.
        dist.init_process_group("accdp")
        store = dist.PrefixStore("train", dist.distributed_c10d._get_default_store())
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    if device == "cuda":
        # Only now, so that a rank without a GPU does not leave the others waiting for it.
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (socket.gethostname(), torch.cuda.is_available()))
        hosts = [host for host, _ in found]
        if lacking := [f"{rank} ({host})" for rank, (host, has_gpu) in enumerate(found) if not has_gpu]:
            raise Refused(f"--device cuda: torch finds no CUDA device on rank {', '.join(lacking)}")
        local = hosts[: dist.get_rank()].count(hosts[dist.get_rank()])
        torch.cuda.set_device(local // (ranks_per_gpu or 1) % torch.cuda.device_count())


def check_output(path: str | None) -> None:
    """See that rank 0 can write there: better now than after the training. Collective.

    Raises:
        Refused: On all ranks.
    """
    problem = [""]
    if path and dist.get_rank() == 0:
        is_new = not os.path.exists(path)
        try:
            open(path, "a", encoding="utf-8").close()
            if is_new:
                os.unlink(path)  # the training may be refused
        except OSError as error:
            problem = [f"--json {path}: {error.strerror}"]
    dist.broadcast_object_list(problem)
    if problem[0]:
        raise Refused(problem[0])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="digits")
    parser.add_argument("--backend", default="accdp", help="torch.distributed backend: accdp, gloo, nccl")
    parser.add_argument("--codec", default="none", help="of accdp's broadcasts (none)")
    parser.add_argument("--ranks-per-gpu", type=int, help="ranks that share a GPU; expects --device cuda")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loader-workers", type=int, default=0, help="loader processes per rank (0)")
    parser.add_argument("--batch-size", type=int, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=100, help="measured (100)")
    parser.add_argument("--warm-up", type=int, default=5, help="steps before those (5)")
    parser.add_argument("--target-loss", type=float, help="mean over 10 steps; default: the model's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="append the row to this file")
    args = parser.parse_args()
    for name, least in (
        ("steps", _WINDOW),
        ("warm_up", 0),
        ("loader_workers", 0),
        ("batch_size", 1),
        ("ranks_per_gpu", 1),
    ):
        if (value := getattr(args, name)) is not None and value < least:
            parser.error(f"argument --{name.replace('_', '-')}: expected {least} or more, got {value}")
    return args


def main() -> int:
    args = arguments()
    try:
        join(args.backend, args.codec, args.ranks_per_gpu, args.device)
        check_output(args.json)
        names = ("model", "steps", "warm_up", "batch_size", "loader_workers", "target_loss", "seed", "device")
        row = run(Plan(**{name: getattr(args, name) for name in names}))
        row |= {"backend": args.backend, "codec": args.codec, "ranks_per_gpu": args.ranks_per_gpu}
        row |= record.where_and_when()
        if dist.get_rank() == 0:
            goal = f"{row['seconds_to_loss']:.2f} s" if row["steps_to_loss"] else "not reached"
            print(
                f"{row['op']} {args.backend} {row['ranks']} ranks: {row['samples_per_s']:.0f} samples/s, step "
                f"{row['median_us'] / 1e3:.2f} ms ({row['p10_us'] / 1e3:.2f}-{row['p90_us'] / 1e3:.2f}), loader "
                f"{row['loader_us'] / 1e3:.2f} ms, loss {row['target_loss']:g}: {goal}, last {row['last_loss']:.3f}",
                flush=True,
            )
            if args.json:
                record.append_json(args.json, [row])
    except Refused as error:
        from accdp_comm.bench.world import early_rank

        if early_rank():
            return 0
        print(f"train.py: {error}", file=sys.stderr, flush=True)
        return 2
    finally:
        if dist.is_initialized():
            gc.collect()  # DistributedDataParallel is part of a reference cycle that holds on to the group
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
