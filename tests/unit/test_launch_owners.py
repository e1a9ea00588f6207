"""What `accdp run` tells the owners of MPS on other hosts, and when it lets them go."""

from types import SimpleNamespace

import pytest

from accdp_comm.launch.mps import owners

GPU, OTHER = SimpleNamespace(uuid="GPU-1"), SimpleNamespace(uuid="GPU-2")


class Owner:
    """A connection to one, or to a guard."""

    def __init__(self):
        self.told = []

    def order(self, **order):
        self.told.append(order)


def owners_of_two_ranks() -> tuple[owners.Owners, Owner]:
    made, owner = owners.Owners("auto", print, 5.0, {}), Owner()
    made._hosts["n1"] = owners._Host("n1", {0: GPU, 1: GPU})
    made.hear(owner, {"event": "owner", "node": "n1"})
    made.hear(owner, {"event": "owner_ready", "shares": {GPU.uuid: ["pipe", "log"]}})
    return made, owner


@pytest.mark.parametrize(
    ("mode", "ranks", "is_needed"),
    [
        ("auto", {0: GPU, 1: OTHER}, False),
        ("auto", {0: GPU, 1: OTHER, 2: GPU}, True),
        ("on", {0: GPU}, True),
        ("off", {0: GPU, 1: GPU}, False),
    ],
)
def test_where_one_is_asked_for(mode, ranks, is_needed, monkeypatch):
    """Where ranks share a GPU, unless --mps says it."""
    monkeypatch.setattr(owners.owner, "order", lambda *_: {"order": "own"})
    made, guard = owners.Owners(mode, print, 5.0, {}), Owner()
    made.ask("n1", "host", ranks, guard)
    assert made.are_needed() == is_needed and len(guard.told) == is_needed


def test_members_are_told_when_all_have_started():
    made, owner = owners_of_two_ranks()
    made.started(0, 100)
    assert owner.told == [{"order": "started", "pid": 100}]
    made.started(1, 101)
    assert owner.told[2:] == [{"order": "members", "members": [[0, 100, GPU.uuid], [1, 101, GPU.uuid]]}]


@pytest.mark.parametrize("lost", [0, 1, None])
def test_one_is_let_go_after_the_last_rank(lost):
    """And told whether all ranks had their guards to the end, however late the last one went."""
    made, owner = owners_of_two_ranks()
    made.ended(0, is_lost=lost == 0)
    assert owner.told == []
    made.ended(1, is_lost=lost == 1)
    assert owner.told == [{"order": "release", "is_guarded": lost is None}]


def test_one_that_leaves_before_its_ranks_is_missed():
    made, owner = owners_of_two_ranks()
    made.ended(0)
    made.lost(owner)
    assert "n1: the owner of MPS there has ended" in made.trouble
    made, owner = owners_of_two_ranks()
    made.ended(0)
    made.ended(1)
    made.lost(owner)
    assert not made.trouble


def test_one_that_comes_when_all_were_let_go_is_let_go():
    made, owner = owners.Owners("auto", print, 5.0, {}), Owner()
    made._hosts["n1"] = owners._Host("n1", {})
    made.release()
    made.hear(owner, {"event": "owner", "node": "n1"})
    assert owner.told == [{"order": "release", "is_guarded": False}]
