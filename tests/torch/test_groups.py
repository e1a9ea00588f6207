"""Groups beside, inside and after each other; concurrent use; start time; monitored_barrier; split."""

import copy
import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from data import check_all_came_before_any_left
from jobs import SOON_S
from rank_process import join

import accdp_comm
from accdp_comm import _torch


def total(group=None, value: float = 1.0) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


@pytest.mark.on_ranks(4)
def test_new_groups_of_any_members(rank, size):
    for members in ([0], [3, 1], [0, 1, 2], [2, 3], [0, 1, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            assert dist.get_backend(group) == "accdp"
            assert dist.get_world_size(group) == len(members)
            assert total(group, rank + 1.0) == sum(member + 1.0 for member in members)
            everyone: list = [None] * len(members)
            dist.all_gather_object(everyone, rank, group=group)
            assert everyone == dist.get_process_group_ranks(group)
            source = torch.tensor([rank])
            dist.broadcast(source, members[-1], group=group)
            assert source.item() == members[-1]
        else:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


@pytest.mark.on_ranks(4, fresh=True)  # from torch 2.14 on it numbers the groups that follow otherwise on these two
def test_local_synchronization_needs_no_other_rank(rank, size):
    if rank in (1, 3):  # ranks 0 and 2 do not even know
        group = dist.new_group([1, 3], use_local_synchronization=True)
        assert total(group, rank) == 4
        alone = dist.new_group([rank], use_local_synchronization=True)
        assert total(alone, 5.0) == 5
    dist.barrier()


@pytest.mark.on_ranks(4)
def test_subgroups_of_subgroups(rank, size):
    half, halves = dist.new_subgroups(group_size=2)
    assert len(halves) == 2 and total(half, rank) == (1 if rank < 2 else 5)
    crossing, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    assert total(crossing, rank) == (2 if rank % 2 == 0 else 4)
    alone, _ = dist.new_subgroups(group_size=1, group=crossing)
    assert dist.get_world_size(alone) == 1 and total(alone, rank) == rank


@pytest.mark.on_ranks(2, fresh=True)
def test_a_gloo_group_beside_ours_and_our_group_in_a_gloo_world(rank, size, tmp_path):
    beside = dist.new_group(backend="gloo")
    assert dist.get_backend(beside) == "gloo" and total(beside) == 2 and total() == 2
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=size)
    ours = dist.new_group(backend="accdp")
    assert dist.get_backend() == "gloo" and dist.get_backend(ours) == "accdp" and total(ours) == 2 and total() == 2


@pytest.mark.on_ranks(4)
def test_several_groups_from_several_threads(rank, size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = [None, *[pair for pair in pairs if pair is not dist.GroupMember.NON_GROUP_MEMBER], dist.new_group()]
    errors: list[BaseException] = []

    def work(number: int, group) -> None:
        try:
            members = dist.get_process_group_ranks(group)
            for step in range(60):
                count = 1 if step % 3 else 50_000
                tensor = torch.full((count,), float(rank + number + step))
                dist.all_reduce(tensor, group=group)
                expected = sum(member + number + step for member in members)
                assert tensor[0] == expected and tensor[-1] == expected, (number, step, tensor[0], expected)
                if step % 5 == 0:
                    next_ = members[(members.index(rank) + 1) % len(members)]
                    before = members[members.index(rank) - 1]
                    box = torch.zeros(3)
                    sent = dist.isend(torch.full((3,), float(step)), next_, group=group)
                    dist.recv(box, before, group=group)
                    sent.wait()
                    assert box.tolist() == [float(step)] * 3
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=job) for job in enumerate(mine)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    dist.barrier()


@pytest.mark.on_ranks(3)
def test_asynchronous_operations_of_several_groups_at_once(rank, size):
    groups = [dist.new_group() for _ in range(3)]
    order = groups if rank % 2 else groups[::-1]  # ranks call them in different orders, which is allowed
    works = {}
    for group in order:
        tensor = torch.full((100_000,), rank + 1.0)
        works[group] = (dist.all_reduce(tensor, group=group, async_op=True), tensor)
    for group in groups:
        work, tensor = works[group]
        work.wait()
        assert tensor[0] == 6 and tensor[-1] == 6


@pytest.mark.on_ranks(4)
def test_groups_are_destroyed_while_others_go_on(rank, size):
    for _ in range(10):
        group = dist.new_group([0, 1, 2])
        if rank < 3:
            assert total(group) == 3
            dist.destroy_process_group(group)
        assert total() == 4


@pytest.mark.on_ranks(2, fresh=True)
def test_destroy_and_init_again(rank, size, tmp_path):
    for turn in range(5):
        assert total() == size
        subgroup = dist.new_group([turn % size])
        if rank == turn % size:
            assert total(subgroup, 7.0) == 7
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(ValueError, match="initialized"):
            dist.all_reduce(torch.ones(1))
        join(rank, size, f"{tmp_path}/store{turn}")


@pytest.mark.on_ranks(2, fresh=True)
def test_one_store_file_serves_worlds_that_follow_each_other(rank, size, tmp_path):
    for turn in range(3):
        dist.destroy_process_group()
        store = dist.FileStore(f"{tmp_path}/store", 1)  # 1, and used by two: as torch's own tests do
        dist.init_process_group("accdp", store=dist.PrefixStore(str(turn), store), rank=rank, world_size=size)
        assert total() == size


@pytest.mark.on_ranks(2, fresh=True)
def test_a_group_of_two_starts_in_half_a_second(rank, size, tmp_path):
    times = []
    for turn in range(9):
        dist.barrier()
        dist.destroy_process_group()
        began = time.monotonic()
        join(rank, size, f"{tmp_path}/store{turn}")
        times.append(time.monotonic() - began)
        assert total() == size
    assert min(times) < 0.5, times  # of other turns a rank may have waited for a core


@pytest.mark.on_ranks(3)
def test_monitored_barrier(rank, size):
    if rank == 1:
        time.sleep(0.1)
    came = time.monotonic()
    accdp_comm.monitored_barrier()
    check_all_came_before_any_left(came)
    pair = dist.new_group([0, 2])
    accdp_comm.monitored_barrier(pair, timeout=datetime.timedelta(seconds=5))  # rank 1 passes at once
    accdp_comm.monitored_barrier(pair, timeout=5.0)
    for wrong in (datetime.timedelta(0), datetime.timedelta(seconds=-1), 0, float("nan"), "5"):
        with pytest.raises(accdp_comm.UsageError, match=r"monitored_barrier: timeout=.*, expected .* above 0"):
            accdp_comm.monitored_barrier(timeout=wrong)
    assert total() == 3


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("seconds", [1e10, 1e16, 1e300])
def test_who_waits_longer_than_clocks_tell_waits_without_end(rank, size, seconds):
    with accdp_comm.settings.override(timeout_s=seconds):
        part = dist.new_group()
        time.sleep(0.3 * rank)
        accdp_comm.monitored_barrier(part)
        accdp_comm.monitored_barrier(part, timeout=datetime.timedelta.max if seconds < 1e12 else float("inf"))
        tensor = torch.ones(1)
        time.sleep(0.3 * rank)
        dist.all_reduce(tensor, group=part, async_op=True)
        dist.destroy_process_group(part)
        assert tensor == size
    messages = [dist.P2POp(send, torch.ones(1), 1 - rank) for send in (dist.isend, dist.irecv)]
    time.sleep(0.3 * rank)
    for work in dist.batch_isend_irecv(messages):
        work.wait(datetime.timedelta(seconds=min(seconds, 8e10)))


@pytest.mark.on_ranks(4, fresh=True)
@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_who_is_missing(rank, size, wait_all_ranks):
    limit = datetime.timedelta(seconds=4)
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        names = "Ranks 1, 3 failed to pass" if wait_all_ranks else "Ranks? 1 failed to pass"
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=names):
            accdp_comm.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
        assert 3.9 < time.monotonic() - began < SOON_S
        store.set("rank 0 gave up", "")
    elif rank == 2:
        with pytest.raises(RuntimeError, match="Rank 2 successfully reached monitoredBarrier, but.*rank 0"):
            accdp_comm.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
    else:
        store.wait(["rank 0 gave up"])


