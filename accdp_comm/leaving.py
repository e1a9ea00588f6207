"""What a process does with its groups when the interpreter ends: their work, then they; MPI is left after them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

from . import _core, at_end, mpi_world, uncaught
from .at_end import attempt
from .worker import Worker

_THREADS_SECONDS = 0.1
_READERS_SECONDS = 10.0  # that others may take to read the memory of devices that goes with this process

# Groups that may still be open then.
_groups: weakref.WeakSet[_core.Group] = weakref.WeakSet()
_closers: list[Any] = []
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def keep_until_exit(group: _core.Group) -> None:
    """Close this group at interpreter exit, before MPI, if it is then still open."""
    mpi_world.note_group()
    _groups.add(group)


def work_until_exit(worker: Worker) -> None:
    """Let what it was given be done when the interpreter ends, unless that is by an exception."""
    _workers.add(worker)


def before_exit(closer: Any) -> None:
    """Call ``closer()`` at interpreter exit, before groups are closed and MPI is finalised."""
    if closer not in _closers:
        _closers.append(closer)


def _leave() -> None:
    error = uncaught.last()
    for worker in list(_workers):
        attempt(lambda worker=worker: worker.close(wait=error is None and not at_end.interrupts))
    if at_end.interrupts:
        error = error or at_end.interrupts[0]
    for closer in _closers:
        attempt(closer)
    _close_groups(error)
    if error is None:
        attempt(lambda: _core.await_readers(_READERS_SECONDS))


at_end.do(_leave)


def _close_groups(error: BaseException | None) -> None:
    for group in list(_groups):
        if error is not None:
            attempt(lambda group=group: group.abort(uncaught.reason(group.rank, error)))
        elif group.is_busy:  # a daemon thread is there, and would be still when MPI is finalised
            attempt(lambda group=group: group.abort(f"rank {group.rank} ended in the middle of an operation"))
        attempt(group.close)
    # Python would end threads on their way out of closed groups, through frames of C++ that cannot be left so, and MPI
    # must not go before them.
    if any(thread.daemon and thread is not threading.current_thread() for thread in threading.enumerate()):
        time.sleep(_THREADS_SECONDS)


# A forked child must not close what belongs to its parent when it exits.
for _kept in (_groups, _closers, _workers):
    os.register_at_fork(after_in_child=_kept.clear)
