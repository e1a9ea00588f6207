"""The exception that ends this process, if one does: the other ranks should then not wait for it."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any

_LONGEST = 500  # characters of an exception that are told


class _Watch:
    """What sys.excepthook was told of since watch()."""

    def __init__(self) -> None:
        self.hook: Any = None
        self.error: BaseException | None = None
        self.is_script = False  # what runs has a file, of which Python knows nothing any more at its end


_watch = _Watch()


def watch() -> None:
    """See from now on which exceptions Python hands to sys.excepthook; the hook that is there keeps its work."""
    if _watch.hook is not None:
        return
    there, _watch.is_script = sys.excepthook, hasattr(sys.modules.get("__main__"), "__file__")

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if _is_interpreters(sys._getframe()):
            _watch.error = error
        there(kind, error, traceback)

    _watch.hook = sys.excepthook = hook


def _is_interpreters(hook: FrameType) -> bool:
    """Whether a hook is called by the interpreter, which then runs nothing else, and not by a console."""
    outermost = hook
    while outermost.f_back is not None:
        outermost = outermost.f_back
    is_script = outermost.f_code.co_name == "<module>"
    return not is_script and outermost.f_globals.get("__name__") not in ("runpy", "threading")


def last() -> BaseException | None:
    """Return the exception by which the interpreter ends; None where it ends otherwise. For use at its exit.

    sys.last_value alone does not tell: pytest and IPython set it for errors that they catch and go on after, and a
    hook alone is also called by programs and consoles that report so what they have caught.
    """
    if _is_at_prompt():  # which goes on after each error
        return None
    error: BaseException | None = getattr(sys, "last_value", None)
    was_replaced = sys.excepthook is not _watch.hook  # by a hook that may, as torch's, or may not have called ours
    is_last = error is _watch.error or (was_replaced and error is not None and _left_the_script(error))
    return error if is_last else None


def reason(rank: int, error: BaseException | None = None) -> str:
    """Return what other ranks are told of an exception, the last() one if None: which may be as long as it likes."""
    error = error or last()
    try:
        said = repr(error)
    except Exception:
        said = type(error).__name__
    return f"rank {rank} ended by {said if len(said) <= _LONGEST else said[:_LONGEST] + '...'}"


def _left_the_script(error: BaseException) -> bool:
    """Whether an exception came out of what Python runs, instead of out of a call by what sets sys.last_value."""
    begin = error.__traceback__
    return begin is not None and begin.tb_frame.f_globals.get("__name__") in ("__main__", "runpy")


def _is_at_prompt() -> bool:
    # A script's code.interact() may leave ps1 behind.
    return hasattr(sys, "ps1") and (not _watch.is_script or bool(sys.flags.inspect))
