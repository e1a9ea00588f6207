"""Ranks that meet through a store while some of them are known to have ended. Ranks are threads here."""

import base64
import json
import threading
import time

import pytest
from test_bootstrap import Memory, on_ranks, through

from accdp_comm import _core, exchange


def encoded(data):
    return base64.b64encode(data).decode()


def without(ended, store, rank, size):
    """Meet the others, of whom these are known to have ended."""
    return exchange.StoreExchange(store, rank, size, 60.0, ended=lambda: ended).allgather(b"%d" % rank)


@pytest.mark.parametrize("has_said", [False, True])
def test_nobody_waits_for_others_where_one_has_ended(has_said):
    store = Memory()
    if has_said:
        store.set("accdp/world/4/1/0/2", "its attempt")
    errors = on_ranks(2, lambda me: without([2], store, me, 4))
    errors += [error for error in on_ranks(4, lambda me: me == 3 and without([2], store, 3, 4)) if error]
    assert [type(error) for error in errors] == [_core.PeerDied] * 3
    texts = [f"rank {rank}: rank 2 of 4 has ended (forming the group)" for rank in (0, 1, 3)]
    assert [str(error) for error in errors] == texts


def test_nobody_waits_for_rank_0_that_has_ended():
    store = Memory()
    errors = on_ranks(3, lambda me: me and without([0], store, me, 3))[1:]
    assert [type(error) for error in errors] == [_core.PeerDied] * 2
    assert [str(error) for error in errors] == [
        f"rank {rank}: rank 0 of 3 has ended (forming the group)" for rank in (1, 2)
    ]


def test_a_table_that_rank_0_has_left_behind_is_taken():
    """It has the group, and may have done its part in it before it ended."""
    store = Memory()

    class Slow(Memory):
        """That store, as who asks early sees it: what was written is still on its way."""

        def __init__(self):
            self.keys, self.lock, self.until = store.keys, store.lock, time.monotonic() + 0.7

        def check(self, keys):
            return time.monotonic() >= self.until and super().check(keys)

    answers = on_ranks(2, lambda me: without([0], Slow(), 1, 2) if me else through(store, 0, 2).allgather(b"0"))
    assert answers == [[b"0", b"1"]] * 2


def test_who_gives_up_when_rank_0_has_just_read_its_value_is_in_the_group():
    """Another member has ended, and rank 0 had not come a moment ago."""

    class Race(Memory):
        def set(self, key, value):
            super().set(key, value)
            if value == exchange._WITHDRAWN:
                super().set("accdp/world/3/1/0/0", "rank 0's")
                threading.Timer(0.2, super().set, ("accdp/world/3/1/0/all", json.dumps({"values": self.said}))).start()
            elif key.endswith("/1"):
                self.said = ["a " + encoded(b"0"), value, "a " + encoded(b"2")]

    assert without([2], Race(), 1, 3) == [b"0", b"1", b"2"]
