"""Training steps, as the tuner sees them: `step()`, `tuned()`, and the log of events that each rank keeps for it.

The log is kept where ACCDP_STEP_LOG names a folder, else nothing here costs more than a comparison. An event is a
finished collective, a step of a torch optimizer or a call of `step()`; accdp_comm/tune/events.py finds the steps in
them. The rank writes them into a mapped file, so they are there however it ends.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from . import _core
from .arguments import real_number, shown
from .launcher import ranks_started
from .procfs import node_key, start_time
from .settings import value_of

HEAD_BYTES = 4096  # kEventLogHead in csrc/coll/event_log.hpp: the number of events, then what begin() writes
DESCRIPTION_AT = 64
EVENT_BYTES = 24
CAPACITY = 1 << 16  # events; at 10 000 a second the last 6 s
STEP = 1 << 63  # labels; those of collectives have neither bit
OPTIMIZER = 1 << 62
_VARIABLE = "ACCDP_TUNED_"

T = TypeVar("T", int, str)
_log: mmap.mmap | None = None
_watching = False


def step(samples: float = 0) -> None:
    """Say that a training step of this rank is done. For loops in which `accdp tune` would see other steps than yours.

    Args:
        samples: That this rank worked off in it. With 0 the tuner goes by the batch size that it has set.

    Raises:
        UsageError: Not a number from 0 on.

    Local; 0.2 us in a trial of `accdp tune`, elsewhere it does nothing.
    """
    if not 0 <= (given := real_number(samples)) < math.inf:
        raise _core.UsageError(f"step: samples={shown(samples)}, expected a number >= 0")
    if _log is not None:
        _core.log_event(STEP, given)


def tuned(name: str, default: T) -> T:
    """Return what `accdp tune` (or `accdp run --profile`) wants a script to use, outside of them ``default``.

    Args:
        name: "batch_size" (of each rank), "global_batch_size" (of all ranks together) or "workers" (processes of each
            rank's data loader).
        default: Returned where nobody chose; its type is the result's.
    Raises:
        UsageError: No such name, or a value that is not of that type.
    """
    if name not in ("batch_size", "global_batch_size", "workers"):
        raise _core.UsageError(f"tuned: name={name!r}, expected batch_size, global_batch_size or workers")
    variable = _VARIABLE + name.upper()
    text = os.environ.get(variable, "")
    if not text and name == "global_batch_size":
        # A profile states the batch of a rank; how many ranks there are depends on the machine that it is used on.
        of_rank = tuned("batch_size", 0)
        text = str(of_rank * _world_size()) if of_rank else ""
    if not text:
        return default
    try:
        return type(default)(text)
    except (TypeError, ValueError) as error:
        raise _core.UsageError(f"{variable}={text}: expected a value like {default!r}") from error


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    if text.isascii() and text.isdecimal():
        return int(text)
    return max(1, ranks_started())  # in children of a rank too, such as those of its data loader


def environment(batch_size: int | None, global_batch_size: int | None, workers: int | None) -> dict[str, str]:
    """Return the variables that make `tuned()` return these values; None sets nothing."""
    values = {"BATCH_SIZE": batch_size, "GLOBAL_BATCH_SIZE": global_batch_size, "WORKERS": workers}
    return {_VARIABLE + name: str(value) for name, value in values.items() if value is not None}


@cache
def _remark(text: str) -> None:
    """Say it once."""
    sys.stderr.write(text)


def begin(rank: int, size: int) -> None:
    """Begin this process's log, if ACCDP_STEP_LOG asks for one and there is none yet, nor one of a living process.

    Args:
        rank, size: Place in the world, for the tuner.
    Raises:
        SystemCallError: The file cannot be made.

    Where there is no such folder, as on other hosts than the tuner's, a line on stderr says so, and nothing is kept.
    """
    global _log
    folder = value_of("ACCDP_STEP_LOG")
    if not folder or _log is not None:
        return
    if not os.path.isdir(folder):
        _remark(f"accdp: rank {rank} of {size}: ACCDP_STEP_LOG={folder}: no such folder on {socket.gethostname()}\n")
        return
    path = Path(folder, f"rank-{rank}.events")
    length = HEAD_BYTES + CAPACITY * EVENT_BYTES
    try:
        if _has_owner(path):
            return
        path.unlink(missing_ok=True)  # who still had it mapped would die of one made shorter
        with path.open("x+b") as file:
            file.truncate(length)
            made = mmap.mmap(file.fileno(), length)
    except OSError as error:
        raise _core.SystemCallError(f"ACCDP_STEP_LOG={folder}: cannot make {path}: {error.strerror}") from error
    owner = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "node": node_key()}
    text = json.dumps({"rank": rank, "size": size, **owner}).encode()
    made[DESCRIPTION_AT : DESCRIPTION_AT + len(text)] = text
    _core.log_events_into(made)
    _log = made


def _has_owner(path: Path) -> bool:
    """Whether another living process keeps that log: a rank, whose variables this one has got from it."""
    try:
        with path.open("rb") as file:
            about = json.loads(file.read(HEAD_BYTES)[DESCRIPTION_AT:].rstrip(b"\0"))
        if about["node"] != node_key() or about["pid"] == os.getpid():
            return False
        return start_time(about["pid"]) == about["start_time"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def watch_optimizers(register: Callable[[Callable[..., None]], Any]) -> None:
    """Log the steps of all torch optimizers, if there is a log: equal buckets alone do not show where a step ends.

    Args:
        register: torch.optim.optimizer.register_optimizer_step_post_hook; handed in, because this module is used
            without torch too.
    """
    global _watching
    if _log is None or _watching:
        return
    _watching = True
    numbers: dict[int, int] = {}

    def stepped(optimizer: object, *_: object) -> None:
        _core.log_event(OPTIMIZER | numbers.setdefault(id(optimizer), len(numbers)))

    register(stepped)
