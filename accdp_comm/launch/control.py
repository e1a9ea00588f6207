"""The launcher's end of the connections to its ranks' guards (agent.py, which tells the messages)."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import selectors
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ..keepalive import keep_open
from .guard_link import GUARD, HEAD, NONCE_BYTES, PROOF_BYTES, proof

_CHUNK = 1 << 18
_LARGEST = 1 << 24  # no message of a guard is longer
_STRANGERS = 64  # callers beside guards who may be about to show who they are


class Listener:
    """Where guards call.

    Anybody may call, too: who does not show that he is a guard is dismissed, and costs no more than a connection.

    Args:
        addresses: At which they try to reach us, in order; empty if all of them are on this host.
        ranks: How many guards there will be.
    """

    def __init__(self, addresses: list[str], ranks: int):
        self._socket = socket.create_server(("" if addresses else "127.0.0.1", 0), backlog=1024)
        self._token = secrets.token_hex(16)
        self._addresses = addresses or ["127.0.0.1"]
        self._most = ranks + _STRANGERS
        self._unknown: list[Connection] = []

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

    def accept(self, selector: selectors.BaseSelector) -> None:
        """Take a call, and register it, with the Connection as its data."""
        self._unknown = [one for one in self._unknown if not (one.is_known or one.is_closed)]
        if len(self._unknown) >= self._most:
            self._unknown.pop(0).leave(selector)
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            if error.errno == errno.ECONNABORTED:
                return
            if not self._unknown:
                raise
            self._unknown.pop(0).leave(selector)  # there are too many open files
            return
        keep_open(accepted)
        self._unknown.append(connection := Connection(accepted, self._token))
        selector.register(connection.key, selectors.EVENT_READ, connection)

    def leave(self, selector: selectors.BaseSelector) -> None:
        """Nobody is to call any more, and who has, without showing that he is a guard, is dismissed."""
        for one in self._unknown:
            if not one.is_known:
                one.leave(selector)
        selector.unregister(self._socket.fileno())
        self.close()

    def close(self) -> None:
        self._socket.close()


def has_news(selector: selectors.BaseSelector) -> bool:
    """Return whether a guard calls, or has said what was not read yet, perhaps because this process was held up."""
    return any(isinstance(key.fileobj, Listener) or isinstance(key.data, Connection) for key, _ in selector.select(0))


class Connection:
    """One guard. Until it has shown that it knows the token (guard_link.py) it has said nothing."""

    def __init__(self, connection: socket.socket, token: str):
        self._socket = connection
        self._token = token
        self._buffer = bytearray()
        self._nonces = b""
        self.key = connection.fileno()  # of selectors, also when it is closed
        self.is_known = False
        self.is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def leave(self, selector: selectors.BaseSelector) -> None:
        """Close it, if it is not closed, and have it no longer looked at."""
        known = selector.get_map().get(self.key)
        if known is not None and known.data is self:  # of a closed one the number may be another's by now
            selector.unregister(self.key)
        self.close()

    def peer(self) -> str:
        """Return the address it calls from."""
        return str(self._socket.getpeername()[0])

    def our_address(self) -> str:
        """Return the address at which it reached us."""
        return str(self._socket.getsockname()[0])

    def receive(self) -> Iterator[tuple[str, Any]]:
        """Yield what one read brings: ("j", a dict), ("o", bytes), ("e", bytes). Closed at the end or on nonsense."""
        if not self.is_known:
            return self._meet()
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
            yield kind, json.loads(content) if kind == "j" else content

    def _meet(self) -> None:
        """Take what one read brings of the beginning; no byte beyond it is read."""
        wanted = PROOF_BYTES if self._nonces else NONCE_BYTES
        try:
            data = self._socket.recv(wanted - len(self._buffer))
            self._buffer += data
            if data and len(self._buffer) < wanted:
                return
            said = bytes(self._buffer)
            self._buffer.clear()
            if data and not self._nonces:
                self._nonces = said + (mine := secrets.token_bytes(NONCE_BYTES))
                self._socket.sendall(mine + proof(self._token, HEAD, self._nonces))
                return
        except OSError:
            data = b""
        self.is_known = bool(data) and hmac.compare_digest(said, proof(self._token, GUARD, self._nonces))
        if not self.is_known:
            self.close()

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