@pytest.mark.on_ranks(2)
def test_monitored_barrier_of_a_group_that_has_failed(rank, size):
    """It blames nobody who is there: the first reason is told."""
    part = dist.new_group()
    with pytest.raises(dist.DistBackendError, match="ranks disagree"):
        dist.all_reduce(torch.ones(2 + rank), group=part)
    for wait_all_ranks in (False, True):
        with pytest.raises(dist.DistBackendError, match="ranks disagree") as raised:
            accdp_comm.monitored_barrier(part, timeout=20.0, wait_all_ranks=wait_all_ranks)
        assert "failed to pass" not in str(raised.value)
    dist.barrier()


@pytest.mark.on_ranks(3)
def test_monitored_barrier_of_a_group_that_fails_meanwhile(rank, size):
    part = dist.new_group()
    dist.barrier()
    if rank == 1:
        part.set_timeout(datetime.timedelta(seconds=1))
        with pytest.raises(dist.DistBackendError, match="Timed out after 1 s"):
            dist.all_reduce(torch.ones(3), group=part)
    else:
        with pytest.raises(dist.DistBackendError, match="all_?reduce.* Timed out after 1 s") as raised:
            accdp_comm.monitored_barrier(part, timeout=20.0, wait_all_ranks=True)
        assert "failed to pass" not in str(raised.value)
    dist.barrier()


