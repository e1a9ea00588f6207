"""Messages between two ranks: what Communicator has of send and receive, blocking or under way."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from . import _core, leaving, uncaught
from ._core import Group, MessageWork
from .buffers import Buffer
from .device_memory import HostView, OnDevices

_SETTLE_SECONDS = 5.0  # that a process which ends without close() waits for its sends

_cores: weakref.WeakSet[Group] = weakref.WeakSet()


def waitall(works: Iterable[MessageWork], timeout_s: float | None = None) -> list[int | None]:
    """Wait for several works of Communicator.isend() and irecv(); faster than one after the other.

    Args:
        works: Of any communicators; may be empty.
        timeout_s: For all of them together, as in their wait().
    Returns:
        What wait() of each returns.
    Raises:
        The first error in their order, after all of them have ended; PeerTimeout where ``timeout_s`` has passed, and
        they are still under way.
    """
    return _core.waitall(works, timeout_s)


def settle_at_exit(group: Group) -> None:
    """Let what this group still sends arrive when the interpreter ends without close()."""
    _cores.add(group)
    leaving.before_exit(_settle)


def _settle() -> None:
    if uncaught.last() is not None:  # others are told at once that this rank goes
        return
    problems = []
    for group in list(_cores):
        try:
            group.settle(_SETTLE_SECONDS)
        except _core.Error as error:
            problems.append(f"{error}")
    if problems:
        raise _core.Error("; ".join(problems))


class Messages(OnDevices):
    """Base class of Communicator."""

    def _goes_as_it_is(self, data: Buffer, peer: int) -> bool:
        """Whether MPI gets a message's device memory itself; after what the device's stream holds, if so."""
        if data.device is None or not self._core.takes_device_memory(data.count * data.itemsize, peer):
            return False
        self._path().await_stream(data.device, data.stream)
        return True

    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Send ``x`` to rank ``dst``; returns when ``x`` may be changed again.

        Args:
            x: Contiguous array or tensor, any datatype.
            dst: Receiving rank.
            tag: Number from 0 to 2147483647 that the receiver asks for.
        Raises:
            UsageError: Not such an array, or dst or tag out of range. Nothing was sent.
            MismatchError: It receives another number of bytes; datatypes are not compared. Where the message is short,
                the next call says so.
            PeerTimeout, PeerDied: As in bcast().
        """
        if self._core.try_send(x, dst, tag):
            return
        self._args.rank_of("dst", dst)
        data = self._args.buffer("x", x, writable=False)
        what = (data.pointer, data.count, data.datatype, dst, self._args.tag(tag))
        if data.device is None:
            self._core.send(*what)
        else:
            _core.send_from_device(self._core, data.device, data.stream, *what)

    def recv(self, x: Any, src: int = -1, tag: int = 0) -> int:
        """Receive into ``x``.

        Args:
            x: Contiguous array or tensor, with the count and datatype of what is sent.
            src: Sending rank, or -1 for any.
            tag: Of the message.
        Returns:
            The rank that sent.
        Raises:
            As send().
        """
        if (sender := self._core.try_recv(x, src, tag)) >= 0:
            return sender
        self._args.source(src)
        data = self._args.buffer("x", x, writable=True)
        what = (data.pointer, data.count, data.datatype, src, self._args.tag(tag))
        if data.device is None:
            return self._core.recv(*what)
        return _core.recv_to_device(self._core, data.device, data.stream, *what)

    def isend(self, x: Any, dst: int, tag: int = 0) -> MessageWork:
        """Begin to send ``x`` to rank ``dst``; returns at once.

        Args:
            x: Contiguous array or tensor, any datatype; not to be changed before the work is done. One on a CUDA device
                is handed to MPI or copied to the host first, which waits for what its stream holds.
            dst, tag: As in send().
        Returns:
            A work: ``wait(timeout_s=None)`` returns None when ``x`` may be changed again, ``test()`` says whether it
            may. They raise PeerTimeout and PeerDied, as send() does.
        Raises:
            UsageError: Not such an array, or dst or tag out of range. Nothing was sent.

        Messages between two ranks with one tag are received in the order in which they were begun, isend or send. They
        move while this process waits for any message of this communicator, and beside everything else on a thread that
        sleeps when there is nothing to move. How long they may take counts from wait() on. The work keeps ``x``
        alive; if it is dropped before it is done, it goes on all the same, and close() waits for it.
        """
        work = self._core.try_isend(x, dst, tag)
        if work is not None:
            return work
        self._args.rank_of("dst", dst)
        data = self._args.buffer("x", x, writable=False)
        number = self._args.tag(tag)
        if self._goes_as_it_is(data, dst):
            return self._core.isend(data.pointer, data.count, data.datatype, dst, number, data.owner)
        view = HostView(self._path_of(data), [(data, True, False)])
        return self._core.isend(view.pointers[0], data.count, data.datatype, dst, number, (data.owner, view))

    def irecv(self, x: Any, src: int = -1, tag: int = 0) -> MessageWork:
        """Begin to receive into ``x``; returns at once.

        Args:
            x: Contiguous array or tensor, with the count and datatype of what is sent; undefined before the work is
                done. One on a CUDA device is written in the order of its stream, by the wait() or test() that tells
                that it is done; MPI, where it takes device memory, writes it before that, after what the stream holds
                now, which is waited for.
            src, tag: As in recv().
        Returns:
            A work: ``wait(timeout_s=None)`` returns the rank that sent when ``x`` holds the message, ``test()`` says
            whether it does. They raise MismatchError, PeerTimeout and PeerDied, as recv() does.
        Raises:
            UsageError: Not such an array, or src or tag out of range.

        Receives of one tag take messages in the order in which they were begun. Otherwise as isend(); but a receive
        that nobody has answered does not keep close() waiting: that is an error there.
        """
        work = self._core.try_irecv(x, src, tag)
        if work is not None:
            return work
        self._args.source(src)
        data = self._args.buffer("x", x, writable=True)
        number = self._args.tag(tag)
        if self._goes_as_it_is(data, src):
            return self._core.irecv(data.pointer, data.count, data.datatype, src, number, data.owner)
        self._args.any_threads("x", data)
        view = HostView(self._path_of(data), [(data, False, True)])
        then = None if data.device is None else view.deliver
        return self._core.irecv(view.pointers[0], data.count, data.datatype, src, number, (data.owner, view), then)
