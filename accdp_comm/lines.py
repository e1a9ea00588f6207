"""Lines: a connection between every two ranks of different nodes that breaks when one of their processes ends.

Where no launcher ends a job whose rank dies, the other ranks of its node see that it is gone, but MPI tells those of
other nodes nothing, and MPICH over UCX crashes in a send to it. Nothing is said through a line; its end is the message.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import secrets
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from . import _core, addresses, pmi1, unlaunched
from .exchange import Exchange, agree
from .keepalive import keep_open
from .procfs import node_key

_CONNECT_SECONDS = 5.0  # of them 3 until the kernel has asked for the third time
# Of one process; larger jobs go without. So do those whose limit of descriptors leaves too few for other things.
_MOST = 400
_SHARE = 3
# Where lines' descriptors begin. The kernel closes those of a process that ends from the last to the first, and some
# take long (large shared memory, devices): lines must break no later than MPI's connections.
_HIGH = 2048
_LATE = 256  # connections that are looked at after that: ranks' may wait behind strangers'
_NONCE_BYTES, _RANK_BYTES = 16, 4
_Card = tuple[str, int, str, str]  # address, port and nonce of a listener; or why there is none

_open: set[int] = set()  # descriptors, to the end of the process
_are_missing = False


def open_lines(
    exchange: Exchange, nodes: Sequence[Hashable], routes: tuple[str, str], hosts: Sequence[str]
) -> list[int]:
    """Open this process's lines, which last as long as it does; once per process.

    Args:
        exchange: Reaches the ranks.
        nodes: Node of each rank; those of one node need no line.
        routes: Address of rank 0's host, as this rank reaches it; of this one, as that one is reached from here.
        hosts: Identity of each rank's host.
    Returns:
        A descriptor by rank, -1 where there is no line: all where the job is too large, or some rank could not be
        reached, which rank 0 then says on stderr.

    Collective.
    """
    if _far(nodes) > _MOST:
        _note_missing()
    if not 0 < _far(nodes) <= _MOST:
        return [-1] * len(nodes)
    opening = _Opening(exchange, nodes, routes, hosts)
    try:
        cards = agree(exchange, opening.listen)
        trouble = next(filter(None, agree(exchange, lambda: opening.connect_to_lower(cards))), "")
        trouble = trouble or next(filter(None, agree(exchange, opening.accept_higher)), "")
    except BaseException:
        _close(opening.by_rank)
        raise
    finally:
        opening.close()
    if not trouble:
        return opening.by_rank
    _close(opening.by_rank)
    _say_none(exchange, trouble)
    return [-1] * len(nodes)


class _Opening:
    """A rank's part in open_lines(), with its arguments. Each step says what went wrong, or nothing."""

    def __init__(
        self, exchange: Exchange, nodes: Sequence[Hashable], routes: tuple[str, str], hosts: Sequence[str]
    ) -> None:
        self._rank, self._routes, self._hosts = exchange.rank, routes, hosts
        self._others = [rank for rank, node in enumerate(nodes) if node != nodes[self._rank]]
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._listener: socket.socket | None = None
        self.by_rank = [-1] * len(nodes)

    def listen(self) -> _Card:
        """Begin to listen; return where, and what has to be said there."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and _SHARE * len(self._others) > limit:
            return "", 0, "", f"ulimit -n is {limit}, expected {_SHARE * len(self._others)} or more"
        try:
            bind = "127.0.0.1" if len(set(self._hosts)) == 1 else ""
            self._listener = socket.create_server((bind, 0), backlog=max(128, len(self._hosts)))
        except OSError as error:
            return "", 0, "", str(error)
        return self._routes[1], self._listener.getsockname()[1], self._nonce, ""

    def connect_to_lower(self, cards: Sequence[_Card]) -> str:
        """The kernel takes what connects to a listener, so ranks need not wait for each other here."""
        for rank in self._others:
            address, port, nonce, trouble = cards[rank]
            if trouble:
                return f"rank {rank}: {trouble}"
            if rank > self._rank:
                continue
            address = self._routes[0] if self._hosts[rank] == self._hosts[0] else address
            try:
                with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as link:
                    link.sendall(bytes.fromhex(nonce) + self._rank.to_bytes(_RANK_BYTES, "big"))
                    self.by_rank[rank] = _keep(link)
            except OSError as error:
                return f"rank {self._rank} to rank {rank} at {address}, port {port}: {error}"
        return ""

    def accept_higher(self) -> str:
        """Take what they have made."""
        awaited = {rank for rank in self._others if rank > self._rank}
        nonce = bytes.fromhex(self._nonce)
        try:
            for rank, line in _accept(self._listener, awaited, nonce) if self._listener is not None else ():
                self.by_rank[rank] = line
        except OSError as error:
            return f"rank {min(awaited)} to rank {self._rank}: {error}"
        return ""

    def close(self) -> None:
        """Nothing more is accepted."""
        if self._listener is not None:
            self._listener.close()


def open_between_hosts(exchange: Exchange, declared: bool) -> list[int]:
    """Open lines as open_lines() where ranks know nothing of each other yet, as under a launcher of MPI.

    Args:
        declared: On rank 0: whether nodes will be told later, and may divide a host.
    """
    cards = agree(exchange, lambda: (node_key(), declared))
    hosts = [host for host, _ in cards]
    nodes = range(exchange.size) if cards[0][1] else hosts
    is_probed = len(set(hosts)) > 1 and _far(nodes) <= _MOST
    routes = _routes(exchange) if is_probed else ("127.0.0.1", "127.0.0.1")
    return open_lines(exchange, nodes, routes, hosts) if routes else [-1] * exchange.size


def _far(nodes: Sequence[Hashable]) -> int:
    """Return how many ranks of other nodes a rank has at most."""
    return len(nodes) - min(Counter(nodes).values())


def _routes(exchange: Exchange) -> tuple[str, str] | None:
    """Return the address of rank 0's host as reached from here, and of this one as from there; None if any has none."""
    service: pmi1.Pmi1Service | None = None

    def offer() -> dict[str, Any]:
        nonlocal service
        if exchange.rank != 0:
            return {}
        try:
            service = pmi1.Pmi1Service([0], "")  # which answers whoever says hello
        except OSError as error:
            return {"trouble": f"rank 0: {error}"}
        found = addresses.candidate_addresses()
        return {"addresses": found, "port": service.port, "token": service.token, "host": socket.gethostname()}

    def reach() -> tuple[str, str, str]:
        if trouble := card.get("trouble"):
            return "", "", trouble
        try:
            return (*unlaunched.reach(card, card["host"]), "")
        except _core.Error as error:
            return "", "", f"rank {exchange.rank}: {error}"

    try:
        card = agree(exchange, offer)[0]
        found = agree(exchange, reach)
    finally:
        if service is not None:
            service.close()
    trouble = next(filter(None, (why for _, _, why in found)), "")
    if trouble:
        _say_none(exchange, trouble)
        return None
    there, here, _ = found[exchange.rank]
    return there, here


