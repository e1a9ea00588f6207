"""What the ranks of tests/failure do. Each function runs in every rank, and the rank ends when it returns."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_process import join, say


def attempt(what: str, call: Callable[[], Any]) -> None:
    """Do something and say how it went; the rank goes on."""
    began = time.monotonic()
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        facts = {"type": type(error).__name__, "text": str(error).split("\nException raised from")[0]}
        say(event="raised", what=what, began=began, at=time.monotonic(), **facts)
    else:
        say(event="passed", what=what, began=began, at=time.monotonic())


def mark(store: str, what: str) -> None:
    """Let other ranks know, without the group."""
    Path(f"{store}-{what}").touch()


def await_mark(store: str, what: str) -> None:
    while not Path(f"{store}-{what}").exists():
        time.sleep(0.001)


def limit(seconds: float) -> None:
    """The default group's, from now on: it is formed without, because ranks may take long to start."""
    dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(seconds=seconds))


def ready() -> None:
    say(event="ready", at=time.monotonic())


OPERATIONS: dict[str, Callable[[int, int], Any]] = {
    "all_reduce of 10 floats": lambda rank, size: dist.all_reduce(torch.ones(10)),
    "all_reduce of 4 MB": lambda rank, size: dist.all_reduce(torch.ones(1_000_000)),
    "broadcast of 4 MB": lambda rank, size: dist.broadcast(torch.ones(1_000_000), 0),
    "all_to_all of 4 MB": lambda rank, size: dist.all_to_all_single(torch.ones(960_000), torch.ones(960_000)),
    "all_gather_object": lambda rank, size: dist.all_gather_object([None] * size, "text"),
    "barrier": lambda rank, size: dist.barrier(),
    "isend and irecv of 4 MB around a ring": lambda rank, size: ring(rank, size),
}


def ring(rank: int, size: int) -> None:
    works = [
        dist.isend(torch.ones(1_000_000), (rank + 1) % size),
        dist.irecv(torch.ones(1_000_000), (rank - 1) % size),
    ]
    for work in works:
        work.wait()


def busy(rank: int, size: int, store: str, operation: str) -> None:
    """Do the same operation over and over until it fails, and then once more."""
    join(rank, size, store)
    call = OPERATIONS[operation]
    call(rank, size)
    ready()

    def forever() -> None:
        while True:
            call(rank, size)

    attempt(operation, forever)
    attempt("the next operation", dist.barrier)
    dist.destroy_process_group()


def gone(rank: int, size: int, store: str, victim: int, way: str) -> None:
    """One rank leaves while the others wait for it in a collective."""
    join(rank, size, store)
    dist.barrier()
    if rank == victim:
        time.sleep(0.3)
        say(event="leaves", at=time.monotonic())
        return go(way)
    attempt("all_reduce", lambda: dist.all_reduce(torch.ones(3)))


def go(way: str) -> None:
    """End this rank, in the end."""
    if way == "raises an exception":
        raise RuntimeError("something of the user's")
    if way == "calls sys.exit(3)":
        sys.exit(3)
    if way == "calls os._exit(3)":
        os._exit(3)
    if way == "destroys the group":
        return dist.destroy_process_group()
    assert way == "returns from its script", way


def paused(rank: int, size: int, store: str, operation: str, victim: int) -> None:
    """The victim dies while no rank is in an operation; the others come to the next one thereafter, not at once."""
    join(rank, size, store)
    OPERATIONS[operation](rank, size)
    ready()
    time.sleep(60 if rank == victim else 0.5 + 0.3 * rank)
    attempt(operation, lambda: OPERATIONS[operation](rank, size))


MOVES: dict[str, Callable[[torch.Tensor, int, Any], Any]] = {
    "recv": lambda x, rank, group: dist.recv(x, 0, group=group) if rank else dist.send(x, 1, group=group),
    "broadcast": lambda x, rank, group: dist.broadcast(x, 0, group=group),
}


