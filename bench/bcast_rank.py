"""One rank of a job of bench/bcast_hosts.py: all methods take turns, sample by sample.

A sample is the slowest rank's time for one broadcast from rank 0; for small messages, the mean over a burst in which
the root goes round, so that no rank can run ahead of the one before. Before its first sample each method has to fill
cleared memory with what root has. After some rounds only the contenders go on: the methods that are not far from the
fastest, auto, and the fixed choices that are not far from the fastest of them, which auto is held against; longer while
chance may hide that auto is beyond its mark, or make it seem so. Rank 0 appends one JSON line per method to a file.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import auto_mark
import rank_job
import real_tensors
import torch
import torch.distributed as dist
from bcast_plan import Method, Point
from mpi4py import MPI
from torch import Tensor

import accdp_comm
from accdp_comm import bcast, buffers, channels
from accdp_comm.bench.statistics import spread
from accdp_comm.stream_call import StreamCall

Call = Callable[[int], Any]  # of the root; returns what accdp reports, or None

_BURST_BYTES = 4 << 20  # a burst sends about as much
_MOST_CALLS = 40
_LINK_BYTES = 16 << 20
_WARM_BYTES = 16 << 20
_CONTENDS = 1.5  # times the fastest median
_MOST_AGAIN = 8  # times as many rounds, while auto may be beyond its mark


class Ranks:
    """The groups of the job, of the same ranks. What is between samples goes over Gloo, which sleeps as it waits."""

    def __init__(self) -> None:
        self.gloo = dist.new_group(backend="gloo")
        self.mpi = MPI.COMM_WORLD
        self.channel = channels.channel_of(None)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        assert self.rank == self.mpi.rank, "torch and MPI number the ranks alike"

    def slowest(self, seconds: float) -> float:
        return rank_job.slowest(seconds, self.gloo)

    def sample(self, call: Call, calls: int) -> tuple[float, list[Any]]:
        """Seconds per call on the slowest rank, and what the calls returned."""
        dist.barrier(group=self.gloo)
        began = perf_counter()
        results = [call(turn % self.size) for turn in range(calls)]
        return self.slowest((perf_counter() - began) / calls), results

    def call_of(self, method: Method, tensor: Tensor, before: Tensor | None) -> Call:
        """How a method sends a tensor."""
        if method.name == "MPI_Bcast":
            memory = tensor.view(torch.uint8).numpy()
            return lambda root: self.mpi.Bcast([memory, MPI.BYTE], root)
        if method.name == "gloo":
            return lambda root: (dist.broadcast(tensor, root, group=self.gloo), None)[1]
        bound = accdp_comm.relative(method.bound) if method.bound else None
        if not method.algorithm:
            reference = before if method.reference else None
            return lambda root: accdp_comm.bcast_compressed(
                tensor, root, codec=method.codec, error_bound=bound, reference=reference
            )
        buffer = buffers.describe(tensor, "tensor", writable=True)
        how = StreamCall(method.codec, bound=bcast.bound_of(bound), algorithm=method.algorithm)

        def inner(root: int) -> bcast.BcastResult:
            pending = self.channel.bcast([buffer], None, root, how, async_op=False)
            return bcast.BcastResult(**pending.wait(None))

        return inner


def check(ranks: Ranks, method: Method, call: Call, tensor: Tensor, wanted: Tensor) -> float:
    """Call once with cleared memory on all but root, and compare what arrives; returns how long it took."""
    tensor.copy_(wanted) if ranks.rank == 0 else tensor.zero_()
    seconds, _ = ranks.sample(call, 1)
    if method.bound:
        error = (tensor.double() - wanted.double()).abs().max() / wanted.double().std()
        # What a datatype cannot express is rounded on top of the bound. Point to point, errors add up over two hops.
        most = method.bound * (2 if method.algorithm == "p2p_compressed" else 1) * (1 + 1e-6)
        wrong = error.item() if error > most + torch.finfo(tensor.dtype).eps else 0.0
    else:
        differs = tensor.view(torch.uint8) != wanted.view(torch.uint8)
        wrong = differs.count_nonzero().item() / differs.numel()
    if wrong := ranks.slowest(wrong):
        unit = "standard deviations off" if method.bound else "of the bytes are wrong"
        raise RuntimeError(f"{method.name}: what arrived is not what was sent: {wrong:.3g} {unit}")
    return seconds


def measure(ranks: Ranks, point: Point, folder: Path) -> list[dict[str, Any]]:
    """Measure all methods of a point; one row each. Collective."""
    wanted = real_tensors.load(folder, point.data, point.dtype, point.nbytes)
    tensor, before = wanted.clone(), None
    if point.data.startswith("after_"):
        before = real_tensors.load(folder, point.data.replace("after", "before"), point.dtype, point.nbytes)
    calls = max(1, min(_MOST_CALLS, _BURST_BYTES // point.nbytes))
    send = {method: ranks.call_of(method, tensor, before) for method in point.methods}
    times: dict[Method, list[float]] = {method: [] for method in send}
    results: dict[Method, list[Any]] = {method: [] for method in send}
    one_round = 0.0
    for method, call in send.items():
        took = check(ranks, method, call, tensor, wanted)
        if point.nbytes < _WARM_BYTES:  # of more, one broadcast has warmed everything up
            tensor.copy_(wanted)
            took = ranks.sample(call, calls)[0]
        one_round += took * calls
    order = random.Random(0)  # shuffled alike on all ranks: who comes after whom matters

    def take_turns(turns: list[Method], rounds: int) -> None:
        for _ in range(rounds):
            order.shuffle(turns)
            for method in turns:
                tensor.copy_(wanted)  # what is within a bound of it would drift from turn to turn
                seconds, said = ranks.sample(send[method], calls)
                times[method].append(seconds)
                results[method] += said

    least, most = point.samples
    rounds = max(least, min(most, int(point.budget_s / 2 / one_round)))
    take_turns(list(send), rounds)
    middle = {method: statistics.median(seconds) for method, seconds in times.items()}
    contenders = contenders_of(middle)
    one_round = calls * sum(middle[method] for method in contenders)
    rounds = min(most, int(point.budget_s / one_round))
    take_turns(contenders, rounds)

    def over() -> dict[str, auto_mark.Ratio]:
        return auto_mark.ratios({method.name: seconds for method, seconds in times.items()})

    for _ in range(_MOST_AGAIN):  # ranks have the same times, and go on or end alike
        if auto_mark.is_settled(over()):
            break
        take_turns(contenders, max(rounds, 1))
    rows = [row_of(point, method, times[method], results[method], calls) for method in send]
    for row in rows:
        if row["method"] == "auto":
            row["over"] = {name: ratio.to_json() for name, ratio in over().items()}
    return rows


def contenders_of(middle: dict[Method, float]) -> list[Method]:
    """The methods that may be the fastest, or the fastest fixed choice, and auto, by their medians so far."""
    limit = _CONTENDS * min(middle.values())
    fixed = {method: seconds for method, seconds in middle.items() if method.name in auto_mark.FIXED_CHOICES}
    limit_of_fixed = _CONTENDS * min(fixed.values(), default=0.0)
    return [
        method
        for method, seconds in middle.items()
        if method.codec == "auto" or seconds < (limit_of_fixed if method in fixed else limit)
    ]


def row_of(point: Point, method: Method, seconds: list[float], results: list[Any], calls: int) -> dict[str, Any]:
    row = {
        "part": point.part,
        "data": point.data,
        "dtype": point.dtype,
        "bytes": point.nbytes,
        "method": method.name,
        **spread(seconds),
        "samples": len(seconds),
        "calls_per_sample": calls,
        "ratio": 1.0,
        "wire_bytes": point.nbytes,
    }
    if (result := results[-1]) is not None:
        row |= {"ratio": result.ratio, "wire_bytes": result.wire_bytes, "codec": result.codec}
        row["codecs"] = dict(Counter(each.codec for each in results).most_common())
        row |= {"algorithm": result.algorithm, "stages_s": result.seconds}
    return row


def main(plan: str, folder: str, out: str) -> None:
    with rank_job.world():
        ranks = Ranks()
        # What a program's first broadcasts do in passing: auto gets to know the link and what messages cost, whoever
        # is root. (With codec="none" nothing is measured.)
        first = real_tensors.load(Path(folder), "random", "uint8", _LINK_BYTES)
        for root in [*range(ranks.size)] * 2:
            accdp_comm.bcast_compressed(first, root, codec="auto")
        for fields in json.loads(Path(plan).read_text()):
            rank_job.write(out, measure(ranks, Point.from_json(fields), Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