def are_missing() -> bool:
    """Whether this process cannot tell the end of ranks of other nodes."""
    return _are_missing


def _note_missing() -> None:
    global _are_missing
    _are_missing = True


def _say_none(exchange: Exchange, why: str) -> None:
    _note_missing()
    if exchange.rank == 0:
        sys.stderr.write(
            f"accdp: ranks cannot connect to each other ({why}): where one dies, those of other nodes notice at their "
            "deadlines\n"
        )


def gone(fds: Iterable[int]) -> str:
    """Say whose lines have ended, of open_lines()' descriptors; "" where none has.

    All of them: some ranks may have ended because another had.
    """
    looked_at = select.poll()
    ranks = {fd: rank for rank, fd in enumerate(fds) if fd >= 0}
    for fd in ranks:
        looked_at.register(fd, select.POLLIN)  # nothing is said through a line
    return in_words(sorted(ranks[fd] for fd, _ in looked_at.poll(0)))


def in_words(ended: Sequence[int]) -> str:
    """Say that these ranks have ended; "" of none."""
    if len(ended) < 2:
        return f"rank {ended[0]} has ended" if ended else ""
    return f"ranks {', '.join(map(str, ended))} have ended"


def _accept(listener: socket.socket, awaited: set[int], nonce: bytes) -> Iterable[tuple[int, int]]:
    """Take the connections of these ranks, which have been made, and leave strangers'."""
    deadline, late = time.monotonic() + _CONNECT_SECONDS, 0
    while awaited:
        left = deadline - time.monotonic()
        late += left <= 0
        if late > _LATE:
            raise TimeoutError("others called without end")
        listener.settimeout(max(left, 0.001))
        link, _ = listener.accept()
        with link:
            hello = _read(link, len(nonce) + _RANK_BYTES, deadline)
            rank = int.from_bytes(hello[len(nonce) :], "big")
            if hello[: len(nonce)] == nonce and len(hello) == len(nonce) + _RANK_BYTES and rank in awaited:
                line = _keep(link)
                awaited.remove(rank)
                yield rank, line


def _read(link: socket.socket, length: int, deadline: float) -> bytes:
    got = b""
    try:
        while len(got) < length:
            link.settimeout(max(min(deadline - time.monotonic(), 1.0), 0.001))
            more = link.recv(length - len(got))
            if not more:
                break
            got += more
    except OSError:
        pass  # a stranger's; one of ours is missed
    return got


def _keep(link: socket.socket) -> int:
    """Return a descriptor of a connection that stays when this one is closed."""
    keep_open(link)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = _HIGH if limit == resource.RLIM_INFINITY else min(_HIGH, limit // 2)
    line = fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, low)
    _open.add(line)
    return line


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        if fd >= 0:
            _open.discard(fd)
            os.close(fd)


def _drop() -> None:
    """In a child that was forked, so that the lines end with the rank."""
    while _open:
        with contextlib.suppress(OSError):
            os.close(_open.pop())


os.register_at_fork(after_in_child=_drop)