def reused(rank: int, size: int, store: str, operation: str, timeout_s: float, stopped_s: float) -> None:
    """Rank 0 is stopped while it sends; what rank 1 does with its tensor once that has failed is its own affair."""
    stop = f"read pid; sleep 0.1; kill -STOP $pid; sleep {stopped_s}; kill -CONT $pid"
    stopper = subprocess.Popen(["sh", "-c", stop], stdin=subprocess.PIPE) if rank == 1 else None  # on all cores
    # On one core it is where it was when rank 1 came to run: in the middle of something.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    join(rank, size, store)
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    well, failing = dist.new_group(timeout=datetime.timedelta(seconds=15)), dist.new_group()
    dist.all_reduce(torch.ones(500_000), group=failing)  # one that goes well
    x = torch.full((3_000_000,), 1.0 if rank else 2.0)
    dist.barrier()
    failing.set_timeout(datetime.timedelta(seconds=timeout_s))
    if stopper:
        stopper.stdin.write(b"%d\n" % pids[0])
        stopper.stdin.close()

    def forever() -> None:
        while True:
            MOVES[operation](x, rank, failing)

    attempt(operation, forever)
    x.fill_(5)
    attempt("all_reduce", lambda: [dist.all_reduce(torch.ones(1000), group=well) for _ in range(100)])
    say(event="counted", others=int((x != 5).sum()))
    mark(store, f"done{rank}")
    await_mark(store, f"done{1 - rank}")  # an end would be another thing to notice


def part(rank: int, size: int, store: str, victim: int, operation: str) -> None:
    """Another waits for a dead victim in a group that has not all ranks: they have other numbers there."""
    join(rank, size, store)
    group = dist.new_group([1, 2])
    if rank:
        dist.barrier(group=group)
    dist.barrier()
    limit(25.0)
    ready()
    if rank == victim:
        time.sleep(60)
    await_mark(store, "killed")
    if rank == 1:
        waits = {
            "recv": lambda: dist.recv(torch.ones(10), 2, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }
        attempt(operation, waits[operation])


def others_go_on(rank: int, size: int, store: str, victim: int, way: str, seconds: float) -> None:
    """The victim leaves after operations of all ranks; the others use a group of theirs."""
    join(rank, size, store)
    part = dist.new_group([other for other in range(size) if other != victim])
    dist.barrier()
    if rank == victim:
        return go(way)

    def work() -> None:
        for _ in range(int(seconds / 0.1)):
            dist.all_reduce(torch.ones(10), group=part)
            time.sleep(0.1)

    attempt("all_reduce", work)


def in_flight(rank: int, size: int, store: str, victim: int) -> None:
    """The others have operations under way that nobody waits for just then."""
    join(rank, size, store)
    dist.barrier()
    if rank != victim:
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        message = dist.irecv(torch.ones(3), victim)
    ready()
    if rank == victim:
        time.sleep(60)
    attempt("wait for the first all_reduce", works[0].wait)
    attempt("wait for the last all_reduce", works[2].wait)
    attempt("future of the second all_reduce", works[1].get_future().wait)
    attempt("wait for the message", message.wait)
    say(event="works", completed=[w.is_completed() for w in works], at=time.monotonic())


def unwaited(rank: int, size: int, store: str, victim: int) -> None:
    """The others leave with an operation under way that can never finish."""
    join(rank, size, store)
    dist.barrier()
    if rank == victim:
        ready()
        time.sleep(60)
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.irecv(torch.ones(3), victim)
    ready()
    attempt("destroy_process_group", dist.destroy_process_group)


MESSAGES: dict[str, Callable[[int], Any]] = {
    "recv": lambda peer: dist.recv(torch.ones(3), peer),
    "recv from any rank": lambda peer: dist.recv(torch.ones(3)),
    "send of 4 MB": lambda peer: dist.send(torch.ones(1_000_000), peer),
    "irecv": lambda peer: dist.irecv(torch.ones(3), peer).wait(),
}


def message(rank: int, size: int, store: str, operation: str, delay_s: float = 0) -> None:
    """Rank 0 waits for a message from or to rank 1, which only sleeps; not at once."""
    join(rank, size, store)
    dist.barrier()
    ready()
    time.sleep(60 if rank == 1 else delay_s)
    attempt(operation, lambda: MESSAGES[operation](1))


def works(rank: int, size: int, store: str, way: str) -> None:
    """Rank 0 has messages of a Communicator under way, from and to rank 1, which only sleeps."""
    from accdp_comm import Communicator, waitall

    join(rank, size, store)
    world = Communicator()
    got, sent = np.zeros(3, np.float32), np.zeros(1_000_000, np.float32)
    under_way = [world.irecv(got, 1), world.isend(sent, 1)] if rank == 0 else []
    world.barrier()
    ready()
    if rank == 1:
        time.sleep(60)

    def look() -> None:
        while not under_way[0].test():
            time.sleep(0.001)

    attempt(way, {"waitall": lambda: waitall(under_way), "test": look}[way])
    attempt("wait for the send", under_way[1].wait)
    attempt("close", world.close)


CALLS: dict[str, Callable[[int], Any]] = {
    "all_reduce of 3 floats": lambda rank: dist.all_reduce(torch.ones(3)),
    "all_reduce of 4 floats": lambda rank: dist.all_reduce(torch.ones(4)),
    "all_reduce of 300000 floats": lambda rank: dist.all_reduce(torch.ones(300_000)),
    "all_reduce of 300001 floats": lambda rank: dist.all_reduce(torch.ones(300_001)),
    "all_reduce of 3 int32": lambda rank: dist.all_reduce(torch.ones(3, dtype=torch.int32)),
    "all_reduce (max) of 3 floats": lambda rank: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX),
    "broadcast from 0": lambda rank: dist.broadcast(torch.ones(3), 0),
    "broadcast from 1": lambda rank: dist.broadcast(torch.ones(3), 1),
    "reduce to 0": lambda rank: dist.reduce(torch.ones(3), 0),
    "reduce to 1": lambda rank: dist.reduce(torch.ones(3), 1),
    "barrier": lambda rank: dist.barrier(),
    "all_gather of equal blocks": lambda rank: dist.all_gather([torch.ones(2) for _ in range(3)], torch.ones(2)),
    "all_gather of other blocks": lambda rank: dist.all_gather(
        [torch.ones(2 if other == rank else 5) for other in range(3)], torch.ones(2)
    ),
    "all_to_all of 2 rows each": lambda rank: dist.all_to_all_single(torch.ones(6), torch.ones(6)),
    "all_to_all of 3 rows each": lambda rank: dist.all_to_all_single(torch.ones(9), torch.ones(9)),
    "reduce_scatter of 2 rows each": lambda rank: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(6)),
    "reduce_scatter of 3 rows each": lambda rank: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(9)),
}


