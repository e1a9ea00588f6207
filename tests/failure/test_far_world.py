"""Ranks of several nodes, without a launcher, of which one is gone or late while MPI's world is made or left."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from jobs import SOON_S
from test_far_death import TCP, mpich  # noqa: F401 - a fixture that all tests here use

SCENES = str(Path(__file__).with_name("world_scenes.py"))
NODES = (0, 1, 2)
VICTIM = 1
OTHERS = (0, 2)


def start(play, scene, nodes=NODES, **arguments):
    variables = {"ACCDP_TOPOLOGY": ",".join(map(str, nodes)), **TCP}
    env = dict.fromkeys(range(len(NODES)), variables)
    play.start(scene, len(NODES), env=env, file=SCENES, victim=VICTIM, **arguments)


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGCONT])
def test_stopped_while_it_waits_for_the_others_at_its_end(play, tmp_path, ends_by):
    """These meet there without it, as MPI sees it, and have nothing to wait for when it is gone."""
    start(play, "waits_at_its_end")
    play.until("ready", [*OTHERS, VICTIM])
    time.sleep(1)
    os.kill(play.pid(VICTIM), signal.SIGSTOP)
    (tmp_path / "store-go").touch()
    time.sleep(6)  # for longer than it waits there
    os.kill(play.pid(VICTIM), ends_by)
    play.end()
    assert [play.cast[rank].status for rank in OTHERS] == [0, 0], [play.cast[rank].printed() for rank in OTHERS]


def test_dies_within_mpi_init(play):
    start(play, "dies_in_mpi_init")
    play.end()
    died_at = play.facts(VICTIM, "dies")[0]["at"]
    for rank in OTHERS:
        player = play.cast[rank]
        assert player.status == 1 and player.ended_at - died_at < SOON_S, player.printed()
        # Who looks late may see that another survivor has ended, too.
        said = re.search(
            r"ranks? ([\d, ]+) ha(s|ve) ended without having come there; MPI cannot be inter", player.printed()
        )
        assert said and str(VICTIM) in said[1].split(", "), player.printed()


@pytest.mark.parametrize("nodes", [NODES, (0, 0, 1)], ids=["on a node of its own", "beside another"])
def test_dies_when_a_group_forms(play, nodes):
    """A group with the default time-out of half an hour."""
    start(play, "dies_when_a_group_forms", nodes)
    play.end()
    died_at = play.facts(VICTIM, "dies")[0]["at"]
    for rank in OTHERS:
        player = play.cast[rank]
        assert player.status == 1 and player.ended_at - died_at < 2 + SOON_S, player.printed()
        said = re.search(r"MPI_Comm_create_group .*: ranks? ([\d, ]+) ha(s|ve) ended without", player.printed())
        assert said and str(VICTIM) in said[1].split(", "), player.printed()


def test_late_behind_mpi_init(play):
    start(play, "late_after_mpi_init", limit_s=8.0)
    play.end()
    for rank in OTHERS:
        assert f"rank {VICTIM} of 3 did not come within 8 s" in play.raised(rank)["text"]
    assert "came after others had waited 8 s for it" in play.raised(VICTIM)["text"]
