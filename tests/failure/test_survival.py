"""Ranks die, and those that live go on in a smaller group (torch's shrink_group), without a launcher."""

import signal
from pathlib import Path

import pytest
import torch.distributed as dist
from jobs import SOON_S
from test_far_death import TCP, mpich  # noqa: F401 - a fixture that all tests here use

SCENES = str(Path(__file__).with_name("survival_scenes.py"))
NODES = {"one node": (0, 0, 0, 0), "two nodes": (0, 0, 1, 1), "four nodes": (0, 1, 2, 3)}
ALL_NODES = pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)


def start(play, scene, nodes, killed=(), **arguments):
    """Start it, and kill those ranks when all are ready."""
    variables = {"ACCDP_TOPOLOGY": ",".join(map(str, nodes)), **TCP}
    play.start(scene, len(nodes), env=dict.fromkeys(range(len(nodes)), variables), file=SCENES, **arguments)
    if killed:
        play.until("ready", list(range(len(nodes))))
    for victim in killed[:-1]:
        play.cast[victim].kill()
    if killed:
        play.kill(killed[-1])


def check_that_they_are_the_world(play, survivors):
    """All of them, and nobody else, by their new numbers; and each ended well."""
    half = survivors[: (len(survivors) + 1) // 2]
    for place, rank in enumerate(survivors):
        assert play.cast[rank].status == 0, play.cast[rank].printed()
        (now,) = play.facts(rank, "now")
        expected = {"place": [place, len(survivors)], "world": bits(survivors), "communicator": bits(survivors)}
        expected["half"] = bits(half) if rank in half else 0
        assert {name: now[name] for name in expected} == expected


def bits(ranks):
    return sum(1 << rank for rank in ranks)


def passed(play, rank, what):
    (fact,) = (fact for fact in play.facts(rank, "passed") if fact["what"] == what)
    return fact


@ALL_NODES
@pytest.mark.parametrize("victims", [[0], [3, 1], [1, 2, 3]], ids=str)
def test_those_that_live_go_on(play, nodes, victims):
    survivors = [rank for rank in range(4) if rank not in victims]
    start(play, "goes_on", nodes, victims, victims=victims)
    play.end()
    for rank in survivors:
        assert play.raised(rank)["what"] == "all_reduce"
        assert passed(play, rank, "shrink")["at"] - play.cause_at < SOON_S
        assert play.facts(rank, "failed")[0]["ranks"] == []  # of the new group
    check_that_they_are_the_world(play, survivors)


@pytest.mark.parametrize(
    ("nodes", "where"),
    [
        *(((0, 0, 0, 0), where) for where in ("meeting", "forming", "having formed")),
        *(((0, 0, 1, 1), where) for where in ("meeting", "having formed")),
    ],
    ids=str,
)
@pytest.mark.parametrize("next_victim", [0, 3])
def test_another_one_dies_meanwhile(play, nodes, where, next_victim):
    start(play, "dies_in_shrink", nodes, [1], victim=1, next_victim=next_victim, where=where)
    play.end()
    assert play.cast[next_victim].status == -signal.SIGKILL
    survivors = [rank for rank in range(4) if rank not in (1, next_victim)]
    for rank in survivors:
        assert passed(play, rank, "shrink")["at"] - play.cause_at < SOON_S
    check_that_they_are_the_world(play, survivors)


@pytest.mark.parametrize("nodes", [(0, 0, 0, 0), (0, 0, 1, 1)], ids=str)
def test_who_knows_of_more_deaths_and_who_of_fewer_meet(play, nodes):
    """Rank 3 waits for rank 0 in a group of three, rank 0 for rank 3 in one of two."""
    start(play, "knows_less", nodes, [1, 2], victims=[1, 2])
    play.end()
    for rank in (0, 3):
        assert passed(play, rank, "shrink")["at"] - play.cause_at < SOON_S
    check_that_they_are_the_world(play, [0, 3])


def test_groups_of_the_same_names_and_numbers(play):
    """What one of the world before came to is no word to one of the world after."""
    start(play, "makes_the_same_groups_again", (0, 0, 0, 0), [1], victim=1)
    play.end()
    for rank in (0, 2):
        assert play.raised(rank)["text"] == f"rank {rank}: rank 1 of 3 has ended (forming the group)"
    check_that_they_are_the_world(play, [0, 2, 3])


def test_a_rank_that_fails_alone(play):
    """The others hear of it before rank 0 has taken the store along."""
    start(play, "fails_alone", (0, 0, 0, 0), [1], victim=1)
    play.end()
    assert play.raised(2)["text"] == "something of rank 2"
    for rank in (0, 3):
        assert play.raised(rank)["text"] == "rank 1 of 3: something of rank 2" and play.after(rank) < SOON_S


def test_a_part_of_the_world(play):
    start(play, "shrinks_a_part", NODES["two nodes"], [1], victim=1)
    play.end()
    assert play.facts(3, "failed")[0]["ranks"] == [1] and play.facts(3, "failed")[0]["of_part"] == []
    for place, rank in enumerate((0, 2)):
        assert play.cast[rank].status == 0, play.cast[rank].printed()
        (now,) = play.facts(rank, "now")
        assert (now["place"], now["world"]) == ([place, 2], bits([0, 2]))
        assert play.raised(rank)["type"] == "DistBackendError"  # the world is as broken as before


@pytest.mark.parametrize("flags", [dist.distributed_c10d.SHRINK_DEFAULT, dist.distributed_c10d.SHRINK_ABORT])
def test_a_rank_that_lives_is_left_out(play, tmp_path, flags):
    start(play, "leaves_out_the_living", (0, 0, 0), flags=flags)
    play.until("ready", [0, 2])
    (tmp_path / "store-go").touch()
    play.end()
    for rank in (0, 2):
        said = play.facts(rank, "raised")
        assert said[0]["what"] == "shrink" and said[0]["type"] == "UsageError"
        assert f"no rank of 3 has ended, as far as rank {rank} knows" in said[0]["text"]
        assert [fact["what"] for fact in said[1:]] == ["wait"] * bool(flags)
        assert not flags or "SHRINK_ABORT" in said[1]["text"]
    check_that_they_are_the_world(play, [0, 2])
    assert play.cast[1].status == 0 and "rank 1 of 3" in play.raised(1)["text"]
