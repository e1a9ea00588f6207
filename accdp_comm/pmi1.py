"""PMI-1 service: ranks that no MPI launcher started become one MPI world.

MPICH and its relatives ask a process manager for their peers over a line protocol (``cmd=... key=value``) when PMI_PORT
and PMI_ID are set. Under torchrun, ``multiprocessing`` and the like there is no such manager, so one rank serves the
protocol to all. The service knows no MPI itself.

It runs as a process of its own (this file, run as a script): MPICH says good-bye to it from an exit handler of the C
library, when no Python thread of any rank runs any more, and crashes where nobody answers.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # no package, where a file is run isolated
    from keepalive import keep_open  # type: ignore[import-not-found]
else:
    from .keepalive import keep_open

# The limits PMI-1 clients are built with; a longer value would be cut silently.
_VALUE_BYTES = 1024
_LINE_BYTES = 4096
_HELLO_SECONDS = 3.0
_FIRST_BYTES = 200
_REST_SECONDS = 0.05
_PATIENCE_SECONDS = 5.0  # in which ranks that look every half second end by themselves


def process_mapping(nodes: Sequence[int]) -> str | None:
    """Describe which ranks share a node, as the value of PMI_process_mapping.

    Args:
        nodes: Node index of each rank, in any order.
    Returns:
        ``(vector,(first node,nodes,ranks per node),...)``, or None where that is longer than a client can read; MPI
        then compares host names instead.
    """
    runs: list[tuple[int, int]] = []  # (node, consecutive ranks on it)
    for node in nodes:
        if runs and runs[-1][0] == node:
            runs[-1] = (node, runs[-1][1] + 1)
        else:
            runs.append((node, 1))
    blocks: list[tuple[int, int, int]] = []
    for node, count in runs:
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == count:
            first, length, _ = blocks[-1]
            blocks[-1] = (first, length + 1, count)
        else:
            blocks.append((node, 1, count))
    text = "(vector," + ",".join(f"({first},{length},{count})" for first, length, count in blocks) + ")"
    return text if len(text) < _VALUE_BYTES else None


def reached_from(address: str, port: int, token: str) -> str:
    """Return this host's own address in a connection to the service with this token.

    "" where nobody answers at that address, or another service (a private address may exist on several hosts).
    """
    try:
        with socket.create_connection((address, port), timeout=_HELLO_SECONDS) as connection:
            connection.settimeout(_HELLO_SECONDS)
            connection.sendall(b"cmd=accdp_hello\n")
            with connection.makefile("rb") as lines:
                if lines.readline(_LINE_BYTES) == f"cmd=accdp_hello token={token}\n".encode():
                    return str(connection.getsockname()[0])
    except OSError:
        pass
    return ""


class Pmi1Service:
    """Serves PMI-1 to the ranks of one world from daemon threads, until all have finalised or close() is called.

    Args:
        nodes: Node index of each rank; its length is the size of the world.
        bind: Address to listen on; "" listens on all.
        timeout_s: How long a rank may wait in the protocol's barrier for the others.
    """

    def __init__(self, nodes: Sequence[int], bind: str = "127.0.0.1", timeout_s: float = 1800.0):
        self.size = len(nodes)
        self.token = secrets.token_hex(8)
        self._timeout_s = timeout_s
        mapping = process_mapping(nodes)
        self._keys: dict[str, str] = {} if mapping is None else {"PMI_process_mapping": mapping}
        # One lock for all that follows; notified when a rank arrives in a barrier, finalises or is lost.
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._joined: set[int] = set()
        self._finished: set[int] = set()
        self._waiting: set[int] = set()
        self._barriers = 0
        self._broken = ""
        self._closed = False
        self._listener = socket.create_server((bind, 0), backlog=max(128, self.size))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="accdp-pmi1", daemon=True).start()

    @property
    def broken(self) -> str:
        """Why the world can no longer form or meet; empty while all is well."""
        return self._broken

    @property
    def is_complete(self) -> bool:
        """Whether every rank has come."""
        with self._changed:
            return len(self._joined) == self.size

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until close(), or until every rank has come and gone; False if neither happened within ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def close(self) -> None:
        """Stop listening and drop all connections. May be called twice."""
        with self._changed:
            self._closed = True
            connections = list(self._connections)
            # Before anybody hears that it is closed: from then on no connection may be taken.
            _shut(self._listener)
            self._changed.notify_all()
        for link in connections:
            _shut(link)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._has_strangers():  # what they take of descriptors comes back soon
                    time.sleep(_REST_SECONDS)
                    continue
                self._stop_accepting(f"the PMI-1 service of {self.size} ranks takes no more connections: {error}")
                return
            with self._changed:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
            try:
                threading.Thread(target=self._serve, args=(connection,), name="accdp-pmi1", daemon=True).start()
            except RuntimeError:  # no more threads: a rank whose connection breaks says so
                self._left(_Client(), connection)
                connection.close()

    def _has_strangers(self) -> bool:
        with self._changed:
            return not self._closed and len(self._connections) > len(self._joined - self._finished)

    def _stop_accepting(self, why: str) -> None:
        with self._changed:
            if self._closed:  # close() has shut the listener
                return
            self._fail(why)
        sys.stderr.write(f"accdp: {why}\n")
        self.close()  # ranks that have yet to come would wait for an answer

    def _serve(self, connection: socket.socket) -> None:
        client = _Client()
        try:
            with connection, connection.makefile("rb") as lines:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_open(connection)  # breaks too where the rank's host is no more
                # A stranger must not hold a thread for ever, whatever it says; a rank may be silent for days.
                line = _first_line(connection)
                while line.endswith(b"\n"):
                    answer = self._answer(client, line.decode("ascii", "replace").strip())
                    if answer:
                        connection.sendall("".join(f"{text}\n" for text in answer).encode())
                    if client.leaves:
                        break
                    connection.settimeout(None)
                    line = lines.readline(_LINE_BYTES)
        except OSError:
            pass  # the peer vanished or close() shut the connection; _left() says so where it matters
        finally:
            self._left(client, connection)

    def _left(self, client: _Client, connection: socket.socket) -> None:
        with self._changed:
            self._connections.discard(connection)
            if client.rank is not None and client.rank not in self._finished:
                self._finished.add(client.rank)
                if not client.has_finalised:
                    self._fail(f"rank {client.rank} of {self.size} left the PMI-1 service without MPI_Finalize")
            everyone = len(self._finished) == self.size
            self._changed.notify_all()
        if everyone:
            self.close()

    def _fail(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._changed.notify_all()

    def _answer(self, client: _Client, line: str) -> list[str]:
        if client.in_spawn:  # a multi-line command, refused as a whole at its end
            client.in_spawn = line != "endcmd"
            return [] if client.in_spawn else ["cmd=spawn_result rc=-1 msg=not_supported"]
        request = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = request.get("cmd", "")
        if command == "accdp_hello":
            client.leaves = True
            return [f"cmd=accdp_hello token={self.token}"]
        if command == "initack":
            return self._join(client, request.get("pmiid", ""))
        if client.rank is None:
            client.leaves = True  # nobody we know
            return []
        if "mcmd" in request:
            client.in_spawn = True
            return []
        match command:
            case "init":
                return ["cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"]
            case "get_maxes":
                return [f"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={_VALUE_BYTES} rc=0"]
            case "get_appnum":
                return ["cmd=appnum appnum=0 rc=0"]
            case "get_my_kvsname":
                return [f"cmd=my_kvsname kvsname=accdp_{self.token} rc=0"]
            case "get_universe_size":
                return [f"cmd=universe_size size={self.size} rc=0"]
            case "put":
                return self._put(request)
            case "get":
                with self._changed:
                    value = self._keys.get(request.get("key", ""))
                if value is None:
                    return ["cmd=get_result rc=-1 msg=key_not_found value=unknown"]
                return [f"cmd=get_result rc=0 msg=success value={value}"]
            case "barrier_in":
                return self._barrier(client, client.rank)
            case "finalize":
                client.has_finalised = client.leaves = True
                return ["cmd=finalize_ack rc=0"]
            case "abort":
                with self._changed:
                    self._fail(f"rank {client.rank} of {self.size} called MPI_Abort")
                client.leaves = True
                return []
            case _:
                return [f"cmd={command or 'unknown'} rc=-1 msg=unknown_command"]

    def _join(self, client: _Client, text: str) -> list[str]:
        rank = int(text) if text.isascii() and text.isdecimal() else -1
        with self._changed:
            if client.rank is not None or rank in self._joined or not 0 <= rank < self.size:
                client.leaves = True
                return ["cmd=initack rc=-1 msg=no_such_rank"]
            self._joined.add(rank)
            client.rank = rank
        return ["cmd=initack rc=0", f"cmd=set size={self.size}", f"cmd=set rank={rank}", "cmd=set debug=0"]

    def _put(self, request: dict[str, str]) -> list[str]:
        key, value = request.get("key", ""), request.get("value", "")
        if not key or len(value) >= _VALUE_BYTES:
            return ["cmd=put_result rc=-1 msg=bad_key_or_value"]
        with self._changed:
            self._keys[key] = value
        return ["cmd=put_result rc=0 msg=success"]

    def _barrier(self, client: _Client, rank: int) -> list[str]:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            mine = self._barriers
            self._waiting.add(rank)
            if len(self._waiting) == self.size:
                self._waiting.clear()
                self._barriers += 1
                self._changed.notify_all()
            met = self._changed.wait_for(
                lambda: self._barriers != mine or self._broken or self._closed,
                min(deadline - time.monotonic(), threading.TIMEOUT_MAX),
            )
            if self._barriers != mine:
                return ["cmd=barrier_out rc=0"]
            self._waiting.discard(rank)
            if not met:
                late = min(set(range(self.size)) - self._waiting - {rank}, default=rank)
                self._fail(f"rank {late} of {self.size} did not come to the PMI-1 barrier within {self._timeout_s:g} s")
            # A closed connection is a crash of the client, whose library looks at no return code either. At the end of
            # MPI a rank that is gone is none to wait for. Before MPI has begun nothing goes on without it, and who
            # waits is given the time to notice, to say so and to end.
            if self._barriers > 0:
                return ["cmd=barrier_out rc=0"]
            self._changed.wait_for(lambda: self._closed, _PATIENCE_SECONDS)
        client.leaves = True
        return []


def _first_line(connection: socket.socket) -> bytes:
    """Return what a connection says first, and no more; it has so much time for all of it."""
    line, deadline = b"", time.monotonic() + _HELLO_SECONDS
    while not line.endswith(b"\n") and len(line) < _FIRST_BYTES and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        if not (byte := connection.recv(1)):
            break
        line += byte
    return line


class _Client:
    """What one connection has said so far."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.in_spawn = False
        self.has_finalised = False
        self.leaves = False


def _shut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected, or closed already


def main() -> None:
    """Serve one world: read what from stdin (one line of JSON), write where to stdout, end when all ranks are gone."""
    # Ctrl-C and a scheduler's SIGTERM go to the ranks too; they still need answers while they leave.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each rank keeps a connection
    order = json.loads(sys.stdin.readline())
    service = Pmi1Service(order["nodes"], order["bind"], order["timeout_s"])
    print(json.dumps({"port": service.port, "token": service.token}), flush=True)

    def follow_owner() -> None:
        sys.stdin.read()  # ends when the rank that started this gave up or is gone
        if not service.is_complete:
            service.close()

    threading.Thread(target=follow_owner, daemon=True).start()
    service.wait_closed()


if __name__ == "__main__":
    main()
