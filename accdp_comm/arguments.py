"""Arguments of the collectives, checked before a byte moves; errors say rank, argument, what was expected and given."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from types import TracebackType
from typing import Any

import numpy as np

from ._core import Datatype, ReduceOp, UsageError, is_reducible
from .buffers import Buffer, describe, new_like

Block = tuple[int, int]  # address, count

_OPS = dict(ReduceOp.__members__)
_THREADS_OWN_STREAM = 2  # cudaStreamPerThread: one handle, of which each thread has a stream
ENDLESS_SECONDS = 1e9  # 30 years; infinity, and what overflows in clocks, is above


def real_number(value: Any) -> float:
    """Return a number as a float, infinity where it is too large; not a number where it is none, or True or False."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # of an integer
        return math.inf if value > 0 else -math.inf


def time_out(name: str, value: Any) -> float:
    """Return the time-out of operations, in seconds above 0 (infinity: none); raises UsageError where it is no such."""
    if not (seconds := real_number(value)) > 0:
        raise UsageError(f"{name}: expected seconds > 0, got {shown(value)}")
    return seconds


def wait_limit(name: str, value: Any) -> float | None:
    """Return how long a wait lasts, in seconds from 0 on, or None: no end; raises UsageError where it is no such."""
    if value is None:
        return None
    if not (seconds := real_number(value)) >= 0:
        raise UsageError(f"{name}: expected seconds >= 0 or None, got {shown(value)}")
    return None if seconds > ENDLESS_SECONDS else seconds


def shown(value: Any) -> str:
    """Return a value for a message; integers may have more digits than Python prints, those in lists too."""
    try:
        return repr(value) if not isinstance(value, int) or value.bit_length() < 1000 else "an integer of many digits"
    except ValueError:
        return "what holds an integer of many digits"


def check_switch(name: str, value: Any) -> None:
    """Raise UsageError where a value is not True, False or None."""
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name}: expected True, False or None, got {value!r}")


class _NamingRank:
    """A class, because entering and leaving a generator's context takes longer than the checks within."""

    __slots__ = ("_rank", "_size")

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, UsageError):
            raise UsageError(f"rank {self._rank} of {self._size}: {error}") from None


