"""What the ranks of test_refused_sends.py do."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from rank_process import join
from scenes import OPERATIONS, attempt, await_mark, limit, ready

from accdp_comm import Communicator, lines
from accdp_comm.exchange import MpiExchange

LIMIT_S = 20.0


def without_lines(rank: int, size: int, store: str, operation: str, victim: int) -> None:
    """Nothing but MPI knows of a death on another node; the others come to the next operation after it."""
    lines._MOST = 0
    after_a_death(rank, size, store, operation, victim)


def line_breaks_late(rank: int, size: int, store: str, operation: str, victim: int) -> None:
    """What tells of a death on another node does so only after MPI has refused to send there."""
    ours, theirs = socket.socketpair()
    lines.open_lines = lambda exchange, nodes, *_: [-1 if node == nodes[rank] else ours.fileno() for node in nodes]
    after_a_death(rank, size, store, operation, victim, threading.Timer(0.5, theirs.close))


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


def exchange(rank: int, size: int, store: str, victim: int) -> None:
    """Ranks meet again as they do to form a group, in collectives of MPI's which any call goes on with."""
    lines._MOST = 0
    join(rank, size, store)
    dist.all_reduce(torch.ones(10))
    ready()
    if rank == victim:
        time.sleep(60)
    await_mark(store, "killed")
    attempt("exchange", lambda: MpiExchange(rank, size, timeout_s=3).allgather(b"text"))


def messages(rank: int, size: int, store: str, victim: int) -> None:
    """Of a Communicator, whose errors have types of their own."""
    lines._MOST = 0
    join(rank, size, store)
    world = Communicator()
    world.barrier()
    ready()
    if rank == victim:
        time.sleep(60)
    await_mark(store, "killed")
    for number in (1, 2):
        attempt(f"send {number}", lambda: world.send(np.zeros(10), victim))
    attempt("isend", lambda: world.isend(np.zeros(10), victim).wait())
