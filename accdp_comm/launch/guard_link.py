"""A guard's end of its connection to `accdp run`. Imported by file, too: agent.py runs without the package.

Messages both ways: 4 bytes length (little endian, of kind and content), 1 byte kind, content. Kinds: ``j`` JSON, ``o``
and ``e`` bytes of the rank's standard output and error.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

if not __package__:
    from keepalive import keep_open  # type: ignore[import-not-found]
else:
    from ..keepalive import keep_open

_CONNECT_S = 5.0
_CHUNK = 1 << 16


def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """Return a connection to `accdp run`, by the first address that leads there."""
    trouble = []
    for address in addresses:
        try:
            link = socket.create_connection((address, port), timeout=_CONNECT_S)
        except OSError as error:
            trouble.append(f"{address}: {error}")
            continue
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_open(link)
        return link
    sys.exit(f"accdp run: no route from {socket.gethostname()} to the launcher, port {port} ({'; '.join(trouble)})")


def borrow(address: str) -> int:
    """Return the standard input of `accdp run`, on this host, which gives it at that address."""
    with socket.socket(socket.AF_UNIX) as lender:
        lender.connect(bytes.fromhex(address))
        _, found, _, _ = socket.recv_fds(lender, 1, 1)
    if not found:
        raise OSError("accdp run did not hand its standard input on")
    return found[0]


class Link:
    """The connection to `accdp run`. A lost one is remembered, and nothing more is said to it."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._buffer = bytearray()
        self.lost = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: bytes, content: bytes) -> None:
        if self.lost:
            return
        try:
            self._socket.sendall(struct.pack("<I", len(content) + 1) + kind + content)
        except OSError:
            self.lost = True

    def tell(self, **message: Any) -> None:
        self.send(b"j", json.dumps(message).encode())

    def part(self) -> None:
        """Say no more, and wait until all has been read: an order to a closed socket would undo what is on its way."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        while not self.lost:
            self.receive()

    def receive(self) -> list[dict[str, Any]]:
        """Return the orders that one read brings; the link is lost where it brings the end."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self.lost = True
        self._buffer += data
        orders = []
        while len(self._buffer) >= 4:
            end = 4 + struct.unpack_from("<I", self._buffer)[0]
            if len(self._buffer) < end:
                break
            orders.append(json.loads(bytes(self._buffer[5:end])))
            del self._buffer[:end]
        return orders