def disagree(rank: int, size: int, store: str, odd: int, usual_call: str, odd_call: str) -> None:
    """One rank calls something else than the others. Ranks that go ahead in a short call hear of it in the next."""
    join(rank, size, store)
    dist.barrier()
    say(event="calls", at=time.monotonic())
    attempt("the call", lambda: (CALLS[odd_call if rank == odd else usual_call](rank), dist.barrier()))


def wrong_message(rank: int, size: int, store: str, sent: int, expected: int) -> None:
    """Rank 0 sends another number of floats than rank 1 expects."""
    join(rank, size, store)
    dist.barrier()
    say(event="calls", at=time.monotonic())
    if rank == 0:
        attempt("send and barrier", lambda: (dist.send(torch.ones(sent), 1), dist.barrier()))
    else:
        attempt("recv", lambda: dist.recv(torch.ones(expected), 0))


def late(rank: int, size: int, store: str, victim: int, operation: str, limit_s: float) -> None:
    """One rank comes when the others have given up."""
    join(rank, size, store)
    dist.barrier()
    limit(limit_s)
    say(event="calls", at=time.monotonic())
    if rank == victim:
        for other in range(size):
            if other != victim:
                await_mark(store, f"{other} gave up")
    attempt(operation, lambda: OPERATIONS[operation](rank, size))
    mark(store, f"{rank} gave up")


def absent(rank: int, size: int, store: str, victim: int, limit_s: float) -> None:
    """One rank never comes to init_process_group, the others do so together."""
    mark(store, f"{rank} is there")
    for other in range(size):
        await_mark(store, f"{other} is there")
    say(event="calls", at=time.monotonic())
    if rank != victim:
        attempt("init_process_group", lambda: join(rank, size, store, timeout_s=limit_s))


