"""What ranks tell each other before a group exists, and what follows from it. Ranks are threads here."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accdp_comm import _core, bootstrap, cards, exchange, launcher, nvcomp, procfs, settings


class Memory:
    """A store in this process, of the kind torch has."""

    def __init__(self):
        self.keys, self.lock = {}, threading.Lock()

    def set(self, key, value):
        self.keys[key] = value

    def get(self, key):
        return self.keys[key].encode()

    def check(self, keys):
        return all(key in self.keys for key in keys)

    def add(self, key, amount):
        with self.lock:
            self.keys[key] = self.keys.get(key, 0) + amount
            return self.keys[key]

    def delete_key(self, key):
        return self.keys.pop(key, None) is not None


def on_ranks(size, step):
    """Run step(rank) on every rank at once; return results or errors by rank."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(step, rank) for rank in range(size)]
        return [future.exception() or future.result() for future in futures]


def through(store, rank, size, timeout_s=10.0, label="world"):
    return exchange.StoreExchange(store, rank, size, timeout_s, label)


def card(node="a", world_rank=0, world_size=1, **other):
    fixed = {"version": "1", "settings": "", "host": f"host-{node}", "pid": 1, "start_time": 2, "memfd": 3, "inode": 4}
    fixed |= {"launched": 0, "seat": "", "universe": "", "mpi_rank": -1, "mpi_size": 0}
    fixed |= {"machine": node, "cores": 0b11, "limits": []}
    return cards.Card(**{"node": node, "world_rank": world_rank, "world_size": world_size} | fixed | other)


def test_children_of_one_rank_are_not_the_launchers_ranks():
    assert cards.have_seats([card(seat="0"), card(seat="1")]) and cards.have_seats([card(), card()])
    assert not cards.have_seats([card(seat="1"), card(seat="1")])


