"""Forming a group: ranks exchange cards, number their nodes, share a memory segment and, across nodes, join MPI.

MPI is not initialised for a group that lives on one node: such a group starts in milliseconds from any exchange, in
any order with others, and may be destroyed and made again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from . import _core, mpi_world, nvcomp, procfs, steps, uncaught
from .cards import (
    Card,
    card_of_this_process,
    check_alike,
    core_shares,
    declared_nodes,
    inode,
    number_nodes,
    paid_shares,
)
from .exchange import Alone, Exchange, agree
from .settings import value_of


def form_group(exchange: Exchange, name: str, *, world: tuple[int, int] | None = None) -> _core.Group:
    """Form a group of the ranks behind an exchange.

    Args:
        exchange: Reaches all members; its rank, size and time-out are the group's.
        name: Appears in error messages; equal on all members.
        world: Rank and size of the world this group is part of, for ACCDP_TOPOLOGY; None where it is the world.
    Returns:
        The group; all ranks of this node have mapped its segment.
    Raises:
        UsageError: On all ranks: versions or settings differ, or the group needs an MPI it cannot have.
        PeerTimeout: Some ranks did not come within the exchange's time-out; a store tells which, MPI does not.

    Collective among the members, and nobody else takes part.
    """
    uncaught.watch()  # who ends by an exception leaves the group so
    limit = exchange.timeout_s
    mine = world or (exchange.rank, exchange.size)
    if exchange.size == 1:
        declared_nodes(value_of("ACCDP_TOPOLOGY"))  # of others, which this rank has not; but it must be one
        steps.begin(*mine)
        return _make(Alone(limit), name, limit, [_own_card(-1, (0, 1))], [0], -1, None, [{}])
    memfd = segment = -1

    def enter() -> dict[str, Any]:
        """What may fail on one rank alone, and then has to be told to the others."""
        nonlocal memfd
        steps.begin(*mine)
        memfd = _core.nameless_memory("accdp")
        return _own_card(memfd, mine).as_dict()

    def prepare() -> dict[str, str]:
        mpi_world.load().check_safe()  # from the next step on the others wait within MPI
        return nvcomp.missing_codecs()

    try:
        tables = agree(exchange, enter)
        check_alike(tables)
        cards = [Card(**table) for table in tables]
        nodes = number_nodes(cards, value_of("ACCDP_TOPOLOGY"))
        wire, lacks = None, [dict[str, str]() for _ in cards]
        if len(set(nodes)) > 1 or value_of("ACCDP_MPI") == "on":
            ranks = mpi_world.join(exchange, cards, nodes)
            # A codec that one rank lacks is none that another may send, and nodes may be installed differently. Ranks
            # of one node are spared the loading of libraries that they may never use.
            lacks = agree(exchange, prepare)
            # Groups with one name may be formed at once, by threads: each rank has other memory for each.
            identity = f"{name} {[(card.pid, card.inode) for card in cards]}"
            near = [(rank, cards[rank]) for rank, node in enumerate(nodes) if node == nodes[exchange.rank]]
            wire = mpi_world.make_wire(ranks, identity, exchange.timeout_s, lambda: _ended(near))
        leader = nodes.index(nodes[exchange.rank])
        if nodes.count(nodes[exchange.rank]) > 1:
            own, memfd = memfd, -1
            if leader == exchange.rank:
                segment = own
            else:
                os.close(own)  # first: this process may have no other descriptor left
                segment = _open_segment(cards, leader, exchange.rank)
        group = _make(exchange, name, limit, cards, nodes, segment, wire, lacks)
        exchange.clear()
        return group
    except Exception:
        exchange.settle()
        raise
    finally:
        for descriptor in (memfd, segment):
            if descriptor >= 0:
                os.close(descriptor)


def form_for_all(exchange: Exchange, name: str, *, world: tuple[int, int]) -> _core.Group:
    """Form a group as form_group() does, which here raises on all members that live or on none.

    What the last round has left in the store stays there: nobody knows when all have read it.
    """
    made: list[_core.Group] = []
    try:
        agree(exchange, lambda: made.append(form_group(exchange, name, world=world)))
    except Exception:
        exchange.settle()
        raise
    return made[0]


def _own_card(memfd: int, world: tuple[int, int]) -> Card:
    return card_of_this_process(memfd, world, mpi_world.launched(), mpi_world.place())


def _ended(near: Sequence[tuple[int, Card]]) -> list[int]:
    return [rank for rank, card in near if not _core.process_lives(card.pid, card.start_time)]


def _open_segment(cards: Sequence[Card], leader: int, rank: int) -> int:
    """Open the memory that the lowest rank of this node made. It has no name that could be left behind."""
    card = cards[leader]
    path = f"/proc/{card.pid}/fd/{card.memfd}"
    try:
        is_its = os.stat(path).st_ino == card.inode  # else by now some other file's number, even one not to be opened
        segment = os.open(path, os.O_RDWR | os.O_CLOEXEC) if is_its else -1
    except OSError as error:
        if _has_closed(card, error):
            raise _given_up(rank, leader, cards) from error
        raise _core.SystemCallError(
            f"rank {rank} of {len(cards)}: open({path}) failed: {error.strerror}, so it cannot share memory with rank "
            f"{leader} on {card.host}: ranks of one node must run as the same user and see each other in /proc, "
            "or be declared to be on different nodes by ACCDP_TOPOLOGY"
        ) from error
    if is_its and inode(segment) != card.inode:
        os.close(segment)
        is_its = False
    if not is_its:
        raise _given_up(rank, leader, cards)
    return segment


def _has_closed(card: Card, error: OSError) -> bool:
    """Whether a rank's file cannot be opened because it closed that; its process can be seen, if only its zombie."""
    found = procfs.process(card.pid)
    if found is None or found.started != card.start_time:  # as one of another container, which may have the same pid
        return False
    return error.errno == errno.ENOENT or found.is_zombie  # whose files only root can look for


def _given_up(rank: int, leader: int, cards: Sequence[Card]) -> Exception:
    return _core.PeerDied(
        f"rank {rank} of {len(cards)}: rank {leader} on {cards[leader].host} has given up the group while it was formed"
    )


def _make(
    exchange: Exchange,
    name: str,
    timeout_s: float,
    cards: Sequence[Card],
    nodes: Sequence[int],
    segment: int,
    wire: object | None,
    lacks: list[dict[str, str]],
) -> _core.Group:
    rows = zip(cards, nodes, core_shares(cards, nodes), paid_shares(cards, nodes), lacks, strict=True)
    return _core.Group(
        name=name,
        rank=exchange.rank,
        peers=[
            _core.Peer(
                host=card.host,
                pid=card.pid,
                start_time=card.start_time,
                node=node,
                cores=cores,
                paid=paid,
                lacks=lacking,
            )
            for card, node, cores, paid, lacking in rows
        ],
        segment_fd=segment,
        timeout_s=timeout_s,
        wire=wire,
        notices=exchange.notices() if wire is not None else None,
        identity=" ".join(str(card.inode) for card in cards),
    )
