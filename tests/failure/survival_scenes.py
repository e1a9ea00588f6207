"""What ranks do that go on when others have died."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_process import join, say
from scenes import attempt, await_mark, mark, ready

import accdp_comm
from accdp_comm import bootstrap, exchange, survival


def total(rank: int, group: Any = None) -> int:
    sum_ = torch.tensor(1 << rank)
    dist.all_reduce(sum_, group=group)
    return int(sum_)


def describe(rank: int) -> None:
    """What the default group is now, and that it works: whose ranks it has, as bits of a sum."""
    place = [dist.get_rank(), dist.get_world_size()]
    half = dist.new_group(list(range((place[1] + 1) // 2)))  # by their new numbers
    parts = total(rank, half) if dist.get_rank(half) >= 0 else 0
    with accdp_comm.Communicator() as comm:
        sum_ = np.array([1 << rank])
        comm.allreduce(sum_)
    say(event="now", at=time.monotonic(), place=place, world=total(rank), half=parts, communicator=int(sum_[0]))


def goes_on(rank: int, size: int, store: str, victims: list[int]) -> None:
    """The victims are killed when all are ready."""
    join(rank, size, store)
    other = dist.new_group(range(size))
    total(rank, other)
    ready()
    await_mark(store, "never" if rank in victims else "killed")
    attempt("all_reduce", lambda: total(rank))
    attempt("shrink", accdp_comm.shrink)
    say(event="failed", at=time.monotonic(), ranks=accdp_comm.failed_ranks())
    describe(rank)
    dist.destroy_process_group()


def dies_in_shrink(rank: int, size: int, store: str, victim: int, next_victim: int, where: str) -> None:
    """Another one dies when the rest of them form their group."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    join(rank, size, store)
    total(rank)
    ready()
    await_mark(store, "never" if rank == victim else "killed")
    if rank == next_victim and where == "meeting":
        exchange.StoreExchange._allgather = die
    elif rank == next_victim and where == "forming":
        bootstrap._make = die
    elif rank == next_victim:
        form = bootstrap.form_group
        bootstrap.form_group = lambda *arguments, **more: (form(*arguments, **more), die())
    attempt("shrink", accdp_comm.shrink)
    describe(rank)
    dist.destroy_process_group()


def knows_less(rank: int, size: int, store: str, victims: list[int]) -> None:
    """Ranks 1 and 2 have died, and rank 3 does not see at first that rank 2 has."""
    join(rank, size, store)
    total(rank)
    ready()
    await_mark(store, "never" if rank in victims else "killed")
    sees, first_look = survival.failed_ranks, [[1]] if rank == 3 else []
    survival.failed_ranks = lambda group=None: first_look.pop() if first_look else sees(group)
    attempt("shrink", accdp_comm.shrink)
    describe(rank)
    dist.destroy_process_group()


def makes_the_same_groups_again(rank: int, size: int, store: str, victim: int) -> None:
    """A group that the victim is to be in fails; after the shrink one of the same name and numbers is made."""
    join(rank, size, store)
    ready()
    await_mark(store, "never" if rank == victim else "killed")
    attempt("new_group", lambda: dist.new_group([0, 1, 2]))
    attempt("shrink", accdp_comm.shrink)
    for _ in range(2):
        if dist.get_rank() == 0:
            time.sleep(0.5)
        dist.new_group([0, 1, 2])
    describe(rank)
    dist.destroy_process_group()


def fails_alone(rank: int, size: int, store: str, victim: int) -> None:
    """Rank 2 comes to grief with the smaller group; rank 0 serves the store, and takes it along."""
    form = bootstrap.form_group

    def fail(*arguments: Any, **more: Any) -> None:
        form(*arguments, **more)
        time.sleep(0.3)
        raise accdp_comm.UsageError("something of rank 2")

    if rank:
        await_mark(store, "served")
        served = dist.TCPStore("127.0.0.1", int(Path(store).read_text()), size, False)
    else:
        served = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        Path(store).write_text(str(served.port))
        mark(store, "served")
    dist.init_process_group("accdp", store=served, rank=rank, world_size=size)
    ready()
    await_mark(store, "never" if rank == victim else "killed")
    if rank == 2:
        bootstrap.form_group = fail
    attempt("shrink", accdp_comm.shrink)
    if rank == 0:
        os._exit(0)


def shrinks_a_part(rank: int, size: int, store: str, victim: int) -> None:
    """The victim is the second of three ranks of a group. (torch takes ranks of a part for those of the world.)"""
    join(rank, size, store)
    part = dist.new_group([0, 1, 2])
    ready()
    await_mark(store, "never" if rank == victim else "killed")
    if rank == 3:
        say(event="failed", at=time.monotonic(), ranks=accdp_comm.failed_ranks(), of_part=accdp_comm.failed_ranks(part))
        return
    left = dist.shrink_group(accdp_comm.failed_ranks(part), part)
    say(
        event="now",
        at=time.monotonic(),
        place=[dist.get_rank(left), dist.get_world_size(left)],
        world=total(rank, left),
    )
    attempt("all_reduce", lambda: total(rank))


def leaves_out_the_living(rank: int, size: int, store: str, flags: int) -> None:
    """Rank 1 of 3, which an operation of the others waits for."""
    join(rank, size, store)
    total(rank)
    if rank == 1:
        await_mark(store, "go")
        attempt("all_reduce", lambda: total(rank))
        return
    survival._SEEN_SECONDS = 0.2
    attempt("shrink", accdp_comm.shrink)
    begun = dist.all_reduce(torch.ones(1), async_op=True) if flags else None
    attempt("shrink_group", lambda: dist.shrink_group([1], shrink_flags=flags))
    if begun:
        attempt("wait", begun.wait)
    describe(rank)
    ready()
    await_mark(store, "go")
