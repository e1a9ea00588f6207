"""A rank is dead when the others form a group with it, and no launcher ends the job: they do not wait for it."""

import signal
from pathlib import Path

import pytest
from jobs import SOON_S
from test_far_death import TCP, mpich  # noqa: F401 - a fixture that all tests here use

SCENES = str(Path(__file__).with_name("world_scenes.py"))


@pytest.mark.parametrize("who", ["first", "last"])
@pytest.mark.parametrize("what", ["new_group", "Communicator"])
@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 1, 2)], ids=["one node", "three nodes"])
def test_a_group_with_a_dead_rank(play, record, nodes, what, who):
    """The group's time-out is the default one, of half an hour."""
    victim = {"first": 0, "last": 2}[who]
    env = dict.fromkeys(range(3), {"ACCDP_TOPOLOGY": ",".join(map(str, nodes)), **TCP})
    play.start("forms_a_group_with_the_dead", 3, env=env, file=SCENES, victim=victim, what=what)
    play.until("ready", [0, 1, 2])
    play.kill(victim)
    play.end()
    record(f"rank {victim} of 3, on nodes {', '.join(map(str, nodes))}, gets SIGKILL before {what} is called")
    assert play.cast[victim].status == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        said = play.raised(rank)
        assert said["text"] == f"rank {rank}: rank {victim} of 3 has ended (forming the group)"
        assert said["type"] == "PeerDied" and play.after(rank) < SOON_S