class Arguments:
    """Checks the arguments of one communicator's calls. Methods take the argument's name first or last, for errors."""

    def __init__(self, rank: int, size: int, *, device: bool = False):
        self.rank, self.size = rank, size
        self._device = device  # whether memory of CUDA devices will do

    def wrong(self, name: str, expected: str, got: object) -> UsageError:
        """Return the error to raise for an argument."""
        return UsageError(f"rank {self.rank} of {self.size}: {name}: expected {expected}, got {got}")

    def naming_rank(self) -> _NamingRank:
        """Return a context in which UsageErrors of what knows no rank begin with it."""
        return _NamingRank(self.rank, self.size)

    def buffer(self, name: str, x: Any, *, writable: bool, any_order: bool = False) -> Buffer:
        """Return what and where ``x`` is."""
        try:
            return describe(x, name, writable=writable, device=self._device, any_order=any_order)
        except UsageError as error:
            raise UsageError(f"rank {self.rank} of {self.size}: {error}") from None

    def rank_of(self, name: str, value: int) -> int:
        """Return a rank that is in range."""
        return self._number(name, value, self.size, f"a rank from 0 to {self.size - 1}")

    def color(self, name: str, value: Any) -> int:
        """Return a number that tells ranks apart or orders them."""
        try:
            number = operator.index(value)
        except TypeError:
            number = 1 << 63
        if not -(1 << 63) <= number < 1 << 63:
            raise self.wrong(name, "an integer of 64 bits", shown(value))
        return number

    def source(self, value: int) -> int:
        """Return a rank that sends, or -1: any."""
        return self._number("src", value, self.size, f"a rank from 0 to {self.size - 1}, or -1 for any", least=-1)

    def tag(self, value: int) -> int:
        """Return a tag a caller may use."""
        return self._number("tag", value, 1 << 31, "a number from 0 to 2147483647")

    def _number(self, name: str, value: int, limit: int, expected: str, least: int = 0) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = limit
        if not least <= number < limit:
            raise self.wrong(name, expected, shown(value))
        return number

    def op(self, name: str, data: Buffer, array: str = "x") -> ReduceOp:
        """Return the reduction of that name, if the datatype of the argument ``array`` has it."""
        if not isinstance(name, str) or name not in _OPS:
            raise self.wrong("op", "one of " + ", ".join(_OPS), repr(name))
        if not is_reducible(data.datatype, _OPS[name]):
            if data.datatype == Datatype.bytes:
                raise self.wrong(array, "a datatype that can be reduced", data.kind)
            raise self.wrong("op", f"an operation that {data.kind} has", repr(name))
        return _OPS[name]

    def same_kind(self, name: str, data: Buffer, as_in: Buffer, *, one_stream: bool = True) -> None:
        """Check that two arrays have one datatype and are in the same memory, there in the order of one stream."""
        # What is only moved is bytes to the core.
        if data.datatype != as_in.datatype or (data.datatype == Datatype.bytes and data.kind != as_in.kind):
            raise self.wrong(name, f"datatype {as_in.kind}", data.kind)
        if data.device != as_in.device:
            raise self.wrong(name, f"memory of {_place(as_in)}", _place(data))
        if one_stream and not data.is_ordered_with(as_in):
            raise self.wrong(name, f"an array used on stream {as_in.stream:#x}, as the others", f"{data.stream:#x}")

    def any_threads(self, name: str, data: Buffer) -> None:
        """Check that an array's stream is the same one in all threads: other ones end what is asynchronous."""
        if data.device is not None and data.stream == _THREADS_OWN_STREAM:
            raise self.wrong(name, "an array not used on its thread's own default stream", "one used on stream 2")

    def in_and_out(self, x: Any, out: Any) -> tuple[Buffer, Buffer]:
        """Return the buffers of an operation that replaces ``x`` where ``out`` is None."""
        data = self.buffer("x", x, writable=out is None)
        if out is None:
            return data, data
        result = self.buffer("out", out, writable=True)
        self.same_kind("out", result, data)
        if result.count != data.count:
            raise self.wrong("out", f"{data.count} {data.unit}, as many as x", result.count)
        return data, result

    def blocks(self, name: str, x: Any, like: Buffer, *, writable: bool) -> tuple[list[Block], list[Buffer]]:
        """Return one block per rank: of a list of arrays, or of one array in equal parts. And what they are blocks of:
        to be kept while they are used, since what an array hands out through DLPack may be a copy.
        """
        if isinstance(x, (list, tuple)):
            self.one_per_rank(name, x)
            parts = [self.buffer(f"{name}[{rank}]", part, writable=writable) for rank, part in enumerate(x)]
            for rank, part in enumerate(parts):
                self.same_kind(f"{name}[{rank}]", part, like)
            return [(part.pointer, part.count) for part in parts], parts
        data = self.buffer(name, x, writable=writable)
        self.same_kind(name, data, like)
        if data.count != like.count * self.size:
            raise self.wrong(name, f"{self.size} x {like.count} = {self.size * like.count} {like.unit}", data.count)
        return [data.block(rank * like.count, like.count) for rank in range(self.size)], [data]

    def even(self, name: str, blocks: Sequence[Block], like: Buffer) -> None:
        """Check that each rank's block has the same count."""
        for rank, (_, got) in enumerate(blocks):
            if got != like.count:
                raise self.wrong(f"{name}[{rank}]", f"{like.count} {like.unit}", got)

    def one_per_rank(self, name: str, values: Sequence[Any]) -> None:
        """Check the length of a list."""
        if len(values) != self.size:
            raise self.wrong(name, f"a list of {self.size}, one per rank", f"{len(values)}")

    def room(self, out: Any, data: Buffer) -> Any:
        """Return ``out``, or a new array that holds ``data`` of every rank."""
        return new_like(data, (self.size, *data.shape)) if out is None else out

    def share(self, name: str, data: Buffer) -> tuple[int, ...]:
        """Return the shape of one rank's part of an array that is divided along its first dimension."""
        if not data.shape or data.shape[0] % self.size:
            raise self.wrong(name, f"a first dimension that is a multiple of {self.size}", f"shape {data.shape}")
        return (data.shape[0] // self.size, *data.shape[1:])

    def counts(self, name: str, counts: Sequence[int] | None, data: Buffer) -> list[int]:
        """Return how many rows of ``data`` belong to each rank."""
        if counts is None:
            return [self.share("x", data)[0]] * self.size
        given = self.numbers(name, counts)
        if not data.shape or sum(given) != data.shape[0]:
            raise self.wrong(name, f"counts that add up to the rows of x, shape {data.shape}", shown(given))
        return given

    def numbers(self, name: str, counts: Sequence[int]) -> list[int]:
        """Return a list of counts, one per rank."""
        given = self.whole_numbers(name, counts)
        self.one_per_rank(name, given)
        return given

    def whole_numbers(self, name: str, counts: Any) -> list[int]:
        """Return a list of counts, of any length; a fraction is refused, not cut off."""
        try:
            given = [operator.index(count) for count in counts]
        except TypeError:
            given = [-1]
        if min(given, default=0) < 0:
            raise self.wrong(name, "counts >= 0, whole numbers", shown(counts))
        return given

    def own_rows(self, sent: Sequence[int], got: Sequence[int]) -> None:
        """Check that this rank gets from itself what it sends itself."""
        if got[self.rank] != sent[self.rank]:
            expected = f"{sent[self.rank]}, which it sends itself"
            raise self.wrong(f"recv_counts[{self.rank}]", expected, shown(got[self.rank]))


def _place(data: Buffer) -> str:
    return "the host" if data.device is None else f"CUDA device {data.device}"
