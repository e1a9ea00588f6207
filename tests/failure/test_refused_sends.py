"""UCX refuses to send to a rank that has died, and MPICH by itself crashes at it: here others raise, and none does."""

from pathlib import Path

import jobs
import pytest
from test_far_death import check, mpich, start  # noqa: F401 - a fixture that all tests here use

# Seconds; far less than the groups' limits in these scenes.
LEAVES_S = 10.0
SCENES = str(Path(__file__).with_name("refused_scenes.py"))


@pytest.fixture(autouse=True)
def over_ucx():
    if jobs.is_intel_mpi(jobs.find_mpiexec()):
        pytest.skip("Intel MPI has no UCX below it: who waits for the dead does so to the deadline, unless lines tell")


@pytest.mark.parametrize("operation", ["all_reduce of 10 floats", "isend and irecv of 4 MB around a ring"])
def test_where_only_mpi_knows(play, operation):
    start(play, "without_lines", (0, 1), operation=operation, victim=1, file=SCENES)
    play.until("ready", [0, 1])
    play.kill(1)
    play.end()
    said = play.raised(0)
    assert "UCX refuses to send to rank 1: " in said["text"], said
    assert play.after(0) < LEAVES_S, said


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
    assert play.after(2) < LEAVES_S, said
    assert play.cast[0].ended_at - play.facts(0, "passed")[0]["at"] < LEAVES_S


def test_in_a_collective_of_mpis(play):
    start(play, "exchange", (0, 1), victim=1, file=SCENES)
    play.until("ready", [0, 1])
    play.kill(1)
    play.end()
    assert play.raised(0)["type"] in ("PeerTimeout", "PeerDied"), play.raised(0)


def test_what_a_communicator_raises(play):
    """The second one hears of the first one's failure, as all ranks do."""
    start(play, "messages", (0, 1), victim=1, file=SCENES)
    play.until("ready", [0, 1])
    play.kill(1)
    play.end()
    errors = play.facts(0, "raised")
    assert [error["type"] for error in errors] == 3 * ["PeerDied"], errors
    assert all("UCX refuses to send to rank 1: " in error["text"] for error in errors), errors
    assert play.cast[0].status == 0 and not play.cast[0].printed(), play.cast[0].printed()
