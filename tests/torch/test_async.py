"""async_op=True: Work and its errors, time-outs, order; sequence numbers, profiler events, DETAIL mode."""

import datetime
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from data import assert_same, reason_of, reduced, values
from jobs import SOON_S
from torch.distributed import _functional_collectives as functional_collectives
from torch.profiler import ProfilerActivity, profile
from when_asleep import signal_me_asleep

MILLISECONDS_50 = datetime.timedelta(milliseconds=50)


def everything_async(rank: int, size: int) -> dict[str, tuple]:
    """Each collective started: name -> (work, tensor that it fills on this rank, what must then be there)."""
    inputs = [values(other, 6, torch.float32) for other in range(size)]
    mine = inputs[rank]
    total = reduced("SUM", inputs)
    empty = [torch.zeros(6) for _ in range(size)]
    started = {}

    def start(name, call, tensor, expected):
        started[name] = (call(tensor), tensor, expected)

    start("all_reduce", lambda t: dist.all_reduce(t, async_op=True), mine.clone(), total)
    start("broadcast", lambda t: dist.broadcast(t, 0, async_op=True), mine.clone(), inputs[0])
    start("reduce", lambda t: dist.reduce(t, 0, async_op=True), mine.clone(), total if rank == 0 else mine)
    blocks = [torch.zeros(6) for _ in range(size)]
    start("all_gather", lambda t: dist.all_gather(blocks, mine, async_op=True), blocks[-1], inputs[-1])
    start(
        "all_gather_into_tensor",
        lambda t: dist.all_gather_into_tensor(t, mine, async_op=True),
        torch.zeros(6 * size),
        torch.cat(inputs),
    )
    start(
        "reduce_scatter",
        lambda t: dist.reduce_scatter(t, [mine] * size, async_op=True),
        torch.zeros(6),
        total,
    )
    start(
        "reduce_scatter_tensor",
        lambda t: dist.reduce_scatter_tensor(t, mine.repeat(size), async_op=True),
        torch.zeros(6),
        total,
    )
    gathered = empty if rank == 0 else None
    start(
        "gather",
        lambda t: dist.gather(mine, gathered, async_op=True),
        empty[-1],
        inputs[-1] if rank == 0 else torch.zeros(6),
    )
    start(
        "scatter",
        lambda t: dist.scatter(t, inputs if rank == 0 else None, async_op=True),
        torch.zeros(6),
        mine,
    )
    start(
        "all_to_all_single",
        lambda t: dist.all_to_all_single(t, torch.cat(inputs), async_op=True),
        torch.zeros(6 * size),
        mine.repeat(size),
    )
    lists = [torch.zeros(6) for _ in range(size)]
    start("all_to_all", lambda t: dist.all_to_all(lists, inputs, async_op=True), lists[-1], mine)
    start("barrier", lambda t: dist.barrier(async_op=True), torch.zeros(1), torch.zeros(1))
    return started


@pytest.mark.on_ranks(1, 2, 3)
def test_every_collective_waited_for_in_any_order(rank, size):
    for order in (list, reversed):
        started = everything_async(rank, size)
        for name in order(list(started)):
            work, tensor, expected = started[name]
            assert work.wait() is True, name
            assert work.is_completed() and work.is_success() and reason_of(work) == "", name
            assert_same(tensor, expected)


@pytest.mark.on_ranks(2)
def test_futures_of_every_collective(rank, size):
    for name, (work, tensor, expected) in everything_async(rank, size).items():
        value = work.get_future().wait()
        assert isinstance(value, list), name
        assert_same(tensor, expected)
        if value:
            assert value[-1].data_ptr() == tensor.data_ptr(), name


@pytest.mark.on_ranks(2)
def test_a_future_asked_for_just_when_the_work_is_done(rank, size):
    """Either the worker gives it its value or who asks for it: never both."""
    tensor = torch.zeros(1)
    for _ in range(1000):
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        assert work.get_future().wait()[0] is not None


