"""The harness by itself, in a world of one: inputs, checks of results, memory, overhead."""

from __future__ import annotations

import gc
import math
import random
import time
import types

import numpy as np
import pytest

from accdp_comm.bench import command, data, measure
from accdp_comm.bench.backends import Buffers, Ready
from accdp_comm.bench.data import Data
from accdp_comm.bench.measure import Request
from accdp_comm.bench.memory import DATATYPES, HostArrays, Tensors, dtype_of
from accdp_comm.bench.operations import OPERATIONS, Refused, shares
from accdp_comm.bench.validation import Case

COLLECTIVES = [name for name, row in OPERATIONS.items() if row.kind == "collective"]
INT = np.dtype(np.int32)


class Alone:
    """A world of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def allgather(self, value):
        return [value]

    def close(self) -> None:
        pass


class Fake:
    """A backend whose broadcast of one rank is what the test says."""

    is_in_place, barrier = False, None

    def __init__(self, name: str, spoil=lambda buffer: None):
        self.name, self.memory, self.spoil, self.calls = name, HostArrays(), spoil, 0

    def collective(self, operation, buffers: Buffers, root: int) -> Ready:
        def call() -> None:
            self.calls += 1
            self.spoil(buffers.send)

        return Ready(call, buffers.send)

    def report(self):
        return {}

    def close(self) -> None:
        pass


def request(**changes) -> Request:
    known = {
        "operation": OPERATIONS["bcast"],
        "size": 64,
        "iterations": 20,
        "warm_up": 3,
        "root": 0,
        "window": 64,
        "limit_bytes": 1 << 20,
        "validation_warm_up": 2,
    }
    return Request(**(known | changes))


def kind(datatype: str) -> np.dtype:
    if datatype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return dtype_of(datatype)


def whole_numbers(reduces: bool = False) -> Data:
    return Data("random", INT, reduces=reduces, ranks=1)


def test_backends_take_turns_and_are_counted():
    order = []
    backends = [Fake(name, lambda buffer, name=name: order.append(name)) for name in ("a", "b")]
    ticks = []
    found = measure.run_point(Alone(), backends, whole_numbers(), request(), lambda: ticks.append(1))
    assert list(found) == ["a", "b"] and len(ticks) == 10
    for backend in backends:
        times = found[backend.name].times
        assert times.iterations == 20 and times.seconds.min() > 0 and found[backend.name].errors == 0
        assert backend.calls == 20 + 3 + 5 * (1 + 2)  # measured, warm-up, validated with warm-up
    timed = "".join(order[-40:])
    assert timed.count("a") == timed.count("b") == 20
    assert "ab" in timed and "ba" in timed and timed not in ("a" * 20 + "b" * 20, "b" * 20 + "a" * 20)


def test_a_backend_ends_its_calls_by_its_own_barrier():
    """MPI may need a rank that is done to end the send of another: no other library's barrier would drive it."""
    events = []
    world = Alone()
    world.barrier = lambda: events.append("world")
    own = Fake("own", lambda buffer: events.append("call"))
    own.barrier = lambda: events.append("barrier")
    other = Fake("other", lambda buffer: events.append("other"))
    measure.run_point(world, [own, other], whole_numbers(), request(), int)
    calls = [place for place, event in enumerate(events) if event == "call"]
    assert len(calls) == own.calls
    assert all((events[place - 1], events[place + 1]) == ("barrier", "barrier") for place in calls)


def test_calls_of_a_burst_have_no_barrier_between_them_and_share_their_time(monkeypatch):
    events, now = [], 0.0
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=lambda: now))

    def call(buffer) -> None:
        nonlocal now
        now += 1e-3
        events.append("c")

    backend = Fake("a", call)
    backend.barrier = lambda: events.append("|")
    wanted = request(burst=4, iterations=10, warm_up=1, validation_warm_up=None)
    found = measure.run_point(Alone(), [backend], whole_numbers(), wanted, int)["a"]
    assert backend.calls == (10 + 1) * 4
    assert {burst for burst in "".join(events).split("|") if burst} == {"cccc"}
    assert found.times.seconds.ravel() == pytest.approx([1e-3] * 10)


def test_the_time_for_a_size_is_used_however_slow_its_first_calls_are(monkeypatch):
    now = 0.0

    def look() -> float:
        nonlocal now
        now += 1e-7
        return now

    def connect(buffer) -> None:
        nonlocal now
        now += 0.02 if slow.calls <= 2 else 5e-6  # what a first call is like, and any other

    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=look))

    slow = Fake("slow", connect)
    wanted = request(seconds=0.05, iterations=10**6, warm_up=3, validation_warm_up=None)
    found = measure.run_point(Alone(), [slow], whole_numbers(), wanted, int)["slow"]
    assert found.times.iterations > 1000 and found.warm_up >= 2
    assert found.times.iterations + found.warm_up == slow.calls
    assert found.times.seconds.sum() < 0.1


