"""Futures of asynchronous operations: when they and their callbacks are done, and what callbacks may wait for."""

import datetime
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from data import assert_same

from accdp_comm import settings

SECONDS_10 = datetime.timedelta(seconds=10)


@pytest.mark.on_ranks(2, 3)
def test_then_runs_after_the_reduction_without_any_wait(rank, size):
    tensor = torch.full((5,), rank + 1.0)
    chained = (
        dist.all_reduce(tensor, async_op=True)
        .get_future()
        .then(lambda future: future.value()[0] / size)
        .then(lambda future: future.value() + 1)
    )
    assert_same(chained.wait(), torch.full((5,), (size + 1) / 2 + 1))
    group = dist.distributed_c10d._get_default_group()
    futures = [group.allreduce([torch.full((2,), float(i))]).get_future() for i in range(200)]
    for i, future in enumerate(futures):
        assert future.wait()[0].tolist() == [float(size * i)] * 2


BEGUN = {
    "allreduce": lambda peer: dist.all_reduce(torch.ones(4), async_op=True),
    "barrier": lambda peer: dist.barrier(async_op=True),
    "message": lambda peer: dist.irecv(torch.zeros(4), peer) if peer else dist.isend(torch.ones(4), peer),
    "messages": lambda peer: dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.ones(4), peer), dist.P2POp(dist.irecv, torch.zeros(4), peer)]
    )[0],
}


@pytest.mark.on_ranks(2, 3)
def test_collectives_in_callbacks_where_nothing_is_deferred(rank, size):
    """Everything runs in the order of the program, whoever comes when: callbacks on the thread that asked for them."""
    with settings.override(async_ops="off"):
        group = dist.new_group()
    seen = []

    def go_on(future):
        seen.append(threading.get_ident())
        inner = future.value()[0].clone()
        dist.all_reduce(inner, group=group)
        return inner

    for i in range(60):
        if i % 20 == rank:
            time.sleep(0.002)
        work = dist.all_reduce(torch.full((8,), i + 1.0), group=group, async_op=True)
        assert work.is_completed()
        chained = work.get_future().then(go_on)
        outer = torch.full((8,), i + 0.5)
        dist.all_reduce(outer, group=group)  # alike: nobody would notice if it changed places with the inner one
        assert_same(chained.wait(), torch.full((8,), size * size * (i + 1.0)))
        assert_same(outer, torch.full((8,), size * (i + 0.5)))
    assert seen == [threading.get_ident()] * 60
    dist.destroy_process_group(group)


@pytest.mark.on_ranks(2)
def test_a_collective_in_a_callback_is_warned_of(rank, size, tmp_path):
    """Once. Rank 1 is late, so that rank 0's callbacks run elsewhere, beside what it begins."""
    group = dist.new_group()
    printed, stderr = (tmp_path / f"stderr-{rank}").open("w+"), os.dup(2)
    os.dup2(printed.fileno(), 2)
    store = dist.distributed_c10d._get_default_store()
    for turn in range(2):
        if rank == 1:
            store.wait([f"attached {turn}"])
        future = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future()
        chained = future.then(lambda _: dist.barrier(group))
        if rank == 0:
            store.set(f"attached {turn}", "")
        chained.wait()
    os.dup2(stderr, 2)
    printed.seek(0)
    said = printed.read()
    assert rank == 1 or said.count("begins barrier in a future's callback") == 1, said
    dist.destroy_process_group(group)


@pytest.mark.on_ranks(2)
def test_workers_that_callbacks_kept_busy_do_not_stay(rank, size):
    """Each callback that does not return keeps a worker, and another one is hired for the next operation."""
    here, entered, may_return = threading.get_ident(), threading.Semaphore(0), threading.Event()

    def stay(future):
        entered.release()
        if threading.get_ident() != here:
            may_return.wait(60)

    before, store = threads(), dist.distributed_c10d._get_default_store()
    for turn in range(2):
        may_return.clear()
        if rank == 1:  # so that rank 0's operations last until all callbacks are attached
            store.wait([f"all attached {turn}"])
        futures = [dist.all_reduce(torch.ones(4), async_op=True).get_future().then(stay) for _ in range(40)]
        if rank == 0:
            store.set(f"all attached {turn}", "")
        for _ in futures:
            assert entered.acquire(timeout=60)
        assert rank == 1 or threads() > before + 10, "nothing to see"
        may_return.set()
        torch.futures.wait_all(futures)
    deadline = time.monotonic() + 30
    while threads() > before + 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before + 5, f"{threads()} threads stayed, {before} were there before"
    dist.barrier()


