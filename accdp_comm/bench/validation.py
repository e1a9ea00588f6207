"""Inputs of each operation, and what must come out: every element compared, on every rank that receives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import Buffers
from .data import Data
from .memory import Memory, exact_bits
from .operations import Operation, shares

_POISON = 0xA5  # in what a call must overwrite


class Case:
    """One operation on one rank, ``count`` elements by OMB's size."""

    def __init__(self, operation: Operation, data: Data, count: int, rank: int, ranks: int):
        self.operation, self.data, self.count, self.rank, self.ranks = operation, data, count, rank, ranks

    def fill(self, memory: Memory, buffers: Buffers, root: int, turn: int) -> None:
        """Put this turn's input into the buffers, and poison into the others."""
        name, count, piece = self.operation.name, self.count, self.data.piece
        if buffers.receive is not None:
            memory.fill(buffers.receive, _poison(len(buffers.receive), self.data.dtype))
        if name == "bcast":
            mine = piece(count, root, turn=turn) if self.rank == root else _poison(count, self.data.dtype)
        elif self.operation.sends == "all":
            mine = np.concatenate([piece(count, self.rank, target, turn) for target in range(self.ranks)])
        elif self.operation.is_pair:
            mine = piece(count, self.rank, 1 - self.rank, turn)
        else:
            mine = piece(count, self.rank, turn=turn)
        memory.fill(buffers.send, mine)

    def expected(self, root: int, turn: int) -> NDArray[Any]:
        """Return what this rank must receive."""
        name, count, piece = self.operation.name, self.count, self.data.piece
        if self.operation.reduces:
            total = self.data.total(count, self.ranks, turn)
            if name != "reduce_scatter":
                return total
            parts = shares(count, self.ranks)
            start = sum(parts[: self.rank])
            return total[start : start + parts[self.rank]]
        if name in ("allgather", "gather"):
            return np.concatenate([piece(count, source, turn=turn) for source in range(self.ranks)])
        if name == "alltoall":
            return np.concatenate([piece(count, source, self.rank, turn) for source in range(self.ranks)])
        if name == "scatter":
            return piece(count, root, self.rank, turn)
        if name == "bcast":
            return piece(count, root, turn=turn)
        return piece(count, 1 - self.rank, self.rank, turn)

    def wrong(self, got: NDArray[Any], root: int, turn: int, bound: float = 0.0, is_relative: bool = False) -> int:
        """Return how many elements are not what they must be.

        Args:
            got: The result.
            root, turn: Of the call.
            bound: Error that is allowed, if any; in standard deviations of the data where ``is_relative``.
        """
        wanted = self.expected(root, turn)
        bad = _differ(got, wanted)
        if bound and self.rank != root:
            with np.errstate(invalid="ignore"):  # signalling NaNs, which random bytes may be
                finite = np.isfinite(wanted)  # what is not arrives exactly
            exact, came = wanted[finite].astype(np.float64), got[finite].astype(np.float64)
            most = bound * (float(exact.std()) if is_relative and exact.size else 1.0)
            rounding = 2.0 ** (1 - exact_bits(wanted.dtype)) * np.abs(exact)
            bad[finite] = ~(np.abs(came - exact) <= most * (1 + 1e-6) + rounding)
        return int(np.count_nonzero(bad))


def _differ(got: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which elements are not the same bits."""
    bytes_ = np.ascontiguousarray(got).view(np.uint8) != np.ascontiguousarray(wanted).view(np.uint8)
    return bytes_.reshape(-1, wanted.dtype.itemsize).any(axis=1)


def _poison(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full(count * dtype.itemsize, _POISON, np.uint8).view(dtype)