def patience(rank: int, size: int, store: str) -> None:
    """wait(timeout) gives up on the wait only; the operation goes on."""
    join(rank, size, store)
    dist.barrier()
    say(event="calls", at=time.monotonic())
    if rank == 1:
        await_mark(store, "0 gave up")
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        attempt("wait(0.2 s)", lambda: work.wait(datetime.timedelta(seconds=0.2)))
        mark(store, "0 gave up")
    attempt("wait()", work.wait)
    assert tensor.tolist() == [2.0] * 3


def start(rank: int, size: int, store: str) -> None:
    """Form the group; the environment may be in the way."""
    say(event="calls", at=time.monotonic())
    attempt("init_process_group", lambda: join(rank, size, store))
    if dist.is_initialized():
        attempt("barrier", dist.barrier)


def waiting(rank: int, size: int, store: str, operation: str) -> None:
    """Rank 0 waits for rank 1, which comes when rank 0 has given up, and is told so."""
    waits: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "all_reduce, not synchronous": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        "recv": lambda: dist.recv(torch.ones(3), 1),
        "irecv": lambda: dist.irecv(torch.ones(3), 1).wait(),
        "init_process_group": lambda: join(rank, size, store),
    }
    if operation != "init_process_group":
        join(rank, size, store)
        dist.barrier()
    if rank == 0:
        attempt(operation, lambda: (ready(), waits[operation]()))  # a signal comes after the first, never before
        mark(store, "0 gave up")
    elif operation != "init_process_group":
        await_mark(store, "0 gave up")
        attempt("barrier", dist.barrier)


def handler(rank: int, size: int, store: str, operation: str, reaction: str) -> None:
    """A signal comes while rank 0 waits for rank 1, which sleeps; its handler uses the group."""
    join(rank, size, store)
    dist.barrier()
    import accdp_comm

    reactions: dict[str, Callable[[], Any]] = {
        "destroy": dist.destroy_process_group,
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "all_reduce, not synchronous": lambda: dist.all_reduce(torch.ones(3), async_op=True),
        "bcast_compressed": lambda: accdp_comm.bcast_compressed(torch.ones(3)),
        "bcast_compressed, not synchronous": lambda: accdp_comm.bcast_compressed(torch.ones(3), async_op=True).wait(),
        "monitored_barrier": accdp_comm.monitored_barrier,
        "recv": lambda: dist.recv(torch.ones(3), 1),
    }
    waits: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "all_reduce, not synchronous": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        "recv": lambda: dist.recv(torch.ones(3), 1),
    }

    def react(*_: object) -> None:
        reactions[reaction]()
        sys.exit(0)

    signal.signal(signal.SIGUSR1, react)
    if rank == 0:
        try:
            attempt(operation, lambda: (ready(), waits[operation]()))
        finally:
            mark(store, "0 gave up")
    else:
        await_mark(store, "0 gave up")
        attempt("barrier", dist.barrier)


def uncaught(rank: int, size: int, store: str) -> None:
    """As above, but nobody catches anything."""
    join(rank, size, store)
    dist.barrier()
    ready()
    if rank == 1:
        time.sleep(60.0)
    dist.all_reduce(torch.ones(3))


def without_destroy(rank: int, size: int, store: str) -> None:
    """Use everything, and end without tidying up."""
    join(rank, size, store)
    pair = dist.new_group([0, 1] if size > 1 else [0])
    dist.all_reduce(torch.ones(300_000))
    if size > 1 and rank < 2:
        dist.all_reduce(torch.ones(3), group=pair, async_op=True).wait()
        work = dist.isend(torch.ones(3), 1 - rank)
        dist.recv(torch.ones(3), 1 - rank)
        work.wait()
    dist.barrier()
    say(event="done", at=time.monotonic())


def one_after_the_other(rank: int, size: int, store: str) -> None:
    """Ranks leave at different times; the others go on in groups of those that remain."""
    join(rank, size, store)
    groups = [dist.new_group(list(range(first, size))) for first in range(size)]
    for turn in range(size):
        if rank >= turn:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=groups[turn])
            assert tensor.item() == size - turn
        if rank == turn:
            attempt("destroy_process_group", dist.destroy_process_group)
            return
        time.sleep(0.2)