def threads():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("op", BEGUN)
@pytest.mark.parametrize("seen_by", ["wait", "wait without future", "is_completed"])
def test_what_is_done_has_its_future_done(rank, size, op, seen_by):
    for _ in range(300):
        work = BEGUN[op](1 - rank)
        if seen_by != "wait without future":
            future = work.get_future()
        if seen_by == "is_completed":
            while not work.is_completed():
                pass
        else:
            work.wait()
        future = work.get_future()
        assert future.done()
        future.value()
    dist.barrier()


@pytest.mark.on_ranks(2)
def test_callbacks_have_returned_when_wait_does(rank, size):
    """They may change the tensor in place, and whoever waits goes on with it."""
    for _ in range(300):
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        work.get_future().then(lambda future: future.value()[0].div_(size))
        work.wait()
        assert tensor.tolist() == [1.0] * 4


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("operation", ["message", "collective"])
def test_whoever_has_the_value_sees_that_the_work_is_done(rank, size, operation):
    """Even while a callback of the future runs on another thread."""
    tensor = torch.full((3,), float(rank))
    store, asked, seen = dist.distributed_c10d._get_default_store(), f"asked for a {operation}", threading.Event()
    if rank == 1:  # so it cannot be over before rank 0 has its future
        store.wait([asked])
    if operation == "collective":
        work = dist.all_reduce(tensor, async_op=True)
    else:
        work = dist.irecv(tensor, 1) if rank == 0 else dist.isend(tensor, 0)
    if rank == 0:
        future = work.get_future()
        future.then(lambda _: seen.wait(10))
        store.set(asked, "")
        future.wait()
        done = work.is_completed(), work.is_success(), work.result()[0].tolist()
        seen.set()
        assert done == (True, True, [1.0] * 3)
    work.wait()


@pytest.mark.on_ranks(2)
def test_to_a_callback_its_work_is_done(rank, size):
    works, seen = [], []

    def look(future: torch.futures.Future) -> None:
        seen.append((works[0].wait(), works[0].is_completed(), works[0].is_success()))

    dist.barrier()
    if rank == 0:
        works.append(dist.irecv(torch.zeros(4), 1))
        works[0].get_future().then(look)
        dist.barrier()
        works[0].wait()
        assert seen == [(True, True, True)]
    else:
        dist.barrier()
        dist.send(torch.ones(4), 0)


@pytest.mark.on_ranks(2)
def test_a_callback_may_wait_for_another_operation(rank, size):
    """As torch's PowerSGD hook does."""

    def sum_again(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    def echo(future: torch.futures.Future) -> torch.Tensor:
        answer = torch.zeros(1)
        sent = dist.isend(future.value()[0], 1 - rank, tag=5)
        dist.recv(answer, 1 - rank, tag=5)
        sent.wait()
        return answer

    first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    assert first.then(sum_again).wait().item() == 4.0
    exchange = dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.zeros(1), 1 - rank)
    assert exchange[1].get_future().then(echo).wait().item() == 1.0
    exchange[0].wait()


@pytest.mark.on_ranks(2)
def test_callbacks_may_wait_for_each_other_s_operations(rank, size):
    """Even so that each waits for the other's: both are over, though not both callbacks."""
    tensors = [torch.ones(3), torch.ones(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    counted = []

    def wait_for_all(future: torch.futures.Future) -> None:
        for work in works:
            work.wait(SECONDS_10)
            assert work.is_completed() and work.is_success()
        counted.append(sum(tensor.sum().item() for tensor in tensors))

    for work in works:
        work.get_future().then(wait_for_all)
    for work in works:
        work.wait()
    assert counted == [16.0, 16.0]
