"""The thread that runs a Communicator's asynchronous operations, one after the other."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from . import _core

T = TypeVar("T")
_Task = tuple[Callable[[], Any], "Future[Any]"]


def await_end(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait for the end of what another thread runs, as `accdp ps` then shows; whether it came in time."""
    blocked = _core.BlockedThread()
    try:
        return bool(wait([future], timeout_s).done)
    finally:
        del blocked


def await_last(group: _core.Group, last: Future[Any]) -> None:
    """Wait for a group's last operation on a worker, before another one of the caller's may begin.

    What interrupts that ends the group: others are in an operation, or come to it, that this rank would go past.
    """
    if last.done():
        return
    group.check_caller()  # it may wait for what a signal handler has interrupted
    try:
        await_end(last)
    except BaseException:
        group.abort(f"rank {group.rank} of {group.size} was interrupted before an operation's turn came")
        raise


class Worker:
    """Runs calls in their order on a thread of its own, which ends when this does, or is closed, and all are done.

    A daemon: of other threads Python waits for the end before anything else, however the process ends, and what runs
    here may wait for ranks that wait to hear of this one.
    """

    def __init__(self, name: str):
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=_loop, args=(self._tasks,), name=name, daemon=True)
        self._thread.start()
        self._dropped = weakref.finalize(self, self._tasks.put, None)
        self._dropped.atexit = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it after those before; of one that is closed, in the caller's thread."""
        future: Future[T] = Future()
        self._tasks.put((call, future))
        if self._is_closed:  # by now, so that nothing is put behind the end unseen
            self._thread.join()
            with contextlib.suppress(queue.Empty):
                while (task := self._tasks.get_nowait()) is not None:
                    _do(*task)
        return future

    def close(self, wait: bool = False) -> None:
        """Take no more; with ``wait`` return when all is done."""
        self._is_closed = True
        if self._dropped.detach():  # called at the process's end it would do nothing
            self._tasks.put(None)
        if wait:
            self._thread.join()


def _loop(tasks: queue.SimpleQueue[_Task | None]) -> None:
    _core.in_background()
    while (task := tasks.get()) is not None:
        _do(*task)
        del task  # what it holds is the caller's to drop


def _do(call: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
    finally:
        del call, future  # the error's traceback has this frame, and keeps what it holds
