"""What ranks of several nodes do while they make MPI's world, and when they leave it."""

from __future__ import annotations

import os
import signal
import socket
import time

import torch
import torch.distributed as dist
from rank_process import join, say
from scenes import attempt, await_mark, mark, ready

from accdp_comm import Communicator, mpi_world


def waits_at_its_end(rank: int, size: int, store: str, victim: int) -> None:
    """One rank comes to its end long before the others."""
    join(rank, size, store)
    dist.all_reduce(torch.ones(10))
    dist.destroy_process_group()
    ready()
    if rank != victim:
        await_mark(store, "go")


def dies_in_mpi_init(rank: int, size: int, store: str, victim: int) -> None:
    """It has called MPI's service, and is gone before MPI has begun."""

    def begin_and_die(*_: object) -> None:
        host, port = os.environ["PMI_PORT"].split(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(f"cmd=initack pmiid={os.environ['PMI_ID']}\n".encode())
            link.recv(100)
            say(event="dies", at=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim:
        mpi_world._initialise = begin_and_die
    join(rank, size, store)


def dies_when_a_group_forms(rank: int, size: int, store: str, victim: int) -> None:
    """Its others wait for it within MPI, which does not tell them."""

    def die(*_: object) -> None:
        say(event="dies", at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    join(rank, size, store)
    if rank == victim:
        mpi_world.make_wire = die
    dist.new_group(range(size))


def late_after_mpi_init(rank: int, size: int, store: str, victim: int, limit_s: float) -> None:
    """It is in MPI's world when the others have given up waiting for it, and they live on until it has learnt that."""
    original = mpi_world._initialise

    def late(*arguments: object) -> None:
        original(*arguments)
        await_mark(store, "given-up-2")
        await_mark(store, "given-up-0")

    if rank == victim:
        mpi_world._initialise = late
    attempt("join", lambda: join(rank, size, store, timeout_s=limit_s))
    mark(store, f"given-up-{rank}")
    await_mark(store, f"given-up-{victim}")


def forms_a_group_with_the_dead(rank: int, size: int, store: str, victim: int, what: str) -> None:
    """The victim is killed when all are ready."""
    join(rank, size, store)
    dist.all_reduce(torch.ones(10))
    ready()
    await_mark(store, "never" if rank == victim else "killed")
    attempt(what, {"new_group": lambda: dist.new_group(range(size)), "Communicator": Communicator}[what])
