"""send, recv and their kin: tags, any source, order, sizes on both sides of eager, batches, to oneself."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from data import MOVED_DTYPES, assert_same, reason_of, values

# Nothing, one element, around 8 KiB, around 64 KiB (sent before it is asked for) and around 256 KiB, and beyond.
COUNTS = (0, 1, 2048, 2049, 16_384, 16_385, 65_536, 65_537, 1_000_003)


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("count", COUNTS)
def test_sizes_there_and_back(rank, size, count):
    mine, its = values(rank, count, torch.float32), torch.empty(count)
    if rank == 0:
        dist.send(mine, 1)
        assert dist.recv(its, 1) == 1
    else:
        assert dist.recv(its, 0) == 0
        dist.send(mine, 0)
    assert_same(its, values(1 - rank, count, torch.float32))


@pytest.mark.on_ranks(2, fresh=True)
def test_time_counts_from_wait(rank, size):
    """Whoever has something else to do first may take the group's time-out for that, and the peer as well."""
    group, store = dist.distributed_c10d._get_default_group(), dist.distributed_c10d._get_default_store()
    for count in (4, 100_000):
        dist.barrier()
        mine, its = torch.full((count,), 1.0 + rank), torch.zeros(count)
        if rank == 0:
            group.set_timeout(datetime.timedelta(seconds=1))
            works = [dist.isend(mine, 1), dist.irecv(its, 1)]
            time.sleep(1.5)
            store.wait([f"rank 1 has come, {count}"])
        else:
            time.sleep(1.2)
            works = [dist.irecv(its, 0), dist.isend(mine, 0)]
        for work in works:
            work.wait()
        if rank == 1:
            store.set(f"rank 1 has come, {count}", "")
        assert_same(its, torch.full((count,), 2.0 - rank))
        group.set_timeout(datetime.timedelta(seconds=30))


@pytest.mark.on_ranks(2, fresh=True)
def test_a_time_out_of_one_wait_ends_that_wait_alone(rank, size):
    x = torch.zeros(100_000)
    dist.barrier()
    if rank == 0:
        for work in (dist.irecv(x, 1), dist.isend(torch.ones(100_000), 1, tag=1)):
            with pytest.raises(RuntimeError, match=r"(recv|send) of 400000 .* Timed out after 0.05 s .* rank 1"):
                work.wait(datetime.timedelta(milliseconds=50))
            assert not work.is_completed()
            dist.barrier()
            work.wait()
    else:
        dist.barrier()
        dist.send(torch.ones(100_000), 0)
        dist.barrier()
        dist.recv(x, 0, tag=1)
    assert_same(x, torch.ones(100_000))


@pytest.mark.on_ranks(2)
def test_every_datatype_and_layout(rank, size):
    for dtype in MOVED_DTYPES.values():
        sent = values(0, (6, 4), dtype)
        for view in (lambda t: t, lambda t: t.T, lambda t: t[::2, 1:3], lambda t: t[0, 0], lambda t: t[:0]):
            if rank == 0:
                dist.send(view(sent), 1)
            else:
                whole = torch.zeros((6, 4)).to(dtype)
                dist.recv(view(whole), 0)
                expected = torch.zeros((6, 4)).to(dtype)
                view(expected).copy_(view(sent))
                assert_same(whole, expected)


@pytest.mark.on_ranks(4)
def test_everybody_with_everybody_at_once(rank, size):
    for count in (10, 50_000):
        received = [torch.zeros(count) for _ in range(size)]
        works = [dist.isend(torch.full((count,), 10.0 * rank + other), other) for other in range(size) if other != rank]
        works += [dist.irecv(received[other], other) for other in range(size) if other != rank]
        for work in works:
            work.wait()
            assert work.is_completed()
        for other in range(size):
            if other != rank:
                assert_same(received[other], torch.full((count,), 10.0 * other + rank))


@pytest.mark.on_ranks(2)
def test_tags_pick_the_message(rank, size):
    for count in (4, 30_000):
        if rank == 0:
            works = [dist.isend(torch.full((count,), float(tag)), 1, tag=tag) for tag in (3, 1, 2**31 - 1, 2)]
            for work in works:
                work.wait()
        else:
            for tag in (1, 2, 3, 2**31 - 1):
                tensor = torch.zeros(count)
                dist.recv(tensor, 0, tag=tag)
                assert_same(tensor, torch.full((count,), float(tag)))


@pytest.mark.on_ranks(2)
def test_messages_with_one_tag_stay_in_order(rank, size):
    counts = [1, 100_000, 2, 3000, 70_000, 1] * 5  # short ones must not overtake long ones
    if rank == 0:
        works = [dist.isend(torch.full((count,), float(i)), 1) for i, count in enumerate(counts)]
        for work in works:
            work.wait()
    else:
        tensors = [torch.zeros(count) for count in counts]
        works = [dist.irecv(tensor, 0) for tensor in tensors]
        for i, work in reversed(list(enumerate(works))):
            work.wait()
            assert tensors[i].unique().tolist() == [float(i)]


