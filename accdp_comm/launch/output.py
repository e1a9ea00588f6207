"""What ranks print: whole lines, in the order of each rank, with its number before them where that helps.

Lines are labelled ``[3] `` on standard error when there are several ranks, and on standard output when that is a
terminal; elsewhere standard output is data, which some program may parse, and stays as the ranks wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import last_error

# On a terminal a line without an end (a prompt, a progress bar) is shown after so long; elsewhere lines are kept whole.
_STALE_S = 0.1
_LONGEST_LINE = 1 << 20
_LONGEST_TAIL_LINE = 1 << 16  # remembered of one
_NOBODY_READS = (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal that was closed
_WRITE = 4096  # select() promises that a pipe takes so much without blocking
_FULL_S = 0.01
_HURRIED_S = 1.0  # how long a reader is waited for once the user wants the end
OUT, ERR = "o", "e"


class OutputClosed(Exception):
    """Whoever read our output has gone, as in ``accdp run ... | head``, or does not read while all waits. Or it
    cannot be written to for the reason that this has as its text, such as a full disk."""


class Sink:
    """One of our own output streams. A reader that does not read must not keep us from obeying a signal.

    Args:
        fd: Where to write.
        wakeup: Readable when a signal came; None: signals are handled elsewhere.
        interrupted: Called then, while we wait for the reader.
        patience_s: With which the reader is waited for; None: without end.
    """

    def __init__(
        self,
        fd: int,
        wakeup: int | None,
        interrupted: Callable[[], None] = lambda: None,
        patience_s: float | None = None,
    ):
        self._fd = _open_terminal(fd) if os.isatty(fd) else fd
        self._is_ours = self._fd != fd
        self._wakeup = [] if wakeup is None else [wakeup]
        self._interrupted = interrupted
        self.patience_s = patience_s

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            OutputClosed: Nobody will ever read it, or nobody did for ``patience_s``.
        """
        view = memoryview(data)
        since = time.monotonic()  # when it last took something, or a signal came
        while view:
            left = None if self.patience_s is None else max(0.0, since + self.patience_s - time.monotonic())
            ready, writable, _ = select.select(self._wakeup, [self._fd], [], left)
            if ready:
                self._interrupted()
                since = time.monotonic()
            elif not writable or left == 0:
                raise OutputClosed
            if writable:
                try:
                    view = view[os.write(self._fd, view[:_WRITE]) :]
                    since = time.monotonic()
                except BlockingIOError:
                    time.sleep(_FULL_S)  # a terminal without room for the two bytes that a line's end becomes
                except OSError as error:
                    raise OutputClosed("" if error.errno in _NOBODY_READS else error.strerror) from error

    def close(self) -> None:
        """Let go what was opened for writing there; the stream itself stays open."""
        if self._is_ours:
            os.close(self._fd)


def _open_terminal(fd: int) -> int:
    """Return a descriptor of the same terminal that never blocks: it may have room, and too little for what is written.

    Not the one that there is made so, which others write to: the user's shell, for one.
    """
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return fd  # of another user, as after su, or not to be seen in this container


def say_last(text: str, fd: int = 2) -> None:
    """Write a line of our own to standard error after a job; a reader that has left or does not read will miss it."""
    with contextlib.closing(Sink(fd, None, patience_s=_HURRIED_S)) as sink, contextlib.suppress(OutputClosed):
        sink.write(text.encode(errors="replace") + b"\n")


@dataclass
class _Stream:
    """What one rank wrote to one of its streams and we have not yet passed on."""

    pending: bytearray = field(default_factory=bytearray)
    since: float = 0.0  # when the first pending byte came


@dataclass(frozen=True)
class Said:
    """One line that a rank wrote to its standard error."""

    text: bytes
    at: float  # time.monotonic() when its last byte was read, which on a busy machine is some 10 ms after it came


