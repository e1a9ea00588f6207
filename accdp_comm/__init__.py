"""accdp: data parallelism with several ranks per GPU and fewer bytes between them.

``torch.distributed.init_process_group("accdp")`` works without importing this package. For use without torch:
``accdp_comm.Communicator``. Importing this loads neither torch nor MPI and starts no thread.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import hooks, settings
    from ._core import (
        CodecError,
        CudaError,
        Error,
        MessageWork,
        MismatchError,
        MpiError,
        PeerDied,
        PeerTimeout,
        SystemCallError,
        UsageError,
        reset_stats,
        stats,
    )
    from .allreduce import AllreduceResult, AllreduceWork, allreduce_compressed
    from .backend import measure, monitored_barrier
    from .bcast import BcastResult, BcastWork, bcast_compressed, relative
    from .communicator import Communicator
    from .messages import waitall
    from .options import Options
    from .steps import step, tuned
    from .survival import failed_ranks, shrink
    from .weight_sync import WeightSync

__all__ = [
    "AllreduceResult",
    "AllreduceWork",
    "BcastResult",
    "BcastWork",
    "CodecError",
    "Communicator",
    "CudaError",
    "Error",
    "MessageWork",
    "MismatchError",
    "MpiError",
    "Options",
    "PeerDied",
    "PeerTimeout",
    "SystemCallError",
    "UsageError",
    "WeightSync",
    "__version__",
    "allreduce_compressed",
    "bcast_compressed",
    "failed_ranks",
    "hooks",
    "measure",
    "monitored_barrier",
    "relative",
    "reset_stats",
    "settings",
    "shrink",
    "stats",
    "step",
    "tuned",
    "waitall",
]

_ERRORS = (
    "CodecError",
    "CudaError",
    "Error",
    "MismatchError",
    "MpiError",
    "PeerDied",
    "PeerTimeout",
    "SystemCallError",
    "UsageError",
)
_HOMES = {
    "AllreduceResult": "allreduce",
    "AllreduceWork": "allreduce",
    "BcastResult": "bcast",
    "BcastWork": "bcast",
    "Communicator": "communicator",
    "Options": "options",
    "WeightSync": "weight_sync",
    "allreduce_compressed": "allreduce",
    "bcast_compressed": "bcast",
    "relative": "bcast",
    "measure": "backend",
    "monitored_barrier": "backend",
    "failed_ranks": "survival",
    "shrink": "survival",
    "MessageWork": "_core",
    **dict.fromkeys(_ERRORS, "_core"),
    "reset_stats": "_core",
    "stats": "_core",
    "step": "steps",
    "tuned": "steps",
    "waitall": "messages",
}


def _say_left() -> None:
    if "mpi4py.MPI" in sys.modules:
        from . import siblings

        siblings.say_left()


atexit.register(_say_left)


def __getattr__(name: str) -> Any:
    if name in ("settings", "hooks"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # what is called in a loop is not looked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
