"""Cards: what ranks tell each other about themselves before they form a group, and what follows from all cards."""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import _core, cpus, procfs
from ._version import __version__
from .launcher import seat


@dataclass(frozen=True)
class Card:
    """One rank's card."""

    version: str
    settings: str
    host: str
    node: str  # equal on two ranks exactly if they can share memory through /proc
    pid: int
    start_time: int
    memfd: int
    inode: int  # of what that is: the number may come to be another file's
    world_rank: int
    world_size: int
    launched: int  # ranks of the MPI world that a launcher or mpi4py made for this process, 0 if none did
    seat: str  # which of the launcher's ranks this is, or a child of; empty if unknown
    universe: str  # which MPI world this process has entered; empty if none
    mpi_rank: int
    mpi_size: int
    machine: str  # equal on two ranks exactly if they run on the same kernel, in whatever containers
    cores: int  # bit per processor that this process may use
    limits: list[tuple[float, int]]  # of its control groups that have one, outermost first: CPUs' time, name

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inode(fd: int) -> int:
    """Return the number of an open file in its file system; 0 of none."""
    return os.fstat(fd).st_ino if fd >= 0 else 0


def core_shares(cards: Sequence[Card], nodes: Sequence[int]) -> list[float]:
    """Return how many of its machine's cores each rank's node has for the thread that speaks for it.

    Nodes may be containers of one machine, whose threads then share its cores; each takes itself to be alone. None has
    more than its own ranks may use, by their affinity masks and by the quotas of their control groups.

    Args:
        cards: One per rank of the group.
        nodes: Node number of each rank.
    """
    return _shares(cards, nodes, lambda there: min(_masked(there), _paid(there)))


def paid_shares(cards: Sequence[Card], nodes: Sequence[int]) -> list[float]:
    """Return the same of the CPUs' time that quotas leave, however many cores there are for it."""
    return _shares(cards, nodes, _paid)


def _shares(cards: Sequence[Card], nodes: Sequence[int], usable: Callable[[Sequence[Card]], float]) -> list[float]:
    of_node: dict[int, list[Card]] = {}
    of_machine: dict[str, list[Card]] = {}
    nodes_of: dict[str, set[int]] = {}
    for card, node in zip(cards, nodes, strict=True):
        of_node.setdefault(node, []).append(card)
        of_machine.setdefault(card.machine, []).append(card)
        nodes_of.setdefault(card.machine, set()).add(node)
    share = {machine: usable(there) / len(nodes_of[machine]) for machine, there in of_machine.items()}
    own = {node: usable(there) for node, there in of_node.items()}
    return [min(share[card.machine], own[node]) for card, node in zip(cards, nodes, strict=True)]


def _masked(cards: Sequence[Card]) -> int:
    return functools.reduce(operator.or_, (card.cores for card in cards)).bit_count()


def _paid(cards: Sequence[Card]) -> float:
    return _together([card.limits for card in cards])


def _together(limits: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Return how many CPUs' time processes in these control groups may use: of each what those inside can, or less."""
    if not all(limits):
        return math.inf
    inside: dict[tuple[float, int], list[Sequence[tuple[float, int]]]] = {}
    for (most, group), *others in limits:
        inside.setdefault((most, group), []).append(others)
    return sum(min(most, _together(others)) for (most, _), others in inside.items())


def check_alike(cards: Sequence[dict[str, Any]]) -> None:
    """Refuse ranks that run different versions of accdp or differ in a setting that all must share.

    Raises:
        UsageError: On every rank alike; names the odd rank, the setting and both values.
    """
    _check_one("accdp version", [str(card.get("version")) for card in cards])
    tables = [dict(row.split("=", 1) for row in card["settings"].split(";") if row) for card in cards]
    for name in dict.fromkeys(name for table in tables for name in table):
        _check_one(name, [table.get(name, "(unset)") for table in tables])


def _check_one(name: str, values: Sequence[str]) -> None:
    ranked = Counter(values).most_common()
    if len(ranked) == 1:
        return
    # Most ranks are right; where none has a majority, rank 0 is.
    usual = ranked[0][0] if ranked[0][1] > ranked[1][1] else values[0]
    odd = next(rank for rank, value in enumerate(values) if value != usual)
    other = values.index(usual)
    raise _core.UsageError(
        f"rank {odd} of {len(values)} has {name}={values[odd]}, but rank {other} has {name}={usual}: "
        "it must be the same on all ranks"
    )


def declared_nodes(text: str) -> list[int]:
    """Read ACCDP_TOPOLOGY: ``2x3`` (two nodes of three ranks each) or ``0,0,1`` (node of each world rank).

    Returns:
        Node number of each world rank; empty if nothing is declared.
    """
    if not text:
        return []
    if match := re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text):
        nodes, ranks = int(match[1]), int(match[2])
        return [node for node in range(nodes) for _ in range(ranks)]
    if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        return [int(word) for word in text.split(",")]
    raise _core.UsageError(
        f"ACCDP_TOPOLOGY={text}: expected NODESxRANKS such as 2x2, or a node number per world rank such as 0,0,1"
    )


def number_nodes(cards: Sequence[Card], topology: str) -> list[int]:
    """Give every rank its node's number, 0.. in the order in which nodes first appear among the ranks.

    Args:
        cards: One per rank of the group.
        topology: Text of ACCDP_TOPOLOGY; empty to go by where the ranks really are.
    """
    declared = declared_nodes(topology)
    if declared and len(declared) != cards[0].world_size:
        raise _core.UsageError(
            f"ACCDP_TOPOLOGY={topology} declares {len(declared)} ranks, but this world has {cards[0].world_size}"
        )
    keys: list[str | int] = []
    homes: dict[int, tuple[int, str, str]] = {}  # declared node -> its first rank, that rank's real node and host
    for rank, card in enumerate(cards):
        if not declared:
            keys.append(card.node)
            continue
        node = declared[card.world_rank]
        first, real, host = homes.setdefault(node, (rank, card.node, card.host))
        if real != card.node:
            raise _core.UsageError(
                f"ACCDP_TOPOLOGY={topology} puts ranks {first} and {rank} on one node, "
                f"but they run on {host} and {card.host} and share no memory"
            )
        keys.append(node)
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [order[key] for key in keys]


def have_seats(cards: Sequence[Card]) -> bool:
    """Whether each may be a rank of the launcher's: its children are told the same, and Open MPI takes them for it."""
    seats = {card.seat for card in cards}
    return "" in seats or len(seats) == len(cards)


def card_of_this_process(memfd: int, world: tuple[int, int], launched: int, mpi: tuple[str, int, int]) -> Card:
    """Fill in this process's card; ``world`` is its rank and the size there, ``mpi`` the same after the world's id."""
    return Card(
        version=__version__,
        settings=_core.settings_text(),
        host=socket.gethostname(),
        node=procfs.node_key(),
        pid=os.getpid(),
        start_time=procfs.start_time(os.getpid()),
        memfd=memfd,
        inode=inode(memfd),
        world_rank=world[0],
        world_size=world[1],
        launched=launched,
        seat=seat(),
        universe=mpi[0],
        mpi_rank=mpi[1],
        mpi_size=mpi[2],
        machine=procfs.boot_id(),
        cores=sum(1 << core for core in os.sched_getaffinity(0)),
        limits=[(limit.cpus, limit.group) for limit in cpus.limits()],
    )