@pytest.mark.on_ranks(2)
def test_abort_is_what_all_later_operations_tell(rank, size):
    part, store = dist.new_group(), dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 aborted"])
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .* aborted the group: abort\(\) was called"):
            dist.all_reduce(torch.ones(2), group=part)
    else:
        works = [dist.all_reduce(torch.ones(2), group=part, async_op=True) for _ in range(3)]
        part.abort()
        deadline = time.monotonic() + SOON_S
        while not works[-1].is_completed():  # though nobody waits for it
            assert time.monotonic() < deadline
            time.sleep(0.01)
        store.set("rank 0 aborted", "")
        later = [lambda how=how: dist.all_reduce(torch.ones(2), group=part, async_op=how) for how in (False, True)]
        for call in (*(work.wait for work in works), *later, lambda: dist.send(torch.ones(2), 1, group=part)):
            with pytest.raises(dist.DistBackendError, match=r"aborted the group: abort\(\) was called"):
                call()
        part.abort()
    dist.barrier()


@pytest.mark.on_ranks(2)
def test_who_keeps_the_backend_of_a_destroyed_group_has_none_that_is_open(rank, size):
    part = dist.new_group()
    kept, before = part._get_backend(torch.device("cpu")), len(_torch.open_groups())
    dist.destroy_process_group(part)
    assert len(_torch.open_groups()) == before - 1 and kept.size() == size


@pytest.mark.on_ranks(3)
def test_measure(rank, size):
    """All ranks hold the same numbers afterwards, in the order of what was begun before."""
    work = dist.all_reduce(torch.ones(10), async_op=True)
    found = accdp_comm.measure()
    assert work.is_completed()
    numbers = [found.step_s, found.node_bytes_per_s, found.reduce_bytes_per_s]
    assert all(number > 0 for number in numbers)
    every = [None] * size
    dist.all_gather_object(every, numbers)
    assert every == [numbers] * size
    pair = dist.new_group([0, 2])
    assert (accdp_comm.measure(pair) is None) == (rank == 1)
    assert total() == size


@pytest.mark.on_ranks(2)
def test_monitored_barrier_is_for_our_groups(rank, size):
    beside = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="gloo, expected accdp"):
        accdp_comm.monitored_barrier(beside)
    with pytest.raises(accdp_comm.UsageError, match="measure: the group's backend is gloo, expected accdp"):
        accdp_comm.measure(beside)


@pytest.mark.on_ranks(4)
def test_split_group(rank, size):
    world = dist.distributed_c10d._get_default_group()  # dist.split_group() itself wants an accelerator
    assert world._get_backend(torch.device("cpu")).supports_splitting
    for number, (mine, other) in enumerate([([0, 2], [1, 3]), ([0, 3], [1, 2])]):
        members = mine if rank in mine else other
        part = world.split_group(members, group_name=f"split {number} {members}", timeout=datetime.timedelta(seconds=9))
        assert (part.size(), part.rank()) == (2, members.index(rank))
        tensor = torch.tensor([float(rank)])
        part.allreduce([tensor]).wait()
        assert tensor.item() == sum(members)
        whole = part._get_backend(torch.device("cpu")).options
        assert whole._timeout == datetime.timedelta(seconds=9)
        assert whole.global_ranks_in_group == members
        only = part.split_group([1], group_name=f"the last of {members}", timeout=datetime.timedelta(seconds=9))
        if only:  # the parent's numbers are not the world's
            assert only._get_backend(torch.device("cpu")).options.global_ranks_in_group == members[1:]
        assert (only is None) == (rank == members[0])
    assert total() == 4


@pytest.mark.on_ranks(3)
def test_splits_whose_names_differ(rank, size):
    """As torch's do, which counts the groups that a rank was in."""
    world = dist.distributed_c10d._get_default_group()
    backend = world._get_backend(torch.device("cpu"))
    before = backend.options
    limit = datetime.timedelta(seconds=9)
    assert (world.split_group([1], group_name="of one", timeout=limit) is None) == (rank != 1)
    for turn in range(2):
        part = world.split_group([0, 1, 2], group_name=f"{turn} of rank {rank}", timeout=limit)
        inner = part.split_group([0, 2], group_name=f"inner {turn} of rank {rank}", timeout=limit)
        for group, members in [(part, [0, 1, 2]), (inner, [0, 2])]:
            if rank in members:
                tensor = torch.ones(1)
                group.allreduce([tensor]).wait()
                assert tensor.item() == len(members)
    after = backend.options
    assert (after._timeout, after.group_name) == (before._timeout, before.group_name)


