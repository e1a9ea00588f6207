"""Callbacks of messages' futures: what they may wait for while messages move, and what they hold."""

import datetime
import signal
import time

import pytest
import torch
import torch.distributed as dist
from when_asleep import signal_me_asleep

import accdp_comm


@pytest.mark.on_ranks(2)
def test_works_that_nobody_keeps_do_not_stop_who_asks_for_futures(rank, size):
    """Python's objects in them go where messages move, and want the GIL for that; asking for a future has it."""
    for _ in range(50):
        if rank == 0:
            for _ in range(8):
                dist.isend(torch.ones(20_000), 1, tag=1)
            answer = dist.irecv(torch.zeros(1), 1, tag=2)
            deadline = time.monotonic() + 0.01
            while time.monotonic() < deadline:
                answer.get_future()
            answer.wait()
        else:
            for _ in range(8):
                got = torch.zeros(20_000)
                dist.recv(got, 0, tag=1)
                assert (got == 1).all()
            dist.send(torch.ones(1), 0, tag=2)
    dist.barrier()


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("asked", [True, False])
def test_a_callback_waits_for_messages_that_came_with_its_own(rank, size, asked):
    for _ in range(10):
        if rank == 0:
            tensors = [torch.zeros(3) for _ in range(16)]
            works = [dist.irecv(tensor, 1) for tensor in tensors]
            if asked:
                for work in works:
                    work.get_future()
            seen = (
                works[0]
                .get_future()
                .then(lambda _, works=works, tensors=tensors: [work.wait() for work in works] and sum(tensors).tolist())
            )
            dist.barrier()
            assert seen.wait() == [120.0] * 3
        else:
            dist.barrier()
            time.sleep(0.02)
            for work in [dist.isend(torch.full((3,), float(i)), 0) for i in range(16)]:
                work.wait()


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("batched", [False, True])
def test_a_callback_may_wait_for_a_collective_while_other_messages_move(rank, size, batched):
    """The other rank comes to the collective when they have left it, and until then nobody waits for them here."""
    small, large, total = torch.zeros(1), torch.zeros(4 << 20), torch.ones(2)
    if rank == 0:
        if batched:
            [first] = dist.batch_isend_irecv([dist.P2POp(dist.irecv, small, 1)])
        else:
            first = dist.irecv(small, 1)
        second = dist.irecv(large, 1)
        summed = first.get_future().then(lambda _: dist.all_reduce(total))
        summed.wait()
        second.wait()  # a send has ended when the rest of it lies in shared memory
        assert (large == 3).all()
    else:
        dist.send(torch.ones(1), 0)
        time.sleep(0.2)
        dist.send(torch.full((4 << 20,), 3.0), 0)
        dist.all_reduce(total)
    assert total.tolist() == [2.0, 2.0] and small.item() == 1 - rank
    dist.barrier()


def ask_for(wait):
    try:
        wait()
    except RuntimeError as error:
        return "interrupted" if "interrupted" in str(error) else str(error)
    return ""


@pytest.mark.on_ranks(2)
def test_a_time_out_below_0_is_the_groups(rank, size):
    """Also of the callbacks, which a message that has come may have to wait for."""
    if rank == 0:
        work = dist.irecv(torch.zeros(1), 1)
        seen = work.get_future().then(lambda _: time.sleep(0.2))
        assert work.wait(datetime.timedelta(milliseconds=-1))
        seen.wait()
    else:
        dist.send(torch.ones(1), 0)


@pytest.mark.on_ranks(2, fresh=True)
@pytest.mark.parametrize("kind", ["collective", "message"])
def test_an_interrupt_is_told_as_often_as_one_asks(rank, size, kind):
    """The first to wait gets Python's own exception, once; whoever asks after that, why it failed."""
    store = dist.distributed_c10d._get_default_store()
    for _ in range(200):  # works are run by who waits, then
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    if rank == 0:
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True) if kind == "collective" else dist.irecv(tensor, 1)
        if kind == "message":
            beside = dist.irecv(torch.ones(1), 1, tag=2)
            beside.get_future().then(lambda future: len(future.value()))
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(ZeroDivisionError("in a handler")))
        with pytest.raises(ZeroDivisionError, match="in a handler"), signal_me_asleep(signal.SIGALRM):
            work.wait()
        store.set("told", "")
        told = {ask_for(work.wait), *(ask_for(work.get_future().wait) for _ in range(2)), ask_for(work.wait)}
        assert len(told) == 1 and told <= {"", "interrupted"}, told  # a worker may have been in the operation
    else:
        store.wait(["told"])
        ask_for(lambda: dist.all_reduce(torch.ones(3)) if kind == "collective" else dist.send(torch.ones(3), 0))


@pytest.mark.on_ranks(2, fresh=True)
def test_a_monitored_barrier_that_was_given_up_can_be_come_to_again(rank, size):
    """What was said of the first try counts for the same one, and for no later one."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    limit = datetime.timedelta(seconds=20)
    if rank == 1:
        with pytest.raises(RuntimeError, match="Rank 1 successfully reached monitoredBarrier, but"):
            accdp_comm.monitored_barrier(timeout=0.3)
        store.set("given up", "")
        accdp_comm.monitored_barrier(timeout=limit)
        time.sleep(0.5)
        store.set("comes", "")
        accdp_comm.monitored_barrier(timeout=limit)
    else:
        store.wait(["given up"])
        accdp_comm.monitored_barrier(timeout=limit)
        accdp_comm.monitored_barrier(timeout=limit)
        assert store.check(["comes"])
    dist.barrier()
