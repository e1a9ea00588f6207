"""What Linux does when a parent ends: to its children, and to theirs. The standard library alone; see agent.py."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(number: int, parent: int) -> bool:
    """From now on this process gets that signal when its parent ends; exec() changes nothing about it, fork() does.

    Args:
        number: The signal.
        parent: Process that has started this one.
    Returns:
        Whether it was still there; else no signal comes.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """From now on whatever the descendants of this process leave behind becomes its child, which it has to wait for."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
