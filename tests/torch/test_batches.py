"""Operations that torch coalesces into one work."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from jobs import SOON_S


@pytest.mark.on_ranks(2)
def test_the_work_of_a_batch(rank, size):
    """It ends with the last of its operations, whoever waits."""
    parts = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with dist._coalescing_manager(async_ops=True) as batch:
        for part in parts:
            dist.all_gather_into_tensor(part, torch.ones(part.numel() // size))
    (work,) = batch.works
    values = work.get_future().wait()
    assert work.wait() and work.is_completed() and work.is_success()
    assert [value.tolist() for value in values] == [[1.0] * (2 * size), [1.0] * (3 * size)]
    world = dist.distributed_c10d._get_default_group()
    world._start_coalescing(torch.device("cpu"))
    empty = world._end_coalescing(torch.device("cpu"))
    assert empty.wait() and empty.is_completed()
    world._start_coalescing(torch.device("cpu"))  # and what an exception ends is not in the next
    dist.all_reduce(torch.ones(2), async_op=True)
    world._start_coalescing(torch.device("cpu"))
    dist.all_reduce(torch.ones(3), async_op=True)
    batch = world._end_coalescing(torch.device("cpu"))
    assert batch.wait() and [len(result) for result in batch.result()] == [3]


@pytest.mark.on_ranks(2)
def test_the_future_of_a_batch_is_that_of_all(rank, size):
    part, store = dist.new_group(), dist.distributed_c10d._get_default_store()
    part.set_timeout(datetime.timedelta(seconds=8))
    if rank == 0:
        with dist._coalescing_manager(group=part, device=torch.device("cpu"), async_ops=True) as batch:
            dist.irecv(torch.zeros(3), 1, tag=9, group=part)  # which nobody sends
            dist.irecv(torch.zeros(3), 1, tag=1, group=part)
        future = batch.works[0].get_future()
        store.wait(["one sent"])
        time.sleep(0.3)
        assert not future.done()
        with pytest.raises(RuntimeError, match="Timed out"):
            future.wait()
    else:
        dist.send(torch.ones(3), 0, tag=1, group=part)
        store.set("one sent", "")
    dist.barrier()


@pytest.mark.on_ranks(2)
def test_waits_for_a_batch_have_one_limit(rank, size):
    part = dist.new_group()
    part.set_timeout(datetime.timedelta(seconds=1))
    if rank == 0:
        with dist._coalescing_manager(group=part, device=torch.device("cpu"), async_ops=True) as batch:
            for _ in range(40):
                dist.irecv(torch.empty(3), 1, group=part)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="Timed out"):
            batch.works[0].wait(datetime.timedelta(seconds=0.5))
        with pytest.raises(RuntimeError, match="Timed out"):
            batch.works[0].get_future().wait()
        assert time.monotonic() - began < SOON_S  # not the limit of each
    dist.barrier()