@pytest.mark.parametrize(("least", "iterations", "made"), [(3, 20, 3), (25, 20, 20)])
def test_some_iterations_are_made_however_long_they_take(least, iterations, made):
    wanted = request(seconds=1e-9, iterations=iterations, least=least)
    found = measure.run_point(Alone(), [Fake("a"), Fake("b")], whole_numbers(), wanted, int)
    assert {one.times.iterations for one in found.values()} == {made}


@pytest.mark.parametrize(("seconds", "most"), [(1e-9, 3), (0.05, 10**6 - 1)])
def test_without_a_warm_up_the_time_counts_too(seconds, most):
    wanted = request(seconds=seconds, iterations=10**6, warm_up=0, least=3, validation_warm_up=None)
    found = measure.run_point(Alone(), [Fake("a")], whole_numbers(), wanted, int)["a"]
    assert 3 <= found.times.iterations <= most and found.warm_up == 0


@pytest.mark.parametrize("place", [0, 7, 15])
def test_one_wrong_element_is_found(place):
    def spoil(buffer) -> None:
        buffer[place] ^= 1

    world = Alone()
    wrong = measure.run_point(world, [Fake("bad", spoil)], whole_numbers(), request(validation_warm_up=0), int)
    assert wrong["bad"].errors == 5
    unchecked = measure.run_point(world, [Fake("bad", spoil)], whole_numbers(), request(validation_warm_up=None), int)
    assert unchecked["bad"].errors is None


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_is_expected_is_what_numpy_computes(name, datatype):
    """All ranks' inputs, put together as the operation says, are every rank's expected result."""
    ranks, count, turn, root, memory = 3, 11, 4, 2, HostArrays()
    operation, dtype = OPERATIONS[name], kind(datatype)
    source = Data("random", dtype, reduces=operation.reduces, ranks=ranks)
    cases = [Case(operation, source, count, rank, ranks) for rank in range(ranks)]
    sent = []
    for case in cases:
        blocks = ranks if operation.sends == "all" else 1
        buffers = Buffers(memory.new(blocks * count, dtype), None, None)
        case.fill(memory, buffers, root, turn)
        sent.append(buffers.send.reshape(blocks, count))
    together = np.stack(sent)
    total = together[:, 0].astype(np.int64).sum(axis=0).astype(dtype) if operation.reduces else None
    for case in cases:
        wanted = {
            "bcast": lambda: together[root, 0],
            "allreduce": lambda: total,
            "reduce": lambda: total,
            "reduce_scatter": lambda case=case: np.split(total, np.cumsum(shares(count, ranks)))[case.rank],
            "allgather": lambda: together[:, 0].ravel(),
            "gather": lambda: together[:, 0].ravel(),
            "alltoall": lambda case=case: together[:, case.rank].ravel(),
            "scatter": lambda case=case: together[root, case.rank],
        }[name]()
        assert case.wrong(wanted, root, turn) == 0
        assert case.wrong(np.roll(wanted, 1), root, turn) > 0


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("ranks", [1, 2, 8, 127])
def test_sums_are_exact(datatype, ranks):
    source = Data("random", kind(datatype), reduces=True, ranks=ranks)
    exact = sum(source.piece(500, rank, turn=3).astype(np.int64) for rank in range(ranks))
    assert np.array_equal(source.total(500, ranks, 3).astype(np.int64), exact)
    assert exact.max() > 0


def test_sums_that_cannot_be_exact_are_refused():
    with pytest.raises(Refused, match="-T float16: sums over 2049 ranks are not exact, expected 2048 at most"):
        Data("random", np.dtype(np.float16), reduces=True, ranks=2049)
    assert Data("zeros", np.dtype(np.float16), reduces=True, ranks=2049).total(4, 3, 0).tolist() == [0.0] * 4


@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensors_hold_what_arrays_do(datatype):
    pytest.importorskip("torch")
    values = Data("random", kind(datatype), reduces=False, ranks=1).piece(100, 0)
    memory = Tensors("cpu")
    tensor = memory.new(100, values.dtype)
    memory.fill(tensor, values)
    assert str(tensor.dtype) == f"torch.{DATATYPES[datatype]}"
    assert memory.read(tensor).dtype == values.dtype and memory.read(tensor).tobytes() == values.tobytes()


def test_pieces_differ_by_sender_receiver_and_turn():
    source = Data("random", np.dtype(np.uint8), reduces=False, ranks=4)
    pieces = [source.piece(256, *where).tobytes() for where in [(0,), (1,), (0, 1), (0, 0, 1), (3, 2, 1)]]
    assert len(set(pieces)) == len(pieces)
    assert len(source.piece(10_000_000, 3, 2, 1)) == 10_000_000  # longer than the pool


