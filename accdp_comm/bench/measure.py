"""Measuring: all backends of a run take turns on the same ranks, block by block.

An iteration is a barrier and one call between two readings of the clock, as in OMB, or several calls where that is
asked for; what stands between the readings was made ready beforehand. Calls go round several sets of buffers, together
larger than the caches where memory allows.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..stream_call import LOSSLESS, ErrorBound
from .backends import Backend, Buffers, Call, Ready
from .data import Data
from .memory import Memory
from .operations import Operation, shares
from .statistics import Times
from .validation import Case
from .world import World

BLOCKS = 10  # turns that each backend takes per size
_MOST_SETS = 64
LEAST_ITERATIONS = 10  # however short the time for a size is
_VALIDATED_TURNS = 5  # calls checked per size, each with other data


@dataclass(frozen=True)
class Request:
    """What is measured of one size."""

    operation: Operation
    size: int  # OMB's, bytes
    iterations: int
    warm_up: int
    root: int | None  # None: it rotates
    window: int
    limit_bytes: int  # for all buffers of this rank
    validation_warm_up: int | None  # None: results are not checked
    seconds: float | None = None  # for all backends together; None: all iterations, however long they take
    least: int = LEAST_ITERATIONS  # however short that time is
    bound: ErrorBound = LOSSLESS  # of a broadcast
    burst: int = 1  # calls between two barriers
    is_async: bool = False  # calls are begun, then waited for


@dataclass(frozen=True)
class Measured:
    """What came of it for one backend, alike on all ranks."""

    times: Times
    errors: int | None
    sets: int
    warm_up: int
    report: dict[str, Any]


class Subject:
    """One backend with its buffers and calls for one size."""

    def __init__(self, world: World, backend: Backend, sets: Sequence[Buffers], case: Case, request: Request):
        self.backend, self.sets, self.case, self.request = backend, sets, case, request
        # Also behind its calls: a library may need a rank that has ended its own call to end that of another, as MPI
        # does where the receiver acknowledges a message, and no other backend's barrier would drive it.
        self.barrier = backend.barrier or world.barrier
        self.times: list[float] = []
        turns = math.lcm(len(sets), case.ranks) if self._rotates else len(sets)
        self.ready = [self._make(turn) for turn in range(turns)]
        self.calls = [_until_finished(ready.call, backend.memory) for ready in self.ready]

    @property
    def _rotates(self) -> bool:
        return self.request.root is None and self.case.operation.is_rooted

    def root(self, turn: int) -> int:
        """The root of a turn."""
        return turn % self.case.ranks if self._rotates else self.request.root or 0

    def _make(self, turn: int) -> Ready:
        buffers = self.sets[turn % len(self.sets)]
        if self.case.operation.is_pair:
            return self.backend.pair(self.case.operation, buffers, self.request.window)
        return self.backend.collective(self.case.operation, buffers, self.root(turn))

    def fill(self) -> None:
        """Put data into all buffers."""
        for turn, buffers in enumerate(self.sets):
            self.case.fill(self.backend.memory, buffers, self.root(turn), turn)

    def validate(self) -> int:
        """Return how many elements of this rank's results are wrong, over some turns. Collective."""
        errors, memory = 0, self.backend.memory
        bound = self.request.bound if "+" in self.backend.name else LOSSLESS
        for turn in range(min(self.request.iterations, _VALIDATED_TURNS)):
            place = turn % len(self.ready)
            buffers, root = self.sets[place % len(self.sets)], self.root(place)
            for _ in range(self.request.validation_warm_up or 0):
                self.barrier()
                self.calls[place]()
            self.case.fill(memory, buffers, root, turn)
            self.barrier()
            self.calls[place]()
            self.barrier()
            result = self.ready[place].result
            if result is not None:
                errors += self.case.wrong(memory.read(result), root, turn, *bound)
        return errors