@pytest.mark.on_ranks(2)
def test_result_is_the_outputs(rank, size):
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    (result,) = work.result()
    assert result.data_ptr() == tensor.data_ptr()
    blocks = [torch.zeros(3) for _ in range(size)]
    work = dist.all_gather(blocks, tensor, async_op=True)
    work.wait()
    assert [block.tolist() for block in work.result()] == [[2.0] * 3] * size
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.result() == []


@pytest.mark.on_ranks(1, 2)
def test_an_operation_that_the_caller_waits_for_makes_no_work(rank, size):
    """c10d takes None for "it is done", torch's flight recorder, from 2.14 on, a work: that is always the same. With
    something ahead of it, or in a batch, there is a work of its own as ever."""
    group = dist.distributed_c10d._get_default_group()
    options = dist.AllreduceOptions()
    options.asyncOp = False
    tensor = torch.ones(3)
    work = group.allreduce([tensor], options)
    assert tensor.tolist() == [size] * 3
    if hasattr(torch._C._distributed_c10d, "FlightRecorderHook"):
        assert work.is_completed() and work.is_success() and work.wait() and work.get_future().wait() == []
        assert work.result() == []
    else:
        assert work is None
    wrong = dist.BroadcastOptions()
    wrong.asyncOp, wrong.rootRank = False, size
    with pytest.raises(RuntimeError, match="invalid root rank"):
        group.broadcast([tensor], wrong)
    big, small = torch.ones(1 << 22), torch.ones(2)
    ahead = dist.all_reduce(big, async_op=True)
    dist.all_reduce(small)
    ahead.wait()
    assert small.tolist() == [size] * 2 and big.unique().tolist() == [size]
    backend = group._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.broadcast(tensor, 0)
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2


@pytest.mark.on_ranks(2)
def test_torch_s_list_of_works_that_go_into_graphs(rank, size):
    """Every operation is on it until somebody waits, one that the caller waited for too."""
    listed = torch._C._distributed_c10d._get_work_registry_size
    with functional_collectives.allow_inflight_collective_as_graph_input_ctx():
        first, second = torch.ones(3), torch.ones(3)
        work = dist.all_reduce(first, async_op=True)
        assert listed() == 1
        work.wait()
        dist.all_reduce(second)
        torch.ops._c10d_functional.wait_tensor(second)
    assert listed() == 0
    assert first.tolist() == second.tolist() == [size] * 3


@pytest.mark.on_ranks(2)
def test_operations_are_done_in_their_order(rank, size):
    for _ in range(200):
        work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
        dist.barrier(async_op=True).wait()
        assert work.is_completed()


