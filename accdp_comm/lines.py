"""Lines: a connection between every two ranks of different nodes that breaks when one of their processes ends.

Where no launcher ends a job whose rank dies, the other ranks of its node see that it is gone, but MPI tells those of
other nodes nothing, and MPICH over UCX crashes in a send to it. Nothing is said through a line; its end is the message.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Hashable, Sequence

from .exchange import Exchange, agree

_CONNECT_SECONDS = 3.0
# Of one process, which has descriptors for other things, too; larger jobs go without.
_MOST = 400
# What stands between two hosts may forget, or break, a connection that says nothing for some minutes. One whose other
# end does not answer breaks after the quarter of an hour that TCP itself goes on trying with what it has to send.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 60), (socket.TCP_KEEPCNT, 15))
_RANK_BYTES = 4

_kept: list[int] = []  # descriptors, to the end of the process


def open_lines(
    exchange: Exchange, nodes: Sequence[Hashable], token: str, addresses: tuple[str, str], hosts: Sequence[str]
) -> list[int]:
    """Open this process's lines, which last as long as it does; once per process.

    Args:
        exchange: Reaches the ranks.
        nodes: Node of each rank; those of one node need no line.
        token: Tells the ranks' connections from others'; equal on all ranks.
        addresses: Of rank 0's host, as this rank reaches it; of this one, as that one is reached from here.
        hosts: Identity of each rank's host.
    Returns:
        A descriptor by rank, -1 where there is no line: all where the job is too large, or some rank could not be
        reached, which rank 0 then says on stderr.

    Collective.
    """
    others = [rank for rank, node in enumerate(nodes) if node != nodes[exchange.rank]]
    links: dict[int, socket.socket] = {}
    listener: socket.socket | None = None
    bind = "127.0.0.1" if len(set(hosts)) == 1 else ""
    if not 0 < len(nodes) - min(Counter(nodes).values()) <= _MOST:
        return [-1] * len(nodes)

    def listen() -> tuple[str, int, str]:
        nonlocal listener
        try:
            listener = socket.create_server((bind, 0), backlog=max(128, len(nodes)))
        except OSError as error:
            return "", 0, str(error)
        return addresses[1], listener.getsockname()[1], ""

    def connect_to_lower() -> str:
        """The kernel takes what connects to a listener, so ranks need not wait for each other here."""
        for rank in others:
            address, port, trouble = cards[rank]
            if trouble:
                return f"rank {rank}: {trouble}"
            if rank > exchange.rank:
                continue
            address = addresses[0] if hosts[rank] == hosts[0] else address
            try:
                links[rank] = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
                links[rank].sendall(token.encode() + exchange.rank.to_bytes(_RANK_BYTES, "big"))
            except OSError as error:
                return f"rank {exchange.rank} to rank {rank} at {address}, port {port}: {error}"
        return ""

    def accept_higher() -> str:
        assert listener is not None
        awaited = {rank for rank in others if rank > exchange.rank}
        try:
            _accept(listener, awaited, token, links)
        except OSError as error:
            return f"rank {min(awaited)} to rank {exchange.rank}: {error}"
        return ""

    try:
        cards = agree(exchange, listen)
        trouble = next(filter(None, agree(exchange, connect_to_lower)), "")
        trouble = trouble or next(filter(None, agree(exchange, accept_higher)), "")
    except BaseException:
        _close(links)
        raise
    finally:
        if listener is not None:
            listener.close()
    if trouble:
        _close(links)
        if exchange.rank == 0:
            sys.stderr.write(
                f"accdp: ranks cannot connect to each other ({trouble}): where one dies, those of other nodes "
                "notice at their deadlines\n"
            )
    return _keep(links, len(nodes))


def _accept(listener: socket.socket, awaited: set[int], token: str, links: dict[int, socket.socket]) -> None:
    """Take the connections of these ranks, which have been made, and leave strangers'."""
    listener.settimeout(_CONNECT_SECONDS)
    while awaited:
        link, _ = listener.accept()
        link.settimeout(_CONNECT_SECONDS)
        hello = _read(link, len(token) + _RANK_BYTES)
        rank = int.from_bytes(hello[len(token) :], "big")
        if hello[: len(token)] == token.encode() and rank in awaited:
            awaited.remove(rank)
            links[rank] = link
        else:
            link.close()


def _read(link: socket.socket, length: int) -> bytes:
    got = b""
    try:
        while len(got) < length and (more := link.recv(length - len(got))):
            got += more
    except OSError:
        pass  # a stranger's; one of ours is missed
    return got


def _keep(links: dict[int, socket.socket], size: int) -> list[int]:
    by_rank = [-1] * size
    for rank, link in links.items():
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        by_rank[rank] = link.detach()
    _kept.extend(fd for fd in by_rank if fd >= 0)
    return by_rank


def _close(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()
    links.clear()


def _drop() -> None:
    """In a child that was forked, so that the lines end with the rank."""
    while _kept:
        os.close(_kept.pop())


os.register_at_fork(after_in_child=_drop)
