"""What is left of ours when the interpreter ends: run where this module's first import comes among atexit's handlers.

Python runs the last one registered first. `import torch` brings this module in, so that what a script registers after
it, and before its first group, finds its groups open still.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

_steps: list[Callable[[], object]] = []
_last: list[Callable[[], object]] = []
interrupts: list[KeyboardInterrupt] = []  # that came in one of them


def do(step: Callable[[], object]) -> None:
    """Call ``step()`` then; what came first comes first."""
    _steps.append(step)


def do_last(step: Callable[[], object]) -> None:
    """The same, after all that is not done last."""
    _last.append(step)


def attempt(step: Any) -> None:
    """Run a part of one; a failure must not keep the next ones from being tried."""
    try:
        step()
    except KeyboardInterrupt as interrupt:
        interrupts.append(interrupt)
    except Exception as error:
        sys.stderr.write(f"accdp: while leaving: {error}\n")


@atexit.register
def _run() -> None:
    for step in (*_steps, *_last):
        step()