def test_a_launcher_within_a_step_of_another_has_seats_of_its_own(monkeypatch):
    for name in ("PMIX_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launcher.seat() == ""
    monkeypatch.setenv("PMI_RANK", "3")
    assert launcher.seat() == "3"
    monkeypatch.setenv("PMIX_RANK", "0")
    assert launcher.seat() == "0/3"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_exchange_collects_by_rank_round_after_round(size):
    store = Memory()

    def rank(me):
        meeting = through(store, me, size)
        return [meeting.allgather(bytes([me, round_, 255])) for round_ in range(3)]

    expected = [[bytes([rank, round_, 255]) for rank in range(size)] for round_ in range(3)]
    assert on_ranks(size, rank) == [expected] * size


def test_exchange_names_the_ranks_that_did_not_come_on_all_that_did():
    store = Memory()
    errors = on_ranks(3, lambda me: through(store, me, 5, timeout_s=1.0).allgather(b""))
    for rank, error in enumerate(errors):
        assert isinstance(error, _core.PeerTimeout)
        assert str(error).startswith(f"rank {rank}: ranks 3, 4 of 5 did not come within 1 s")


def test_a_late_rank_hears_that_it_is_the_one():
    store, gave_up = Memory(), threading.Event()

    def meet(me):
        if me == 1:
            gave_up.wait(30)
        try:
            return through(store, me, 2, timeout_s=0.3).allgather(b"")
        finally:
            gave_up.set()

    assert [str(error) for error in on_ranks(2, meet)] == [
        "rank 0: rank 1 of 2 did not come within 0.3 s (forming the group)",
        "rank 1 of 2 came after others had waited 0.3 s for it (forming the group)",
    ]


def test_exchange_without_rank_0_names_it():
    with pytest.raises(_core.PeerTimeout, match="rank 0 of 2 did not come within 0.1 s"):
        through(Memory(), 1, 2, timeout_s=0.1).allgather(b"")


def test_exchange_without_rank_0_names_all_that_are_missing():
    """Rank 0 may be held up by the very rank that does not come: torch's store waits for all in its constructor."""
    with pytest.raises(_core.PeerTimeout, match="rank 2: ranks 0, 1 of 3 did not come within 0.1 s"):
        through(Memory(), 2, 3, timeout_s=0.1).allgather(b"")


def test_a_store_is_used_again_without_reading_what_lies_there():
    store = Memory()
    for turn in range(3):
        answers = on_ranks(2, lambda me, turn=turn: through(store, me, 2).allgather(f"{turn}{me}".encode()))
        assert answers == [[f"{turn}0".encode(), f"{turn}1".encode()]] * 2


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_tries_twice_before_the_others_come_is_not_out_of_step(who):
    """However often it has tried, and whatever it has left in the store, all that try now meet."""
    store = Memory()
    for _ in range(2):
        with pytest.raises(_core.PeerTimeout, match="of 3 did not come within 0.1 s"):
            through(store, who, 3, timeout_s=0.1).allgather(b"left over")
    for turn in range(3):
        answers = on_ranks(3, lambda me, turn=turn: again(store, me, 3, f"{turn}{me}".encode()))
        assert answers == [[f"{turn}{me}".encode() for me in range(3)]] * 3


def again(store, rank, size, data):
    """Try once more where rank 0 had given up before: those that come late learn of that, once."""
    try:
        return through(store, rank, size).allgather(data)
    except _core.PeerTimeout as error:
        assert rank and f"rank {rank} of {size} came after others had waited" in str(error), error
        return through(store, rank, size).allgather(data)


def test_a_rank_whose_first_attempt_was_ended_is_followed():
    """Rank 0 opened a turn and left without a word, by Ctrl-C say."""
    store = Memory()
    through(store, 0, 2)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(lambda: through(store, 1, 2).allgather(b"1"))
        while "accdp/world/2/1/0/1" not in store.keys:
            time.sleep(0.001)
        assert through(store, 0, 2).allgather(b"0") == [b"0", b"1"] == early.result()


def test_a_store_that_lacks_a_method_is_refused():
    class Lacking(Memory):
        def check(self, keys):
            raise RuntimeError('Tried to call pure virtual function "::c10d::Store::check"')

    with pytest.raises(_core.UsageError, match="rank 0 of 2: the store lacks a method .*Store::check.*: expected set"):
        through(Lacking(), 0, 2).allgather(b"")


def test_a_store_that_goes_away_is_told_in_one_line():
    class Gone(Memory):
        def check(self, keys):
            raise RuntimeError("Connection was likely closed\nframe #0: ...")

    with pytest.raises(_core.PeerDied, match=r"rank 1 of 2: the store .* is gone \(Connection was likely closed\)"):
        through(Gone(), 1, 2).allgather(b"")


def test_rank_0_that_gives_up_waits_until_the_others_know_why():
    store, seen = Memory(), []

    def rank(me):
        meeting = through(store, me, 2)
        if me == 1:
            time.sleep(0.2)
        meeting.allgather(b"x")
        if me == 0:
            meeting.settle()
        seen.append(me)

    assert on_ranks(2, rank) == [None, None]
    assert store.keys["accdp/world/2/1/0/read"] == 1


def test_what_fails_on_one_rank_fails_on_all_with_its_name():
    def rank(me):
        def step():
            if me == 1:
                raise _core.UsageError("ACCDP_X=4q: expected bytes")
            return me

        return exchange.agree(meetings[me], step)

    store = Memory()
    meetings = {me: through(store, me, 3) for me in range(3)}
    errors = on_ranks(3, rank)
    assert [type(error) for error in errors] == [_core.UsageError] * 3
    assert str(errors[1]) == "ACCDP_X=4q: expected bytes"
    assert str(errors[0]) == str(errors[2]) == "rank 1 of 3: ACCDP_X=4q: expected bytes"


def test_an_error_of_another_kind_arrives_as_ours():
    def rank(me):
        return exchange.agree(meetings[me], lambda: 1 // me)

    store = Memory()
    meetings = {me: through(store, me, 2) for me in range(2)}
    first, second = on_ranks(2, rank)
    assert type(first) is ZeroDivisionError
    assert type(second) is _core.Error and "rank 0 of 2" in str(second)


def test_ranks_must_have_the_same_version_and_settings():
    same = {"version": "1", "settings": "ACCDP_A=1;ACCDP_B=x;"}
    cards.check_alike([same] * 4)
    with pytest.raises(_core.UsageError, match="rank 2 of 4 has ACCDP_B=y, but rank 0 has ACCDP_B=x"):
        cards.check_alike([same, same, {**same, "settings": "ACCDP_A=1;ACCDP_B=y;"}, same])
    with pytest.raises(_core.UsageError, match="rank 0 of 3 has ACCDP_A=2, but rank 1 has ACCDP_A=1"):
        cards.check_alike([{**same, "settings": "ACCDP_A=2;ACCDP_B=x;"}, same, same])
    with pytest.raises(_core.UsageError, match="rank 1 of 2 has accdp version=2, but rank 0 has accdp version=1"):
        cards.check_alike([same, {**same, "version": "2"}])
    with pytest.raises(_core.UsageError, match=r"rank 1 of 2 has ACCDP_B=\(unset\)"):
        cards.check_alike([same, {**same, "settings": "ACCDP_A=1;"}])


def test_a_topology_that_is_none_is_refused_by_a_group_of_one_too():
    with settings.override(topology="2y2"), pytest.raises(_core.UsageError, match="ACCDP_TOPOLOGY=2y2: expected"):
        bootstrap.form_group(exchange.Alone(10), "alone")


def test_nodes_are_numbered_as_they_appear():
    assert cards.number_nodes([card(node) for node in "bbaabc"], "") == [0, 0, 1, 1, 0, 2]


def test_declared_nodes_go_by_world_rank():
    world = [card("a", rank, 4) for rank in range(4)]
    assert cards.number_nodes(world, "2x2") == [0, 0, 1, 1]
    assert cards.number_nodes([world[3], world[0]], "2x2") == [0, 1]
    assert cards.number_nodes([world[2], world[3]], "7,7,5,5") == [0, 0]


def test_declared_nodes_must_fit_the_world():
    with pytest.raises(_core.UsageError, match="ACCDP_TOPOLOGY=2x2 declares 4 ranks, but this world has 3"):
        cards.number_nodes([card("a", rank, 3) for rank in range(3)], "2x2")
    world = [card("ab"[rank % 2], rank, 4) for rank in range(4)]
    with pytest.raises(_core.UsageError, match="puts ranks 0 and 1 on one node, but they run on host-a and host-b"):
        cards.number_nodes(world, "2x2")


def test_nodes_that_are_containers_share_their_machine():
    alone = [card("a", cores=0b1111), card("b", cores=0b11)]
    assert cards.core_shares(alone, [0, 1]) == [4, 2]
    together = [card(name, machine="m", cores=0b11) for name in "aabb"]
    assert cards.core_shares(together, [0, 0, 1, 1]) == [1] * 4
    four = [card(name, machine="m", cores=0b11) for name in "abcd"]
    assert cards.core_shares(four, [0, 1, 2, 3]) == [0.5] * 4
    pinned = [card("a", machine="m", cores=1 << rank) for rank in range(4)]  # one thread speaks for all of them
    assert cards.core_shares(pinned, [0] * 4) == [4] * 4
    one_is_pinned = [card(name, machine="m", cores=cores) for name, cores in [("a", 0b1), ("a", 0b1), ("b", 0b1110)]]
    assert cards.core_shares(one_is_pinned, [0, 0, 1]) == [1, 1, 2]


def test_quotas_leave_fewer_cores():
    def shares(*limits: list[tuple[float, int]], nodes: list[int]) -> list[float]:
        told = [card("a", cores=0b1111, limits=of_one) for of_one in limits]
        assert [min(4 / len(set(nodes)), paid) for paid in cards.paid_shares(told, nodes)] == (
            found := cards.core_shares(told, nodes)
        )
        return found

    assert shares([(1.5, 7)], [(1.5, 7)], nodes=[0, 0]) == [1.5, 1.5]
    assert shares([(1.5, 7)], [(1.5, 8)], nodes=[0, 0]) == [3, 3]  # each rank has a group of its own
    assert shares([(1.5, 7)], [], nodes=[0, 0]) == [4, 4]
    assert shares([(3, 7)], [(3, 8)], [(3, 8)], nodes=[0, 1, 1]) == [2, 2, 2]
    assert shares([(1, 7)], [(2, 8)], nodes=[0, 1]) == [1, 1.5]
    assert shares([(1, 7)], [(1, 7)], nodes=[0, 1]) == [0.5, 0.5]
    # Groups of 1 CPU each in one that has 2.5, of which a rank has all that is left; and in one that has more.
    assert shares([(2.5, 6), (1, 7)], [(2.5, 6), (1, 8)], [(2.5, 6)], nodes=[0] * 3) == [2.5] * 3
    assert shares([(9, 6), (1, 7)], [(9, 6), (1, 8)], nodes=[0] * 2) == [2] * 2


def test_a_card_has_the_limits_of_its_process(monkeypatch):
    monkeypatch.setattr(cards.cpus, "limits", lambda: [cards.cpus.Limit(2.5, 10), cards.cpus.Limit(0.5, 11)])
    told = cards.card_of_this_process(-1, (0, 1), 0, ("", -1, 0))
    assert json.loads(json.dumps(told.as_dict()))["limits"] == [[2.5, 10], [0.5, 11]]


def test_codecs_that_are_switched_off_count_as_missing():
    before = nvcomp.missing_codecs()
    with settings.override(codecs_off="fpk,zstd"):
        missing = nvcomp.missing_codecs()
    assert missing.keys() == before.keys() | {"fpk", "zstd"}
    assert missing["fpk"] == "it is switched off by ACCDP_CODECS_OFF=fpk,zstd"
    said = "^ACCDP_CODECS_OFF=lz4,fpq: 'fpq': expected fpk, "
    with settings.override(codecs_off="lz4,fpq"), pytest.raises(_core.UsageError, match=said):
        nvcomp.missing_codecs()
    assert nvcomp.missing_codecs() == before


def test_this_process_has_a_card_that_travels_as_json():
    mine = cards.card_of_this_process(7, (0, 1), 0, ("", -1, 0))
    assert cards.Card(**json.loads(json.dumps(mine.as_dict()))) == mine
    assert mine.pid == os.getpid() and mine.start_time == procfs.start_time(os.getpid()) > 0
    assert _core.process_lives(mine.pid, mine.start_time)


def test_a_world_of_one_needs_nobody():
    group = bootstrap.form_group(exchange.Alone(10), "alone")
    assert (group.rank, group.size, list(group.nodes)) == (0, 1, [0])
    group.barrier()
    group.close()


def named_memory() -> set[str]:
    """What this process has mapped or open of /dev/shm."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in (*mapped, *map(os.path.realpath, Path("/proc/self/fd").iterdir())) if "/dev/shm" in path}


def open_files() -> list[str]:
    """Without the page on which a process with groups shows what it does, however many it has had."""
    found = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    pages = [path for path in found if _core.STATUS_LABEL in path]
    assert len(pages) <= 1
    return [path for path in found if path not in pages]


def test_a_group_forms_and_leaves_no_descriptor_and_no_name():
    before, named = len(open_files()), named_memory()
    store = Memory()
    groups = on_ranks(3, lambda me: bootstrap.form_group(through(store, me, 3), "three"))
    assert [group.size for group in groups] == [3, 3, 3]
    assert on_ranks(3, lambda me: groups[me].barrier()) == [None] * 3
    assert named_memory() <= named and not [name for name in os.listdir("/dev/shm") if "accdp" in name]
    on_ranks(3, lambda me: groups[me].close())
    groups.clear()
    assert len(open_files()) <= before


def test_groups_leave_next_to_nothing_in_the_store():
    """It lives as long as the job, in the memory of rank 0 or of the job's agent."""
    store, left = Memory(), []
    for turn in range(3):
        first = turn % 3  # comes before the others, and waits in the turn of the group before

        def form(me, first=first):
            time.sleep(0.1 if me != first else 0)
            bootstrap.form_group(through(store, me, 3), "three").close()

        assert on_ranks(3, form) == [None] * 3
        left.append(len(store.keys))
    assert left[1] - left[0] == left[2] - left[1] == 1, store.keys
    assert sum(map(len, map(str, store.keys.values()))) < 20


def test_a_store_that_can_delete_nothing_will_do():
    class Keeps(Memory):
        def delete_key(self, key):
            raise RuntimeError('Tried to call pure virtual function "::c10d::Store::deleteKey"')

    store = Keeps()
    groups = on_ranks(2, lambda me: bootstrap.form_group(through(store, me, 2), "two"))
    assert [group.size for group in groups] == [2, 2]


def test_a_rank_that_can_make_no_memory_tells_the_others(monkeypatch):
    store, make = Memory(), _core.nameless_memory
    turn = threading.Lock()

    def once_not(name):
        if turn.acquire(blocking=False):
            raise _core.SystemCallError("memfd_create failed: Too many open files")
        return make(name)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(_core, "nameless_memory", once_not)
    began = time.monotonic()
    errors = on_ranks(3, lambda me: bootstrap.form_group(through(store, me, 3, 30.0), "three"))
    assert [type(error) for error in errors] == [_core.SystemCallError] * 3, errors
    assert all("Too many open files" in str(error) for error in errors) and time.monotonic() - began < 10
    assert len(os.listdir("/proc/self/fd")) <= before


def test_rank_0_stays_until_the_others_know_why_there_is_no_group():
    """It may serve their store."""
    store, read = Memory(), threading.Event()

    class Slow(Memory):
        keys, lock = store.keys, store.lock

        def __init__(self):
            pass

        def get(self, key):
            if key.endswith("/all"):
                time.sleep(0.3)
                read.set()
            return super().get(key)

    def rank(me):
        with pytest.raises(_core.UsageError, match="ACCDP_TOPOLOGY"):
            bootstrap.form_group(through(Slow() if me else store, me, 2), "two", world=(me, 2))
        return read.is_set()

    with settings.override(topology="3x3"):
        assert on_ranks(2, rank) == [True, True]


def test_settings_are_changed_for_a_while():
    before = settings.value_of("chunk_bytes")
    with settings.override(chunk_bytes="128k"):
        assert settings.value_of("ACCDP_CHUNK_BYTES") == "128k"
    assert settings.value_of("chunk_bytes") == before
    with pytest.raises(_core.UsageError, match="no_such: no such setting"), settings.override(no_such=1):
        pass
    with pytest.raises(_core.UsageError, match="ACCDP_SPIN_US=soon"), settings.override(spin_us="soon"):
        pass
