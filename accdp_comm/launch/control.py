"""The launcher's end of the connections to its ranks' guards (agent.py, which tells the messages)."""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ..keepalive import keep_open

_CHUNK = 1 << 18
_LARGEST = 1 << 24  # no message of a guard is longer; a longer one is not from a guard


class Listener:
    """Where guards call.

    Args:
        addresses: At which they try to reach us, in order; empty if all of them are on this host.
    """

    def __init__(self, addresses: list[str]):
        self._socket = socket.create_server(("" if addresses else "127.0.0.1", 0), backlog=1024)
        self._token = secrets.token_hex(16)
        self._addresses = addresses or ["127.0.0.1"]

    def fileno(self) -> int:
        return self._socket.fileno()

    def invitation(self, rank_variable: str, ask_gpus: Sequence[str]) -> str:
        """Return what a guard must know to call; secret, since who knows it can speak for a rank.

        Args:
            rank_variable: In which the launcher tells each process its rank.
            ask_gpus: Command whose output each guard reports; empty for none.
        """
        told = {"addresses": self._addresses, "port": self._socket.getsockname()[1], "token": self._token}
        return json.dumps({**told, "rank_variable": rank_variable, "ask_gpus": list(ask_gpus)})

    def accept(self) -> Connection:
        connection, _ = self._socket.accept()
        keep_open(connection)
        return Connection(connection, self._token)

    def close(self) -> None:
        self._socket.close()


def has_news(selector: selectors.BaseSelector) -> bool:
    """Return whether a guard calls, or has said what was not read yet, perhaps because this process was held up."""
    return any(isinstance(key.fileobj, (Listener, Connection)) for key, _ in selector.select(0))


class Connection:
    """One guard. Until it has said hello with the right token, nothing it says counts."""

    def __init__(self, connection: socket.socket, token: str):
        self._socket = connection
        self._token = token
        self._buffer = bytearray()
        self.is_known = False
        self.is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def peer(self) -> str:
        """Return the address it calls from."""
        return str(self._socket.getpeername()[0])

    def our_address(self) -> str:
        """Return the address at which it reached us."""
        return str(self._socket.getsockname()[0])

    def receive(self) -> Iterator[tuple[str, Any]]:
        """Yield what one read brings: ("j", a dict), ("o", bytes), ("e", bytes). Closed at the end or on nonsense."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self.close()
        self._buffer += data
        while len(self._buffer) >= 5:
            length = struct.unpack_from("<I", self._buffer)[0]
            if length > _LARGEST:
                self.close()
                return
            if len(self._buffer) < 4 + length:
                return
            kind, content = chr(self._buffer[4]), bytes(self._buffer[5 : 4 + length])
            del self._buffer[: 4 + length]
            message = json.loads(content) if kind == "j" and (self.is_known or self._is_hello(content)) else content
            if not self.is_known:
                self.close()
                return
            yield kind, message

    def _is_hello(self, content: bytes) -> bool:
        try:
            message = json.loads(content)
            self.is_known = hmac.compare_digest(str(message["token"]), self._token)
        except (ValueError, KeyError, TypeError):
            self.is_known = False
        return self.is_known

    def order(self, **order: Any) -> None:
        """Tell the guard what to do. One that has gone is noticed when its connection ends, not here."""
        content = json.dumps(order).encode()
        try:
            self._socket.sendall(struct.pack("<I", len(content) + 1) + b"j" + content)
        except OSError:
            return

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()
