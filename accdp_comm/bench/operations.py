"""The table of operations: OMB's titles and defaults, what each rank sends and receives, bus bandwidth factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

LARGE_BYTES = 8192  # OMB: above it, fewer iterations


class Refused(Exception):
    """What was asked for cannot be done here; the text is the one line that the user sees."""


class RefusedAlone(Refused):
    """What is missing is what ranks would need to agree: others may have it, and wait for this one."""


@dataclass(frozen=True)
class Operation:
    """One row. ``size`` below is OMB's, in bytes; n is the number of ranks."""

    name: str
    title: str
    kind: Literal["collective", "latency", "bandwidth", "barrier"]
    sends: Literal["one", "all", "none"]  # size bytes, n * size bytes, nothing
    receives: Literal["one", "all", "part", "none"]  # likewise; part: this rank's share of size
    bus_factor: Callable[[int], float]  # busbw / algbw, as in nccl-tests
    reduces: bool = False
    is_rooted: bool = False
    max_bytes: int = 1 << 20
    iterations: tuple[int, int] = (1000, 100)  # up to LARGE_BYTES, above
    warm_up: tuple[int, int] = (200, 10)
    datatype: str = "mpi_char"
    directions: int = 1  # in which messages of a bandwidth test go at once

    @property
    def is_pair(self) -> bool:
        """Whether exactly two ranks take part."""
        return self.kind in ("latency", "bandwidth")

    def send_bytes(self, size: int, ranks: int) -> int:
        """Bytes of the buffer that a rank sends from."""
        return {"one": size, "all": size * ranks, "none": 0}[self.sends]

    def receive_bytes(self, size: int, ranks: int, itemsize: int) -> int:
        """Bytes of the largest buffer that a rank receives into."""
        if self.receives == "part":
            return max(shares(size // itemsize, ranks)) * itemsize
        return {"one": size, "all": size * ranks, "none": 0}[self.receives]

    def window_bytes(self, size: int, window: int) -> int:
        """Bytes that one iteration of a bandwidth test moves."""
        return size * window * self.directions

    def total_bytes(self, size: int, ranks: int) -> int:
        """The size that nccl-tests would print: the larger of what a rank sends and receives."""
        return size * ranks if "all" in (self.sends, self.receives) else size

    def part_bytes(self, size: int, ranks: int) -> int:
        """Bytes of the count that NCCL's call is given: of one rank's part, where ranks have parts of the whole."""
        return size // ranks if self.receives == "part" else size


def shares(count: int, ranks: int) -> list[int]:
    """Divide ``count`` elements among ranks as OMB does: the first ones get one more."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


_PAIR_BYTES = 4 << 20
_ROWS = (
    Operation("bcast", "Broadcast Latency Test", "collective", "one", "none", _one, is_rooted=True),
    Operation(
        "allreduce", "Allreduce Latency Test", "collective", "one", "one", _twice, reduces=True, datatype="mpi_int"
    ),
    Operation(
        "reduce",
        "Reduce Latency Test",
        "collective",
        "one",
        "one",
        _one,
        reduces=True,
        is_rooted=True,
        datatype="mpi_int",
    ),
    Operation("allgather", "Allgather Latency Test", "collective", "one", "all", _others),
    Operation(
        "reduce_scatter",
        "Reduce_scatter Latency Test",
        "collective",
        "one",
        "part",
        _others,
        reduces=True,
        datatype="mpi_int",
    ),
    Operation("alltoall", "All-to-All Personalized Exchange Latency Test", "collective", "all", "all", _others),
    Operation("gather", "Gather Latency Test", "collective", "one", "all", _others, is_rooted=True),
    Operation("scatter", "Scatter Latency Test", "collective", "all", "one", _others, is_rooted=True),
    Operation("barrier", "Barrier Latency Test", "barrier", "none", "none", _one, max_bytes=0),
    Operation(
        "latency", "Latency Test", "latency", "one", "one", _one, max_bytes=_PAIR_BYTES, iterations=(10000, 1000)
    ),
    Operation(
        "bw",
        "Bandwidth Test",
        "bandwidth",
        "one",
        "one",
        _one,
        max_bytes=_PAIR_BYTES,
        iterations=(100, 20),
        warm_up=(10, 2),
    ),
    Operation(
        "bibw",
        "Bi-Directional Bandwidth Test",
        "bandwidth",
        "one",
        "one",
        _one,
        max_bytes=_PAIR_BYTES,
        iterations=(100, 20),
        warm_up=(10, 2),
        directions=2,
    ),
)
OPERATIONS = {row.name: row for row in _ROWS}
