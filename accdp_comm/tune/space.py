"""The points that `accdp tune` tries: which there are, and which need no trial. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PAST_PEAK = 0.1  # a loss of this share from one value of an axis to the next ends the search along it


@dataclass(frozen=True)
class Point:
    """One choice. None: the script's, or accdp's, own."""

    ranks: int  # of all GPUs or nodes together
    ranks_per_gpu: int | None = None
    batch_size: int | None = None  # samples of each rank in a step
    workers: int | None = None  # processes of each rank's data loader
    codec: str | None = None

    @property
    def density(self) -> int:
        """Ranks per GPU, or on machines without one the ranks."""
        return self.ranks_per_gpu or self.ranks

    @property
    def global_batch(self) -> int | None:
        return None if self.batch_size is None else self.batch_size * self.ranks


@dataclass(frozen=True)
class Batches:
    """Whose batch sizes are tried: "global" keeps each value whatever the ranks, "rank" gives it to each rank, "script"
    leaves them alone."""

    kind: str = "script"
    values: tuple[int, ...] = ()

    def of(self, ranks: int) -> list[int | None]:
        """The batch sizes of each of so many ranks; those that cannot be divided evenly are left out."""
        if self.kind == "script":
            return [None]
        if self.kind == "rank":
            return [*self.values]
        return [value // ranks for value in self.values if value % ranks == 0]

    def says(self) -> str:
        """What this means for the training, in one sentence."""
        if self.kind == "global":
            values = ", ".join(map(str, self.values))
            return f"The global batch stays {values} for any number of ranks: the training stays the same."
        if self.kind == "rank":
            return (
                "Each rank has the batch size given, so the global batch grows with the ranks: a point that is faster "
                "may need another learning rate, and other epochs."
            )
        return "The batch size is the script's own; points at which the global batch is another one do not count."


def points(
    densities: Sequence[int],
    gpus: int,
    batches: Batches,
    workers: Sequence[int | None] = (None,),
    codecs: Sequence[str | None] = (None,),
) -> list[Point]:
    """Return all points: ranks fastest, then batch sizes, so that each line of the picture is searched from its start.

    Args:
        densities: Ranks per GPU; or, where ``gpus`` is 0, numbers of ranks.
        gpus: GPUs that the job has, 0 for none.
        batches, workers, codecs: What is tried of each.
    """
    found = []
    for codec, count, index in itertools.product(codecs, workers, range(max(1, len(batches.values)))):
        for density in sorted(densities):
            ranks = density * max(1, gpus)
            one = replace(batches, values=batches.values[index : index + 1])
            for batch in one.of(ranks):
                found.append(Point(ranks, density if gpus else None, batch, count, codec))
    return found


def undivided(densities: Iterable[int], gpus: int, batches: Batches) -> list[str]:
    """Name the pairs of global batch and ranks that points() leaves out."""
    if batches.kind != "global":
        return []
    ranks = [density * max(1, gpus) for density in densities]
    return [f"{value} among {n} ranks" for value in batches.values for n in ranks if value % n]


def next_point(untried: Sequence[Point], best: Point | None, first: Point, batches: Batches) -> Point | None:
    """Return the point that is worth a look next, None where those that are left are not.

    All ranks and batch sizes are looked at with the first number of workers and the first codec; others only where they
    differ from the best point so far in one thing, or where none of the first did.

    Args:
        untried: Points in their order.
        best: The best so far, None where nothing was measured yet.
        first: Of all points.
        batches: As for points().
    """
    for point in untried:
        if (point.workers, point.codec) == (first.workers, first.codec):
            return point
        if best and sum(_place(point, axis, batches)[0] != _place(best, axis, batches)[0] for axis in _AXES) == 1:
            return point
    return untried[0] if best is None and untried else None


def needless(
    point: Point, batches: Batches, rates: Mapping[Point, tuple[float, float]], exhausted: Iterable[Point]
) -> str:
    """Say why a point needs no trial, "" if it does.

    Args:
        point: Not tried yet.
        batches: As for points().
        rates: The least and the most samples per second that each measured point is likely to reach.
        exhausted: Points that ran out of memory.
    """
    for other in exhausted:
        if point.batch_size is not None and other.batch_size is not None and point.codec == other.codec:
            has_workers = (point.workers or 0) >= (other.workers or 0)  # processes of their own
            if point.density >= other.density and point.batch_size >= other.batch_size and has_workers:
                return f"needs no less memory than {other.density} x {other.batch_size}, which ran out of it"
    for axis in _NAMES:
        here = _place(point, axis, batches)
        line = {
            _place(other, axis, batches)[0]: rate
            for other, rate in rates.items()
            if _place(other, axis, batches)[1] == here[1]
        }
        below = sorted(value for value in line if value is not None and here[0] is not None and value < here[0])
        if len(below) > 1 and line[below[-1]][1] < (1 - PAST_PEAK) * line[below[-2]][0]:
            return f"past the peak: {below[-1]} {_NAMES[axis]} was slower than {below[-2]}"
    return ""


_NAMES = {"density": "ranks", "batch": "samples", "workers": "workers"}  # the axes that have an order
_AXES = (*_NAMES, "codec")


def _place(point: Point, axis: str, batches: Batches) -> tuple[Any, tuple]:
    """Where a point is along an axis, and what it shares with the other points of that line."""
    batch = point.global_batch if batches.kind == "global" else point.batch_size
    where = {"density": point.density, "batch": batch, "workers": point.workers, "codec": point.codec}
    value = where.pop(axis)
    return value, tuple(where.values())
