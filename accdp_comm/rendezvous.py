"""Rendezvous under an MPI launcher: `env://` with RANK unset, and `mpi://`, need no MASTER_ADDR and no port.

torch wants a Store whatever the backend. Rank 0 of MPI opens a TCPStore on a free port and MPI carries its address.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist

from . import _core, addresses, mpi_world
from .exchange import MpiExchange, agree
from .launcher import find_launcher, refuse_srun_without_mpi
from .procfs import node_key

Place = tuple[dist.Store, int, int]

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_PROBE = timedelta(seconds=5)
_NAMES = timedelta(seconds=60)  # resolvers give up after 10 s per server, or 30 s
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_timeout(timeout: timedelta, who: str = "") -> None:
    """Raise UsageError for a group's time-out that is none; ``who`` begins the text."""
    if timeout < timedelta(milliseconds=1):  # as one of many millennia also is, when torch hands it on
        raise _core.UsageError(f"{who}timeout: expected from 1 ms to some centuries, got {timeout.total_seconds():g} s")


def env_rendezvous(torchs_own: Callable[..., Iterator[Place]], url: str, **options: Any) -> Iterator[Place]:
    """Handle ``env://``: torch's own way wherever it could work, MPI's or a world of one where it could not.

    Args:
        torchs_own: The handler torch had; its errors stay as they are.
        url: ``env://``, with rank and world_size in its query where the caller gave them.
        **options: ``timeout`` (timedelta), and whatever torch passes on.
    """
    query = dict(parse_qsl(urlparse(url).query))
    has_rank = "rank" in query or bool(os.environ.get("RANK"))
    has_size = "world_size" in query or bool(os.environ.get("WORLD_SIZE"))
    has_master = bool(os.environ.get("MASTER_ADDR")) and bool(os.environ.get("MASTER_PORT"))
    if has_rank and has_size and has_master:
        return torchs_own(url, **options)
    if not os.environ.get("RANK") and find_launcher() is not None:
        return mpi_rendezvous(url, **options)
    rank, size = _asked(url)
    if not any(os.environ.get(name) for name in _VARIABLES) and rank in (None, 0) and size in (None, 1):
        return _world_of_one()
    return torchs_own(url, **options)


def mpi_rendezvous(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **_: Any) -> Iterator[Place]:
    """Handle ``mpi://``: rank and size are MPI's unless the caller gave others; then the caller's order is used.

    Raises:
        UsageError: Not under an MPI launcher; the ranks or sizes given do not fit together (on all ranks alike); the
            time-out is none.
        PeerTimeout: Some rank of MPI's world did not come.
    """
    check_timeout(timeout)
    if find_launcher() is None and mpi_world.place().size == 0:
        raise _core.UsageError("init_method mpi:// needs an MPI launcher (mpiexec, srun --mpi=pmi2); none started this")
    asked_rank, asked_size = _asked(url)
    if asked_size is None and os.environ.get("WORLD_SIZE", "").isdecimal():
        asked_size = int(os.environ["WORLD_SIZE"])
    yield _meet(asked_rank, asked_size, timeout)
    raise RuntimeError("a rendezvous through MPI cannot be done again: MPI's ranks are fixed when they start")


def _asked(url: str) -> tuple[int | None, int | None]:
    """Return rank and world size in a URL's query. torch writes -1 where the caller gave none."""
    query = dict(parse_qsl(urlparse(url).query))
    rank, size = (int(query[name]) if name in query else -1 for name in ("rank", "world_size"))
    return (rank if rank >= 0 else None), (size if size >= 0 else None)


def _world_of_one() -> Iterator[Place]:
    refuse_srun_without_mpi()
    yield dist.HashStore(), 0, 1
    raise RuntimeError("a world of one has nobody to meet again")


def _meet(asked_rank: int | None, asked_size: int | None, timeout: timedelta) -> Place:
    seconds = timeout.total_seconds()
    mpi_rank, size = mpi_world.enter_launched(seconds)
    exchange = MpiExchange(mpi_rank, size, seconds)
    held: list[dist.TCPStore] = []

    def introduce() -> dict[str, Any]:
        card: dict[str, Any] = {"rank": asked_rank, "size": asked_size, "node": node_key()}
        if mpi_rank == 0:
            held.append(dist.TCPStore("127.0.0.1", 0, size, True, timeout, wait_for_workers=False))
            token = secrets.token_hex(8)
            held[0].set("accdp/token", token)
            card |= {"port": held[0].port, "token": token, "host": socket.gethostname()}
            card["addresses"] = addresses.candidate_addresses()
        return card

    cards = agree(exchange, introduce)
    ranks = place_ranks([card["rank"] for card in cards], [card["size"] for card in cards])
    if len({card["node"] for card in cards}) == 1:
        cards[0]["addresses"] = ["127.0.0.1"]

    def connect() -> None:
        if not held:
            held.append(_connect(cards[0], size, timeout))

    agree(exchange, connect)  # one rank without a route must not leave the others waiting for it
    return held[0], ranks[mpi_rank], size


def place_ranks(ranks: list[int | None], sizes: list[int | None]) -> list[int]:
    """Return torch's rank of each MPI rank: what the callers asked for, or MPI's own order where none did.

    Raises:
        UsageError: Some asked for another size than MPI's world has, or the ranks asked for are not 0..size-1.
    """
    size = len(ranks)
    for mpi_rank, asked in enumerate(sizes):
        if asked not in (None, size):
            raise _core.UsageError(f"rank {mpi_rank} of MPI asked for world_size={asked}, but MPI started {size} ranks")
    asked_for = [rank for rank in ranks if rank is not None]
    if not asked_for:
        return list(range(size))
    if sorted(asked_for) != list(range(size)):
        given = ", ".join("none" if rank is None else str(rank) for rank in ranks)
        raise _core.UsageError(f"the ranks given to init_process_group must be 0..{size - 1}, each once; got {given}")
    return asked_for


def _connect(card: dict[str, Any], size: int, timeout: timedelta) -> dist.TCPStore:
    trouble = []
    for address in card["addresses"]:
        try:
            # A plain connection first: a TCPStore would try again and again for its whole time-out where nobody
            # listens. It needs that time elsewhere, since it asks name servers for the address's name on the way.
            socket.create_connection((address, card["port"]), timeout=2).close()
            store = dist.TCPStore(address, card["port"], size, False, min(timeout, _NAMES), wait_for_workers=False)
            store.set_timeout(_PROBE)
            if store.get("accdp/token").decode() == card["token"]:
                store.set_timeout(timeout)
                return store
            # Another host's private address.
            trouble.append(f"{address}: the store of another job")
        except (OSError, RuntimeError) as error:  # torch reports what it could not connect to as RuntimeError
            trouble.append(f"{address}: {str(error).partition(chr(10))[0]}")
    raise _core.Error(
        f"no route to the store of rank 0 on {card['host']}, port {card['port']} ({'; '.join(trouble)}): "
        f"set MASTER_ADDR to an address of {card['host']} that all nodes reach"
    )