def test_data_of_files(tmp_path):
    floats = np.arange(10, dtype=np.float32)
    np.savez(tmp_path / "w.npz", a=floats, b=np.arange(3))
    np.save(tmp_path / "w.npy", floats.astype(np.float64))
    (tmp_path / "w.raw").write_bytes(floats.tobytes())
    for name in ("w.npz", "w.npy", "w.raw"):
        source = Data(f"weights:{tmp_path / name}", np.dtype(np.float32), reduces=False, ranks=2)
        assert sorted(source.piece(10, 0).tolist()) == floats.tolist() and "10 float32" in source.meaning
    summed = Data(f"weights:{tmp_path / 'w.npy'}", np.dtype(np.float64), reduces=True, ranks=2)
    assert np.array_equal(summed.total(4, 2, 0), summed.piece(4, 0) + summed.piece(4, 1))
    with pytest.raises(Refused, match="sums of a float's bytes mean nothing"):
        Data(f"weights:{tmp_path / 'w.npy'}", INT, reduces=True, ranks=2)
    with pytest.raises(Refused, match="No such file"):
        Data(f"weights:{tmp_path / 'none.npy'}", INT, reduces=False, ranks=2)
    with pytest.raises(Refused, match="expected one of random, zeros"):
        Data("ones", INT, reduces=False, ranks=2)


def test_gradients_are_those_of_a_trained_model():
    pytest.importorskip("torch")
    values = data._gradients()
    assert values.dtype == np.float32 and values.size > 50_000 and np.isfinite(values).all() and values.std() > 0


