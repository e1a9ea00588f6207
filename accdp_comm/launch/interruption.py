"""Signals that end `accdp run` while it starts or stops what others share; while ranks run, job.py has its own way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from . import kinship
from .offspring import STOPPING

T = TypeVar("T")

PARENT_VARIABLE = "ACCDP_RUN_PARENT"  # pid of a process whose end is to end `accdp run`, which it has started


def stopping() -> tuple[signal.Signals, ...]:
    """Return which of them end us: not SIGHUP where whoever started us has it ignored, as nohup does."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return tuple(number for number in STOPPING if hangs_up or number != signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came that ends us."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def end_with_parent() -> None:
    """From now on get SIGTERM when the process ends that started us, if it asked for that (PARENT_VARIABLE)."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent:
        if not kinship.end_with_parent(signal.SIGTERM, int(parent)):  # it has ended before
            raise Interrupted(signal.SIGTERM)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn signals into an exception, so that with-blocks clean up, and leave with 128 and the signal's number.

    After the block the process is to end: unless it fails, no signal changes the exit code any more.
    """

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, raise_it) for number in stopping()}
    try:
        yield
        _are_too_late()
    except Interrupted as interruption:
        with contextlib.suppress(Interrupted):
            _are_too_late()
        raise SystemExit(128 + interruption.number) from None
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


def _are_too_late() -> None:
    """Ignore signals from here on: who presses Ctrl-C again and again would end Python by it while that shuts down.

    Raises:
        Interrupted: One came before.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # for other threads


def undisturbed(step: Callable[[], T]) -> T:
    """Do a step that must be done, whatever signals come: half-stopped daemons would be left behind.

    For the main thread.

    Raises:
        Interrupted: After the step: a signal came meanwhile, or before any could be made to wait.
    """
    results: list[T] = []
    interruption = None
    while not results:
        try:
            while not results:
                try:
                    with _signals_wait():
                        results.append(step())
                except Interrupted as came:
                    interruption = interruption or came
        except Interrupted as came:  # another one, just then
            interruption = interruption or came
    if interruption is not None:
        raise interruption
    return results[0]


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals wait until the block is done."""
    came: list[int] = []
    handlers: dict[int, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        # Another thread may take a signal all the same, and Python calls its handler in the main one.
        for number in STOPPING:
            handlers[number] = signal.signal(number, lambda which, _: came.append(which))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for which, handler in handlers.items():
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        for which in came:
            os.kill(os.getpid(), which)


def only_wake(number: int, frame: object) -> None:
    """Signals are read from a wakeup pipe; without a handler in Python they would not get there."""