@pytest.mark.on_ranks(2, fresh=True)
def test_a_signal_handler_may_not_wait_for_what_waits_for_its_operation(rank, size):
    """A callback of the first sum makes the third, behind the second, in the middle of which the handler is."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        for what in ("asked for the future", "handled", "handled"):
            store.wait([what])
            dist.all_reduce(torch.ones(1))
        return
    first, told = dist.all_reduce(torch.ones(1), async_op=True), []
    handling, is_in_queue = threading.Event(), threading.Event()

    def go_on(_) -> None:
        handling.wait(30)
        third = dist.all_reduce(torch.ones(1), async_op=True)
        is_in_queue.set()
        third.wait()

    def handle(*_) -> None:
        handling.set()
        is_in_queue.wait(30)
        try:
            first.wait()
        except ValueError as error:
            told.append(str(error))
        store.set("handled", "")

    future = first.get_future()
    future.then(go_on)
    store.set("asked for the future", "")
    future.wait()  # so that the second one begins at once, on this thread
    before = signal.signal(signal.SIGALRM, handle)
    with signal_me_asleep(signal.SIGALRM):
        dist.all_reduce(torch.ones(1))
    signal.signal(signal.SIGALRM, before)
    first.wait()
    assert len(told) == 1 and "wait() in a signal handler" in told[0], told


def turns_of_other_threads() -> int:
    """How often threads of this process but the calling one went to sleep so far."""
    turns = 0
    for status in Path("/proc/self/task").glob("*/status"):
        if status.parent.name != str(threading.get_native_id()):
            turns += int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return turns


def post_and_wait(calls: int) -> None:
    for _ in range(calls):
        dist.all_reduce(torch.ones(2), async_op=True).wait()


@pytest.mark.on_ranks(1, 2)
def test_who_waits_soon_needs_no_other_thread(rank, size):
    """Handing an operation to a worker and back takes ten times as long as a short operation does."""
    look_s = 1e-4  # a worker that came too late looks by itself so often for a while
    turns = []
    for _ in range(20):  # of which others on the machine disturb some
        before, begun = turns_of_other_threads(), time.monotonic()
        post_and_wait(100)
        turns.append(turns_of_other_threads() - before - (time.monotonic() - begun) / look_s)
    assert min(turns) < 25


@pytest.mark.on_ranks(1, 2)
@pytest.mark.parametrize("how", ["is_completed", "future", "then", "later", "time-out", "synchronous"])
def test_a_worker_takes_what_nobody_comes_for(rank, size, how):
    """Though callers came sooner than it for all before."""
    for _ in range(20):
        post_and_wait(30)
        ahead, tensor = torch.ones(1 << 16), torch.ones(2)
        first = dist.all_reduce(ahead, async_op=True)
        work = dist.all_reduce(tensor, async_op=True)
        if how == "is_completed":
            end = time.monotonic() + SOON_S
            while not work.is_completed():
                assert time.monotonic() < end
        elif how == "future":
            work.get_future().wait()
        elif how == "then":
            tensor = work.get_future().then(lambda future: future.value()[0]).wait()
        elif how == "time-out":
            work.wait(datetime.timedelta(seconds=SOON_S))
        elif how == "synchronous":
            dist.barrier()
        else:
            work.wait()
        assert work.wait() and first.is_completed() and work.is_completed()
        assert tensor.tolist() == [size] * 2 and ahead.unique().tolist() == [size]


@pytest.mark.on_ranks(2)
def test_two_threads_wait_for_operations_in_any_order(rank, size):
    tensors = [torch.full((3,), float(i)) for i in range(400)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda work: work.wait(), works[::-1]))
    assert [tensor.tolist() for tensor in tensors] == [[2.0 * i] * 3 for i in range(400)]


@pytest.mark.on_ranks(2)
def test_an_unfinished_operation_says_so(rank, size):
    if rank == 0:
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed() and not work.is_success()
        with pytest.raises(RuntimeError, match="completed"):
            work.result()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="[Tt]imed out|[Tt]imeout"):
            work.wait(MILLISECONDS_50)
        assert 0.04 <= time.monotonic() - began < SOON_S
        assert min(_patience(work) for _ in range(10)) < 0.03
        dist.send(torch.ones(1), 1)  # only now may the other one come
        assert work.wait(datetime.timedelta(days=200_000)) and tensor.tolist() == [2.0] * 3
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(3))


def _patience(work: dist.Work) -> float:
    """How long a wait of 1 ms for it takes."""
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="Timed out after 1 ms"):
        work.wait(datetime.timedelta(milliseconds=1))
    return time.monotonic() - began


@pytest.mark.on_ranks(2)
def test_tensors_may_be_dropped_while_the_operation_runs(rank, size):
    works = []
    for step in range(50):
        works.append(dist.all_reduce(torch.full((5000,), float(step)), async_op=True))
    for step, work in enumerate(works):
        assert work.get_future().wait()[0].unique().tolist() == [2.0 * step]


@pytest.mark.on_ranks(2, fresh=True)
def test_errors_stay_in_the_work(rank, size):
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    chained = work.get_future().then(lambda future: future.value()[0] * 2)
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="ranks disagree.*4 float32.*3 float32|3 float32.*4 float32"):
            work.wait()
    assert work.is_completed() and not work.is_success()
    assert "ranks disagree" in reason_of(work)
    with pytest.raises(RuntimeError, match="ranks disagree"):
        chained.wait()
    with pytest.raises(dist.DistBackendError, match="ranks disagree"):  # the group stays broken, with the first reason
        dist.barrier()


@pytest.mark.on_ranks(2, fresh=True)
def test_sequence_numbers_count_calls(rank, size):
    # Asked of the backend: torch's ProcessGroup hands this on for backends that it knows by name.
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend._get_sequence_number_for_group() == 0
    if rank == 0:
        started = everything_async(rank, size)
        assert backend._get_sequence_number_for_group() == len(started)  # though rank 1 has not come
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
        assert backend._get_sequence_number_for_group() == 0  # messages do not count
        started = everything_async(rank, size)
    for work, _, _ in started.values():
        work.wait()
    assert backend._get_sequence_number_for_group() == len(started)


def events(rank: int, size: int, call) -> list:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        call()
    return [event for event in profiled.events() if event.name.startswith("accdp:")]


@pytest.mark.on_ranks(2)
def test_profiler_sees_each_call_once_with_its_shapes(rank, size):
    ones = torch.ones(2, 3)
    blocks = [torch.ones(2, 3) for _ in range(size)]
    expected = {
        "all_reduce": (lambda: dist.all_reduce(ones), [[2, 3]]),
        "broadcast": (lambda: dist.broadcast(ones, 0), [[2, 3]]),
        "reduce": (lambda: dist.reduce(ones, 0), [[2, 3]]),
        "all_gather": (lambda: dist.all_gather(blocks, ones), [[2, 3]]),
        "gather": (lambda: dist.gather(ones, blocks if rank == 0 else None), [[2, 3]]),
        "scatter": (lambda: dist.scatter(ones, blocks if rank == 0 else None), [[2, 3]] * size if rank == 0 else []),
        "reduce_scatter": (lambda: dist.reduce_scatter(ones, blocks), [[2, 3]] * size),
        "all_to_all": (lambda: dist.all_to_all_single(torch.empty(2, 3), ones), [[2, 3]]),
        "barrier": (lambda: dist.barrier(), []),
    }
    for name, (call, shapes) in expected.items():
        (event,) = events(rank, size, call)
        assert event.name == f"accdp:{name}" and event.is_async and event.count == 1
        assert event.input_shapes == shapes, (name, event.input_shapes)
    message = torch.ones(4)
    names = [e.name for e in events(rank, size, lambda: (dist.send if rank == 0 else dist.recv)(message, 1 - rank))]
    assert names == ["accdp:send" if rank == 0 else "accdp:recv"]
    names = [e.name for e in events(rank, size, lambda: dist.recv(message) if rank == 0 else dist.send(message, 0))]
    assert names == ["accdp:recvAnySource" if rank == 0 else "accdp:send"]


@pytest.mark.on_ranks(2)
def test_profiler_records_parameters(rank, size):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(torch.ones(2, 3))
    assert [event.name for event in profiled.events()].count("record_param_comms") == 1


@pytest.mark.on_ranks(2, fresh=True)
def test_detail_mode_checks_calls_first(rank, size, tmp_path):
    dist.destroy_process_group()
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        dist.init_process_group("accdp", init_method=f"file://{tmp_path}/store", rank=rank, world_size=size)
        assert dist.get_backend() == "accdp"
        total = torch.ones(3)
        dist.all_reduce(total)
        dist.broadcast(total, 0)
        dist.barrier()
        assert total.tolist() == [2.0] * 3
        subgroup = dist.new_group([1])
        if rank == 1:
            dist.all_reduce(total, group=subgroup)
        with pytest.raises(RuntimeError, match="[Mm]ismatch|[Dd]etected"):
            dist.all_reduce(torch.ones(3 + rank))
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(level)