def run_point(
    world: World, backends: Sequence[Backend], data: Data, request: Request, tick: Callable[[], object]
) -> dict[str, Measured]:
    """Measure all backends at one size. Collective.

    Args:
        world: The ranks.
        backends: Measured in turns.
        data: Of the buffers.
        request: What to measure.
        tick: Called after each block.
    Returns:
        By the backend's name.
    """
    operation, itemsize = request.operation, data.dtype.itemsize
    case = Case(operation, data, request.size // itemsize, world.rank, world.size)
    memories = {id(backend.memory): backend.memory for backend in backends}
    count = sets_of(operation, request.size, world.size, itemsize, request.limit_bytes // len(memories))
    buffers = {key: [_new_set(memory, case) for _ in range(count)] for key, memory in memories.items()}
    subjects = [Subject(world, backend, buffers[id(backend.memory)], case, request) for backend in backends]
    errors: list[int | None] = [None] * len(subjects)
    if operation.kind != "barrier":
        if request.validation_warm_up is not None:
            errors = [sum(world.allgather(subject.validate())) for subject in subjects]
        for subject in subjects:
            subject.fill()
    warm_up, each = _warm_up(world, subjects, request)
    order, turns = random.Random(request.size), list(subjects)  # alike on all ranks
    iterations, pace = 0, _Pace(world, request, each)
    for block in range(BLOCKS):
        first, iterations = iterations, pace.end(block, iterations)
        order.shuffle(turns)
        for subject in turns if iterations > first else ():
            # Not for all at once: a limit of time may end them far below what was asked for.
            subject.times += [0.0] * (iterations - first)
            _time(subject, subject.times, first, iterations)
        tick()
    found = {}
    for subject, wrong in zip(subjects, errors, strict=True):
        table = np.array(world.allgather(np.array(subject.times)))
        rows = table[:1] / (2 if operation.kind == "latency" else 1) if operation.is_pair else table
        found[subject.backend.name] = Measured(Times(rows), wrong, count, warm_up, subject.backend.report())
    return found


def _warm_up(world: World, subjects: Sequence[Subject], request: Request) -> tuple[int, float]:
    """Warm all backends up; return the calls that this took of each, and the seconds of one call of all. Collective.

    Where there is a time for the size, warm-up ends after a quarter of it, but goes round all sets of buffers, and
    twice where there is one: the first call with each may be many times slower than all others.
    """

    def spend(calls: int) -> float:
        began = time.perf_counter()
        for subject in subjects:
            _time(subject, [0.0] * calls, 0, calls)
        return max(world.allgather(time.perf_counter() - began))

    calls = request.warm_up
    if request.seconds is None or not calls:
        spend(calls)
        return calls, 0.0
    each, calls = spend(1), calls - 1
    if calls := min(calls, max(1, len(subjects[0].sets) - 1, int(request.seconds / 4 / each))):
        each = spend(calls) / calls
    return 1 + calls, each


class _Pace:
    """How far each block goes, so that the time for a size is used, or all iterations are made.

    Args:
        world: All of whose ranks go as far.
        request: Says how many iterations, or how long.
        each: Seconds that one call of all backends seems to take; corrected by what they take in the end.
    """

    def __init__(self, world: World, request: Request, each: float):
        self._world, self._request, self._each = world, request, each
        self._began = time.perf_counter()

    def end(self, block: int, done: int) -> int:
        """Return how many iterations there are at the end of a block, ``done`` being those before it. Collective."""
        request, most = self._request, self._request.iterations
        if request.seconds is None:
            return most * (block + 1) // BLOCKS
        least = request.least * (block + 1) // BLOCKS
        spent = max(self._world.allgather(time.perf_counter() - self._began))
        each = spent / done if done else self._each
        if not each:  # nothing was warmed up
            return min(most, max(1, least))
        more = int((request.seconds - spent) / (BLOCKS - block) / each)
        return min(most, max(done, done + more, least))


def sets_of(operation: Operation, size: int, ranks: int, itemsize: int, limit_bytes: int) -> int:
    """Return how many sets of buffers calls go round: enough to overflow the caches twice, within the limit."""
    each = set_bytes(operation, size, ranks, itemsize)
    if each == 0:
        return 1
    return max(1, min(_MOST_SETS, -(-2 * cache_bytes() // each), limit_bytes // each))


def set_bytes(operation: Operation, size: int, ranks: int, itemsize: int) -> int:
    """Return the bytes of one set of buffers of a rank."""
    return operation.send_bytes(size, ranks) + operation.receive_bytes(size, ranks, itemsize)


@cache
def cache_bytes() -> int:
    """Return the size of this processor's largest cache; 64 MiB where it is larger, as virtual machines say."""
    units, found = {"K": 1 << 10, "M": 1 << 20}, [1 << 25]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdecimal() and text[-1] in units:
            found.append(int(text[:-1]) * units[text[-1]])
    return min(max(found), 1 << 26)


def harness_us() -> float:
    """Return what one iteration costs beyond the call and the barrier, in microseconds.

    A loop over nothing, the fastest of some: what else the machine does is no part of it.
    """
    iterations = 2000
    calls: list[Call] = [_nothing] * 8
    times, spent = [0.0] * iterations, []
    with _no_garbage_collection():
        for _ in range(10):
            began = time.perf_counter()
            _collective_loop(calls, _nothing, times, 0, iterations)
            spent.append(time.perf_counter() - began)
    return min(spent) / iterations * 1e6


def _nothing() -> None:
    pass


def _new_set(memory: Memory, case: Case) -> Buffers:
    operation, dtype = case.operation, case.data.dtype
    sizes = case.count * dtype.itemsize, case.ranks
    sent = operation.send_bytes(*sizes) // dtype.itemsize
    received = operation.receive_bytes(*sizes, dtype.itemsize) // dtype.itemsize
    if operation.receives == "part":
        received = shares(case.count, case.ranks)[case.rank]
    is_empty = operation.receives == "none"
    return Buffers(memory.new(sent, dtype), None if is_empty else memory.new(received, dtype), memory.new(1, dtype))


def _until_finished(call: Call, memory: Memory) -> Call:
    """A call on a GPU has ended only when the device says so; one in host memory when it returns."""
    if memory.is_device:
        finish = memory.finish

        def both() -> None:
            call()
            finish()

        return both
    return call


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _time(subject: Subject, times: list[float], first: int, last: int) -> None:
    with _no_garbage_collection():
        if subject.case.operation.is_pair:
            subject.barrier()
            _pair_loop(subject.calls, times, first, last)
        else:
            _collective_loop(subject.calls, subject.barrier, times, first, last, subject.request.burst)
        subject.barrier()


def _collective_loop(
    calls: Sequence[Call], barrier: Call, times: list[float], first: int, last: int, burst: int = 1
) -> None:
    clock = time.perf_counter
    in_turn = islice(cycle(calls), first * burst % len(calls), None)
    for iteration in range(first, last):
        ready = tuple(islice(in_turn, burst))
        barrier()
        began = clock()
        for call in ready:
            call()
        times[iteration] = (clock() - began) / burst


def _pair_loop(calls: Sequence[Call], times: list[float], first: int, last: int) -> None:
    """As above without barriers: each message waits for the one before."""
    clock, turns = time.perf_counter, len(calls)
    for iteration in range(first, last):
        call = calls[iteration % turns]
        began = clock()
        call()
        times[iteration] = clock() - began