@pytest.mark.on_ranks(3)
def test_merged_groups(rank, size):
    world = dist.distributed_c10d._get_default_group()
    world._enable_collectives_timing()
    store = dist.PrefixStore("where they meet", dist.distributed_c10d._get_default_store())
    limit = datetime.timedelta(seconds=9)
    merged = world.merge_remote_group(store, size, timeout=limit, group_name="merged", group_desc="of all")
    numbers = torch.zeros(3)  # torch numbers the ranks as they come
    numbers[merged.rank()] = rank + 1
    merged.allreduce([numbers]).wait()
    assert merged.size() == size and sorted(numbers.tolist()) == [1, 2, 3]
    assert merged._get_backend(torch.device("cpu")).options._timeout == limit


@pytest.mark.on_ranks(2)
def test_what_torch_asks_for_where_a_device_is_bound(rank, size):
    """init_process_group(device_id=...): new groups are then split from the default one, as torch sees it."""
    world = dist.distributed_c10d._get_default_group()
    backend = world._get_backend(torch.device("cpu"))
    assert backend.supports_splitting  # torch asks ranks outside of a new group for the next, and copies options
    assert backend.perform_nocolor_split(torch.device("cuda", 0)) is None
    options = copy.deepcopy(backend.options)
    options._timeout = datetime.timedelta(seconds=9)
    part = world.split_group([0, 1], opts=options, group_name="made of copied options")
    tensor = torch.ones(1)
    part.allreduce([tensor]).wait()
    assert tensor.item() == size
    made = part._get_backend(torch.device("cpu")).options
    assert (made._timeout, made.group_name) == (datetime.timedelta(seconds=9), "made of copied options")


@pytest.mark.on_ranks(2, fresh=True)
def test_destroy_waits_for_what_others_come_late_for(rank, size):
    tensor = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.destroy_process_group()
        assert work.is_success()
    else:
        time.sleep(6)  # longer than a rank that fails would wait
        dist.all_reduce(tensor)
        dist.destroy_process_group()
    assert tensor.tolist() == [2.0] * 3


@pytest.mark.on_ranks(2, fresh=True)
def test_destroy_on_the_way_out_of_an_error_does_not_wait_long(rank, size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        began = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            try:
                work = dist.all_reduce(torch.ones(3), async_op=True)
                raise ZeroDivisionError
            finally:
                dist.destroy_process_group()
        assert time.monotonic() - began < SOON_S
        assert not work.is_success()
        store.set("gave up", "")
    else:
        store.wait(["gave up"])
        with pytest.raises(dist.DistBackendError, match="left while operations were under way"):
            dist.all_reduce(torch.ones(3))


@pytest.mark.on_ranks(2, fresh=True)
def test_time_outs_of_groups_and_options(rank, size):
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.options._timeout == datetime.timedelta(seconds=30)
    dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(seconds=23))
    assert backend.options._timeout == datetime.timedelta(seconds=23)
    brief = dist.new_group(timeout=datetime.timedelta(seconds=5))  # for its forming, too
    if rank == 0:
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"Timed out.*waiting for rank 1 \(pid \d+, host"):
            dist.barrier(group=brief)
        assert 4.9 < time.monotonic() - began < SOON_S
    assert total() == size  # the other group is as good as before


@pytest.mark.on_ranks(1)
def test_backend_name(rank, size):
    assert dist.get_backend() == "accdp" == dist.Backend("ACCDP")
    assert "cpu:accdp" in dist.get_backend_config()


@pytest.mark.on_ranks(2)
@pytest.mark.parametrize("wrong", [datetime.timedelta(seconds=-5), datetime.timedelta(0), datetime.timedelta.max])
def test_time_outs_that_are_none(rank, size, wrong):
    with pytest.raises(accdp_comm.UsageError, match=f"rank {rank} of 2: timeout: expected"):
        dist.new_group(timeout=wrong)
    if wrong != datetime.timedelta.max:
        with pytest.raises(ValueError, match="timeout: expected 1 ms or more, got"):
            dist.distributed_c10d._get_default_group().set_timeout(wrong)
    dist.barrier()