class Output:
    """Passes on what ranks print, and remembers the end of what each said on standard error.

    Args:
        ranks: Number of ranks.
        sinks: Ours, by OUT and ERR.
        labels: Which of them carry rank numbers.
        is_terminal: Which of them are terminals.
        is_one_place: Both lead to the same terminal or file.
    """

    def __init__(
        self,
        ranks: int,
        sinks: Mapping[str, Sink],
        labels: Mapping[str, bool],
        is_terminal: Mapping[str, bool],
        is_one_place: bool,
    ):
        self._sinks, self._labels, self._is_terminal = sinks, labels, is_terminal
        self._width = len(str(ranks - 1))
        self._alone = ranks == 1
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._tails: dict[int, deque[Said]] = {}
        self._unfinished: dict[int, bytearray] = {}  # of the tails
        self._open: dict[str, tuple[int, str] | None] = dict.fromkeys(sinks)
        self._is_one_place = is_one_place
        self._last_writer, self._since = -1, 0.0  # where errors go: whose lines stand last there, and since when
        self._closed: set[str] = set()
        self.trouble = ""  # why one of them cannot be written to, where it is not that its reader has left

    @property
    def is_closed(self) -> bool:
        """Whether somebody has left who read one of the streams."""
        return bool(self._closed)

    def hurry(self) -> None:
        """From now on do not wait long for readers: what ranks say would hold up their end."""
        for sink in self._sinks.values():
            sink.patience_s = _HURRIED_S

    def label_width(self) -> int:
        """Return how many columns of the terminal the labels take."""
        return self._width + 3 if self._labels[OUT] else 0

    def feed(self, rank: int, kind: str, data: bytes) -> None:
        """Take bytes that a rank wrote; whole lines are passed on at once."""
        now = time.monotonic()
        if kind == ERR:
            self._remember(rank, data, now)
        stream = self._streams.setdefault((rank, kind), _Stream())
        if not stream.pending:
            stream.since = now
        before = len(stream.pending)
        stream.pending += data
        last = data.rfind(b"\n") + 1
        end = len(stream.pending) if self._alone else before + last if last else 0
        if end == 0 and len(stream.pending) > _LONGEST_LINE:
            end = len(stream.pending)
        if end:
            self._pass_on(rank, kind, stream, end)

    def flush_stale(self) -> float | None:
        """Show unfinished lines that wait for long; return in how many seconds to call again, None if nothing waits."""
        now = time.monotonic()
        soonest: float | None = None
        for (rank, kind), stream in self._streams.items():
            if not stream.pending or not self._is_terminal[kind]:
                continue
            left = stream.since + _STALE_S - now
            if left <= 0:
                self._pass_on(rank, kind, stream, len(stream.pending))
            else:
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def finish(self, rank: int) -> None:
        """The rank will write no more: pass on what is left. Among several, a last line without an end gets one."""
        if self._unfinished.get(rank):
            self._remember(rank, b"\n", time.monotonic())
        for kind in (OUT, ERR):
            stream = self._streams.pop((rank, kind), None)
            if stream is None:
                continue
            if stream.pending:
                stream.pending += b"" if self._alone else b"\n"
                self._pass_on(rank, kind, stream, len(stream.pending))

    def say(self, text: str) -> None:
        """Write a line of our own to standard error."""
        self._write(ERR, text.encode(errors="replace") + b"\n", None)

    def close(self) -> None:
        """Nothing more will be written."""
        for sink in self._sinks.values():
            sink.close()

    def launcher_said(self, kind: str, data: bytes) -> None:
        """Pass on what the MPI launcher itself wrote."""
        self._write(kind, data, None)

    def last_error(self, rank: int) -> list[Said]:
        """Return the end of what a rank said on standard error: its last traceback, else its last lines."""
        tail = list(self._tails.get(rank, ()))
        return tail[last_error.begins([line.text for line in tail]) :]

    def is_last(self, rank: int, said: list[Said]) -> bool:
        """Whether these lines of a rank stand at the end of what was written, with nothing of others between them."""
        return bool(said) and self._last_writer == rank and self._since <= said[0].at

    def _remember(self, rank: int, data: bytes, now: float) -> None:
        """Keep whole lines; of one that has no end, such as a progress bar, and of long ones their end."""
        unfinished = self._unfinished.setdefault(rank, bytearray())
        *lines, rest = data.split(b"\n")
        tail = self._tails.setdefault(rank, deque(maxlen=last_error.TAIL_LINES))
        for line in lines:
            whole = last_error.without_torchs_label(bytes(unfinished + line))
            unfinished.clear()
            tail.append(Said(whole[-_LONGEST_TAIL_LINE:], now))
        unfinished += rest
        del unfinished[: max(0, len(unfinished) - _LONGEST_TAIL_LINE)]

    def _pass_on(self, rank: int, kind: str, stream: _Stream, end: int) -> None:
        data = bytes(stream.pending[:end])
        del stream.pending[:end]
        self._write(kind, data, rank, stream.since)
        stream.since = time.monotonic()

    def _write(self, kind: str, data: bytes, rank: int | None, at: float = math.inf) -> None:
        """Write lines of one rank, whose first came ``at``, or of ours (None); another's unfinished line is ended."""
        me = (-1 if rank is None else rank, kind)
        owner = self._open[kind]
        label = b"" if rank is None or not self._labels[kind] else last_error.label(rank, self._width)
        parts = [b"\n"] if owner not in (None, me) else []
        for number, line in enumerate(data.splitlines(keepends=True) if label else [data]):
            parts += [line] if number == 0 and owner == me else [label, line]
        self._open[kind] = None if data.endswith(b"\n") else me
        if (kind == ERR or self._is_one_place) and self._last_writer != me[0]:
            self._last_writer, self._since = me[0], at
        if kind in self._closed:
            return
        try:
            self._sinks[kind].write(b"".join(parts))
        except OutputClosed as closed:
            self._closed.add(kind)
            if str(closed):
                self.trouble = f"standard {'output' if kind == OUT else 'error'} cannot be written to: {closed}"
