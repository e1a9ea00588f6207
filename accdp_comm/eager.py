"""Keeps torch.compile out of functions that are no part of a graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function as one that compiled code calls as it is: a graph ends before it, and one begins after it.

    Dynamo would look into it, and fail where it meets what it cannot represent, such as a process group's backend.
    """
    kept: list[Callable[P, T]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        dynamo = sys.modules.get("torch._dynamo")  # who compiles has loaded it; to load it takes seconds
        if dynamo is None:
            return function(*args, **kwargs)
        if not kept:
            kept.append(dynamo.disable(function, wrapping=False))
        return kept[0](*args, **kwargs)

    return call
