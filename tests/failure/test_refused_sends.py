"""UCX refuses to send to a rank that has died, and MPICH by itself crashes at it: here others raise, and none does."""

import signal
import time
from pathlib import Path

import pytest
from test_far_death import NOTICED_S, TCP, check, mpich, start  # noqa: F401 - a fixture that all tests here use

SCENES = str(Path(__file__).with_name("refused_scenes.py"))


@pytest.mark.parametrize("operation", ["all_reduce of 10 floats", "isend and irecv of 4 MB around a ring"])
def test_where_only_mpi_knows(play, operation):
    start(play, "without_lines", (0, 1), operation=operation, victim=1, file=SCENES)
    play.until("ready", [0, 1])
    play.kill(1)
    play.end()
    said = play.raised(0)
    assert "UCX refuses to send to rank 1: " in said["text"], said
    assert play.after(0) < NOTICED_S, said


def test_where_mpi_knows_first(play):
    """A death between the look at the line and the end of MPI's call."""
    operation = "isend and irecv of 4 MB around a ring"
    start(play, "line_breaks_late", (0, 1), operation=operation, victim=1, file=SCENES)
    play.until("ready", [0, 1])
    play.kill(1)
    play.end()
    check(play, [0], 1)


def test_leaving_where_only_mpi_knows(play):
    """All who can hear of it are told, and the end of a process is not MPI's."""
    start(play, "leave", (0, 1, 2), victim=1, leaver=0, file=SCENES)
    play.until("ready", [0, 1, 2])
    play.kill(1)
    play.end()
    assert play.facts(0, "passed") and play.cast[0].status == 0, play.cast[0].printed()
    said = play.raised(2)
    assert "rank 0 (pid " in said["text"] and "left the group" in said["text"], said
    assert play.after(2) < NOTICED_S + 2, said


def test_in_a_collective_of_mpis(play):
    """Any call of MPI's goes on with it, be it to see messages off after the group has failed."""
    variables = {"ACCDP_BASELINE": "mpi", "MPIR_CVAR_IALLGATHERV_INTRA_ALGORITHM": "sched_ring", **TCP}
    start(play, "gather", (0, 1, 2, 3), variables, file=SCENES)
    play.until("ready", [0, 1, 2, 3])
    time.sleep(0.2)
    play.cast[3].kill(signal.SIGSTOP)
    time.sleep(0.3)
    play.kill(1)
    time.sleep(2.6)  # the others have noticed
    play.cast[3].kill(signal.SIGCONT)
    play.end()
    for rank in (0, 2, 3):
        assert "rank 1 (pid " in play.raised(rank)["text"], play.raised(rank)
