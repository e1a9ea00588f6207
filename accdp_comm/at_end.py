"""What is left of ours when the interpreter ends: run where this module's first import comes among atexit's handlers.

Python runs the last one registered first. `import torch` brings this module in, so that what a script registers after
it, and before its first group, finds its groups open still.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_steps: list[Callable[[], None]] = []


def do(step: Callable[[], None]) -> None:
    """Call ``step()`` then; what came first comes first."""
    _steps.append(step)


@atexit.register
def _run() -> None:
    for step in _steps:
        step()
