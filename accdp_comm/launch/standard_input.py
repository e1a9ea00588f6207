"""Our standard input becomes rank 0's as it is, where that runs on this host: launchers relay it, and lose some or its
end on the way."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys

from ..launcher import peer_of


class Lender:
    """Gives the descriptor to processes of this user that ask for it at an address (guard_link.borrow)."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        name = b"\0accdp-run-" + secrets.token_hex(16).encode()  # which goes when this process does
        self._socket.bind(name)
        self._socket.listen()
        self.address = name.hex()

    def fileno(self) -> int:
        return self._socket.fileno()

    def lend(self) -> None:
        """Answer who has connected."""
        with contextlib.suppress(OSError):  # it has gone again
            connection, _ = self._socket.accept()
            with connection:
                if peer_of(connection)[1] == os.getuid():
                    socket.send_fds(connection, [b"0"], [0])

    def close(self) -> None:
        self._socket.close()


def make_lender() -> Lender | None:
    """Return a lender; None where that has no use, or is not allowed here, and launchers relay."""
    if is_for_others():
        return None
    try:
        return Lender()
    except OSError:
        return None


def is_for_others() -> bool:
    """Whether there is none, or what is typed at our terminal is for somebody else.

    The launcher and the ranks, in sessions of their own, would be handed that: the kernel stops only a session's own
    processes from reading there.
    """
    try:
        return sys.__stdin__ is None or (os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp())
    except OSError:  # the terminal is no longer ours
        return True
