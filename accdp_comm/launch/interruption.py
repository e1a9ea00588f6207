"""Signals that end `accdp run` while it starts or stops what others share; while ranks run, job.py has its own way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came that ends us."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn signals into an exception, so that with-blocks clean up, and leave with 128 and the signal's number."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, raise_it) for number in STOPPING}
    try:
        yield
    except Interrupted as interruption:
        raise SystemExit(128 + interruption.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals wait until the block is done: half-stopped daemons would be left behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
