"""What the ranks of test_refused_sends.py do."""

from __future__ import annotations

import socket
import threading
import time

import torch
import torch.distributed as dist
from rank_process import join
from scenes import OPERATIONS, attempt, await_mark, limit, ready

from accdp_comm import lines

LIMIT_S = 20.0


def without_lines(rank: int, size: int, store: str, operation: str, victim: int) -> None:
    """Nothing but MPI knows of a death on another node; the others come to the next operation after it."""
    lines._MOST = 0
    after_a_death(rank, size, store, operation, victim)


def line_breaks_late(rank: int, size: int, store: str, operation: str, victim: int) -> None:
    """What tells of a death on another node does so only after MPI has refused to send there."""
    ours, theirs = socket.socketpair()
    lines.open_lines = lambda exchange, nodes, *_: [-1 if node == nodes[rank] else ours.fileno() for node in nodes]
    after_a_death(rank, size, store, operation, victim, threading.Timer(0.1, theirs.close))


def after_a_death(
    rank: int, size: int, store: str, operation: str, victim: int, timer: threading.Timer | None = None
) -> None:
    join(rank, size, store)
    OPERATIONS[operation](rank, size)
    limit(LIMIT_S)
    ready()
    if rank == victim:
        time.sleep(60)
    await_mark(store, "killed")
    if timer is not None:
        timer.start()
    attempt(operation, lambda: OPERATIONS[operation](rank, size))


def leave(rank: int, size: int, store: str, victim: int, leaver: int) -> None:
    """Where nothing but MPI knows of the death one rank leaves after it, and another one waits for that one."""
    lines._MOST = 0
    join(rank, size, store)
    dist.all_reduce(torch.ones(10))
    limit(LIMIT_S)
    ready()
    if rank == victim:
        time.sleep(60)
    await_mark(store, "killed")
    if rank == leaver:
        attempt("destroy_process_group", dist.destroy_process_group)
    else:
        attempt("recv", lambda: dist.recv(torch.ones(3), leaver))


def gather(rank: int, size: int, store: str) -> None:
    """All the time, in one of MPI's own collectives, which goes in steps from rank to rank."""
    join(rank, size, store)
    mine, all_of_them = torch.ones(4_000_000), torch.empty(4_000_000 * size)
    dist.all_gather_into_tensor(all_of_them, mine)
    limit(LIMIT_S)
    ready()

    def forever() -> None:
        while True:
            dist.all_gather_into_tensor(all_of_them, mine)

    attempt("all_gather", forever)