def test_state_dict_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(4, dtype=torch.bfloat16), "steps": torch.tensor(3)}, tmp_path / "m.pt")
    source = Data(f"weights:{tmp_path / 'm.pt'}", np.dtype(np.float32), reduces=False, ranks=1)
    assert source.piece(4, 0).tolist() == [1.0] * 4
    whole = (tmp_path / "m.pt").read_bytes()
    for number, damaged in enumerate((whole[: len(whole) // 2], whole[:100], bytes(range(256)), b"")):
        (tmp_path / f"{number}.pt").write_bytes(damaged)
        with pytest.raises(Refused, match="not a file of tensors alone|expected floats"):
            Data(f"weights:{tmp_path / f'{number}.pt'}", np.dtype(np.float32), reduces=False, ranks=1)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_files_that_end_too_soon_are_refused(tmp_path, name):
    np.savez(tmp_path / "whole.npz", a=np.ones(1000))
    for content in (b"", (tmp_path / "whole.npz").read_bytes()[:500]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Refused, match=f"--data weights:.*{name}"):
            Data(f"weights:{tmp_path / name}", np.dtype(np.float32), reduces=False, ranks=1)


def test_error_bound_is_checked():
    source = Data("random", np.dtype(np.float32), reduces=True, ranks=2)
    case = Case(OPERATIONS["bcast"], source, 1000, 1, 2)
    exact = case.expected(0, 0)
    assert case.wrong(exact + np.float32(0.5), 0, 0, bound=0.6) == 0
    assert case.wrong(exact + np.float32(0.5), 0, 0, bound=0.4) == 1000
    assert case.wrong(exact + np.float32(0.5), 0, 0, bound=0.01, is_relative=True) == 0  # std is about 289
    assert case.wrong(np.full(1000, np.nan, np.float32), 0, 0, bound=1e9) == 1000
    assert Case(OPERATIONS["bcast"], source, 1000, 0, 2).wrong(exact + np.float32(0.5), 0, 0, bound=0.6) == 1000  # root


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("datatype", ["mpi_float", "half", "bfloat16"])
def test_what_is_not_finite_must_come_exactly(datatype):
    """Random bytes hold such values, which no bound is about, nor is the standard deviation of what has some."""
    case = Case(OPERATIONS["bcast"], Data("random", dtype_of(datatype), reduces=False, ranks=2), 100_000, 1, 2)
    exact = case.expected(0, 0)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(exact)
    off = float(exact[finite].astype(np.float64).std()) / 10
    near = exact.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        near[finite] = (exact[finite].astype(np.float64) + off).astype(exact.dtype)
        missed = int(np.count_nonzero(finite & ~np.isfinite(near)))  # rounded to infinity
    assert 0 < np.count_nonzero(~finite) and case.wrong(exact, 0, 0, bound=1e-9) == 0
    assert case.wrong(near, 0, 0, bound=0.11, is_relative=True) == missed
    assert case.wrong(near, 0, 0, bound=0.08, is_relative=True) > 1000
    other = exact.copy()
    other[~finite] = 0
    assert case.wrong(other, 0, 0, bound=1e30) == np.count_nonzero(~finite)


def test_buffers_rotate_and_stay_within_the_limit():
    chance = random.Random(0)
    for _ in range(500):
        operation = OPERATIONS[chance.choice(COLLECTIVES)]
        size, ranks, limit = 4 << chance.randrange(24), chance.randrange(1, 9), 1 << chance.randrange(12, 30)
        each = measure.set_bytes(operation, size, ranks, 4)
        count = measure.sets_of(operation, size, ranks, 4, limit)
        assert count == 1 or count * each <= limit
        assert count >= min(64, limit // each, math.ceil(2 * measure.cache_bytes() / each))


def test_roots_rotate():
    seen = []

    class Rooted(Fake):
        def collective(self, operation, buffers, root):
            return Ready(lambda: seen.append(root), buffers.send)

    world = Alone()
    case = Case(OPERATIONS["bcast"], whole_numbers(), 16, 0, 3)
    subject = measure.Subject(world, Rooted("r"), [measure._new_set(HostArrays(), case)] * 2, case, request(root=None))
    assert [subject.root(turn) for turn in range(4)] == [0, 1, 2, 0] and len(subject.ready) == 6
    measure._time(subject, [0.0] * 6, 0, 6)
    assert seen == [0, 1, 2, 0, 1, 2] and world.barriers == 6 + 1


def test_an_iteration_costs_under_a_microsecond_beyond_the_call():
    """Once, in the time that other tests beside this one leave it; on a slow processor, what is the same there."""

    def clock_us(count=20_000):  # what an iteration needs at least: two looks at the clock and two calls
        began = time.perf_counter()
        for _ in range(count):
            time.perf_counter(), time.perf_counter(), measure._nothing(), measure._nothing()
        return (time.perf_counter() - began) / count * 1e6

    until = time.monotonic() + 20
    while (us := measure.harness_us()) >= max(1.0, 5 * min(clock_us() for _ in range(10))):
        assert time.monotonic() < until, f"{us} us"


def test_a_wrong_result_ends_with_status_1(capsys, monkeypatch):
    """The whole command in a world of one, its results declared wrong."""
    monkeypatch.setattr(Case, "wrong", lambda *args, **kwargs: 3)
    words = ["bcast", "-m", "4:8", "-i", "2", "-x", "0", "-c", "-u", "0"]
    assert command.main(words, "bench") == 1
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines() if line[:1] in ("4", "8")] == ["Fail", "Fail"]
    assert err == "bench: validation failed: 12 wrong elements: accdp at 4 bytes, accdp at 8 bytes\n"


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves, by calling it with seconds."""
    now = 0.0
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=lambda: now))

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    return spend


def test_barriers_are_no_part_of_what_is_timed(clock):
    backend = Fake("a", lambda _: clock(1e-3))
    backend.barrier = lambda: clock(1.0)
    times = measure.run_point(
        Alone(), [backend], whole_numbers(), request(iterations=10, warm_up=1, validation_warm_up=None), int
    )["a"].times
    assert times.seconds.ravel() == pytest.approx([1e-3] * 10)


@pytest.mark.parametrize(("operation", "part"), [("latency", 0.5), ("bw", 1.0)])
def test_latency_is_of_one_way(clock, operation, part):
    backend = Fake("a", lambda _: clock(1e-3))
    backend.pair = lambda _, buffers, window: backend.collective(None, buffers, 0)
    wanted = request(operation=OPERATIONS[operation], iterations=10, warm_up=1, validation_warm_up=None)
    times = measure.run_point(Alone(), [backend], whole_numbers(), wanted, int)["a"].times
    assert times.seconds.ravel() == pytest.approx([part * 1e-3] * 10)


def test_wrong_elements_of_all_ranks_count():
    class Two(Alone):
        def allgather(self, value):
            return [value, value + 3] if isinstance(value, int) else super().allgather(value)

    backend = Fake("good", lambda buffer: None)
    found = measure.run_point(Two(), [backend], whole_numbers(), request(validation_warm_up=0), int)
    assert found["good"].errors == 3


def test_garbage_is_collected_again_afterwards():
    assert gc.isenabled()
    measure.run_point(Alone(), [Fake("a", lambda buffer: None)], whole_numbers(), request(), int)
    assert gc.isenabled()


def test_all_ranks_make_as_many_iterations(clock):
    """However unequally time passes on them: by the slowest."""

    class Slow(Alone):
        def allgather(self, value):
            return [value, 3.0]

    paces = [measure._Pace(world, request(seconds=4.0, iterations=1000), 1e-2) for world in (Slow(), Alone())]
    clock(3.0)
    slow, alone = (pace.end(2, 150) for pace in paces)
    clock(-2.0)
    assert slow == alone == paces[0].end(2, 150) and paces[1].end(2, 150) > alone