@pytest.mark.on_ranks(2)
def test_sends_may_all_come_before_any_receive(rank, size):
    works = [dist.isend(torch.full((200,), float(i)), 1 - rank) for i in range(500)]
    dist.barrier()
    for i in range(500):
        tensor = torch.zeros(200)
        dist.recv(tensor, 1 - rank)
        assert tensor[0] == i and tensor[-1] == i
    for work in works:
        work.wait()


@pytest.mark.on_ranks(3, 4)
def test_any_source(rank, size):
    for count in (3, 40_000):
        if rank == 0:
            seen = []
            for turn in range(2 * (size - 1)):
                tensor = torch.zeros(count)
                if turn % 2:
                    source = dist.recv(tensor)
                else:
                    work = dist.irecv(tensor)
                    work.wait()
                    source = work._source_rank()
                assert_same(tensor, torch.full((count,), float(source)))
                seen.append(source)
            assert sorted(seen) == sorted([*range(1, size)] * 2)
        else:
            for _ in range(2):
                dist.send(torch.full((count,), float(rank)), 0)
        dist.barrier()


@pytest.mark.on_ranks(1, 2)
def test_to_oneself(rank, size):
    group = dist.distributed_c10d._get_default_group()  # dist.send() itself refuses this
    for count in (0, 5, 300_000):
        sent, received = values(rank, count, torch.int32), torch.zeros(count, dtype=torch.int32)
        group.send([sent], rank, 0).wait()
        group.recv([received], rank, 0).wait()
        assert_same(received, sent)
        received.zero_()
        work = group.recv_anysource([received], 7)
        group.send([sent], rank, 7).wait()
        work.wait()
        assert_same(received, sent)


@pytest.mark.on_ranks(2, 4)
def test_batches(rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    for count in (0, 7, 100_000):
        incoming = [torch.zeros(count), torch.zeros(count)]
        outgoing = [torch.full((count,), rank + 0.5), torch.full((count,), -1.0 - rank)]
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing[0], right, tag=1),
                dist.P2POp(dist.irecv, incoming[1], right, tag=2),
                dist.P2POp(dist.irecv, incoming[0], left, tag=1),
                dist.P2POp(dist.isend, outgoing[1], left, tag=2),
            ]
        )
        assert len(requests) == 4
        for request in requests:
            request.wait()
        assert_same(incoming[0], torch.full((count,), left + 0.5))
        assert_same(incoming[1], torch.full((count,), -1.0 - right))


@pytest.mark.on_ranks(2)
def test_messages_move_while_collectives_run_and_while_nobody_waits(rank, size):
    message = torch.full((300_000,), float(rank)) if rank == 0 else torch.zeros(300_000)
    work = dist.isend(message, 1) if rank == 0 else dist.irecv(message, 0)
    for _ in range(20):
        total = torch.ones(10_000)
        dist.all_reduce(total)
        assert total[0] == 2
    done = threading.Event()
    work.get_future().then(lambda _: done.set())
    assert done.wait(10), "nobody waited for the message, and it did not arrive"
    assert_same(message, torch.zeros(300_000))


@pytest.mark.on_ranks(2)
def test_futures_and_source_rank(rank, size):
    tensor = torch.full((9,), 4.0) if rank == 1 else torch.zeros(9)
    work = dist.isend(tensor, 0) if rank == 1 else dist.irecv(tensor, 1)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    assert_same(doubled, torch.full((9,), 8.0))
    assert work.is_success() and reason_of(work) == ""
    if rank == 0:
        assert work._source_rank() == 1 and work.result()[0].data_ptr() == tensor.data_ptr()
    else:
        with pytest.raises(RuntimeError, match="recv"):
            work._source_rank()


@pytest.mark.on_ranks(3)
def test_ranks_of_a_group_are_translated(rank, size):
    pair = dist.new_group([2, 1])
    if rank == 0:
        return
    tensor = torch.tensor([float(rank)])
    if rank == 1:
        dist.send(tensor, 2, group=pair)
        dist.send(tensor + 1, group=pair, group_dst=dist.get_group_rank(pair, 2))
    else:
        assert dist.recv(tensor, 1, group=pair) == 1 and tensor.item() == 1
        assert dist.recv(tensor, group=pair) == 1 and tensor.item() == 2


@pytest.mark.on_ranks(2)
def test_a_receive_that_nothing_comes_for_times_out_and_harms_nothing(rank, size):
    if rank == 0:
        work = dist.irecv(torch.zeros(3), 1, tag=9)
        with pytest.raises(RuntimeError, match="Timed out.*waiting for rank 1"):
            work.wait(datetime.timedelta(milliseconds=100))
    dist.barrier()
    tensor = torch.full((3,), float(rank))
    if rank == 1:
        dist.send(tensor, 0)
    else:
        dist.recv(tensor, 1)
    assert tensor.tolist() == [1.0] * 3
