"""A guard's end of its connection to `accdp run`. Imported by file, too: agent.py runs without the package.

Before anything else both show that they know the token of the job, which came with the environment and is not sent
here: whoever else listens at one of the addresses tried, or calls `accdp run`, is told nothing and obeyed in nothing.
The guard sends a nonce, `accdp run` answers with one of its own and a proof() for both, the guard with another proof().

Messages both ways: 4 bytes length (little endian, of kind and content), 1 byte kind, content. Kinds: ``j`` JSON, ``o``
and ``e`` bytes of the rank's standard output and error.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

if not __package__:
    from keepalive import keep_open  # type: ignore[import-not-found]
else:
    from ..keepalive import keep_open

_CONNECT_S = 5.0
# At one address, and while one is silent at all of them, again and again: `accdp run` may be held up by all ranks
# calling at once, or by who reads its output. It gives ranks so long to start.
_ANSWER_S, _START_S = 10.0, 120.0
_CHUNK = 1 << 16
NONCE_BYTES = PROOF_BYTES = 32
HEAD, GUARD = b"head", b"guard"


def proof(token: str, who: bytes, nonces: bytes) -> bytes:
    """Return what shows that HEAD or GUARD knows the token; ``nonces``: the guard's, and then that of `accdp run`."""
    return hmac.digest(token.encode(), who + nonces, "sha256")


def connect(addresses: Sequence[str], port: int, token: str) -> socket.socket:
    """Return a connection to `accdp run`, by the first address that leads there."""
    deadline = time.monotonic() + _START_S
    while True:
        trouble, is_silent = [], False
        for address in addresses:
            try:
                link = socket.create_connection((address, port), timeout=_CONNECT_S)
            except OSError as error:
                trouble.append(f"{address}: {error}")
                continue
            try:
                _meet(link, token)
            except OSError as error:
                trouble.append(f"{address}: {error}")
                is_silent = is_silent or isinstance(error, TimeoutError)
                link.close()
                continue
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_open(link)
            return link
        if not is_silent or time.monotonic() >= deadline:
            host = socket.gethostname()
            sys.exit(f"accdp run: no route from {host} to the launcher, port {port} ({'; '.join(trouble)})")


def _meet(link: socket.socket, token: str) -> None:
    """Find out that it is `accdp run` that answers, and show who calls."""
    mine, answer, deadline = os.urandom(NONCE_BYTES), b"", time.monotonic() + _ANSWER_S
    link.sendall(mine)
    while missing := NONCE_BYTES + PROOF_BYTES - len(answer):
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("no answer in time")
        link.settimeout(left)
        if not (data := link.recv(missing)):
            break
        answer += data
    nonces = mine + answer[:NONCE_BYTES]
    if answer[NONCE_BYTES:] != proof(token, HEAD, nonces):
        raise OSError("somebody else answers there")
    link.sendall(proof(token, GUARD, nonces))


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
