"""A rank of another node dies, where no launcher ends the job: the others raise soon, with its name; none crashes."""

import signal
import time

import jobs
import pytest
from jobs import SOON_S

# Seconds; far less than the groups' 30 minutes.
NOTICED_S = 2.5 + SOON_S
# Processes of one host would else share memory between declared nodes, too, by which MPI sees no death.
TCP = {"UCX_TLS": "tcp,self"}


@pytest.fixture(autouse=True)
def mpich():
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("several nodes without a launcher need an MPI of the MPICH family")


def start(play, scene, nodes, transports=TCP, **arguments):
    """Start one rank for each number, that of its node."""
    variables = {"ACCDP_TOPOLOGY": ",".join(map(str, nodes)), **transports}
    play.start(scene, len(nodes), env=dict.fromkeys(range(len(nodes)), variables), **arguments)


def where(nodes):
    return f"ranks on nodes {', '.join(map(str, nodes))}, no launcher"


def check(play, survivors, victim):
    for rank in survivors:
        said = play.raised(rank)
        assert f"rank {victim} (pid {play.pid(victim)}, host " in said["text"] and "exited" in said["text"], said
        assert play.after(rank) < NOTICED_S
        assert play.cast[rank].status == 0, play.cast[rank].printed()


@pytest.mark.parametrize(
    ("operation", "nodes", "victim"),
    [
        ("all_reduce of 10 floats", (0, 0, 1), 2),
        ("all_reduce of 4 MB", (0, 1, 1), 0),
        ("all_to_all of 4 MB", (0, 0, 1), 2),
        ("isend and irecv of 4 MB around a ring", (0, 1, 2), 1),
    ],
)
def test_killed_in_the_middle_of_an_operation(play, record, operation, nodes, victim):
    start(play, "busy", nodes, operation=operation)
    play.until("ready", [0, 1, 2])
    time.sleep(0.2)
    play.cause_at = time.monotonic()
    play.cast[victim].kill()
    play.end()
    assert play.cast[victim].status == -signal.SIGKILL
    check(play, {0, 1, 2} - {victim}, victim)
    record(f"{where(nodes)}: rank {victim} gets SIGKILL, {operation} under way")


@pytest.mark.parametrize("operation", ["recv", "barrier"])
def test_killed_in_a_group_of_some_ranks(play, operation):
    start(play, "part", (0, 1, 2), victim=2, operation=operation)
    play.until("ready", [0, 1, 2])
    play.kill(2)
    play.end()
    said = play.raised(1)["text"]
    assert f"rank 1 (pid {play.pid(2)}, host " in said and "exited" in said, said  # its number in that group
    assert play.after(1) < NOTICED_S


@pytest.mark.parametrize(
    ("operation", "transports"),
    [("all_reduce of 10 floats", TCP), ("broadcast of 4 MB", TCP), ("barrier", TCP), ("barrier", {})],
    ids=["short", "long", "empty", "any transport"],
)
def test_killed_between_operations(play, record, operation, transports):
    """MPI has learnt of it when the others come to their next call, and would crash in its first message."""
    start(play, "paused", (0, 0, 1), transports, operation=operation, victim=2)
    play.until("ready", [0, 1, 2])
    play.cause_at = time.monotonic()
    play.cast[2].kill()
    play.end()
    check(play, [0, 1], 2)
    if transports:
        record(f"{where((0, 0, 1))}: rank 2 gets SIGKILL, the others come to {operation} later")


@pytest.mark.parametrize("operation", ["recv from any rank", "send of 4 MB"])
def test_killed_before_a_message(play, record, operation):
    start(play, "message", (0, 1), operation=operation, delay_s=0.5)
    play.until("ready", [0, 1])
    play.cause_at = time.monotonic()
    play.cast[1].kill()
    play.end()
    check(play, [0], 1)
    record(f"{where((0, 1))}: rank 1 gets SIGKILL, rank 0 in {operation}")


@pytest.mark.parametrize(
    ("way", "nodes", "seconds"),
    [
        ("calls os._exit(3)", (0, 1, 1), 3.0),  # for longer than a death takes to be noticed
        ("returns from its script", (0, 1, 2), 5.3),  # while it ends after it has waited for the others in vain
        ("returns from its script", (0, 1, 2), 7.0),
    ],
)
def test_those_it_had_nothing_to_do_with_go_on(play, way, nodes, seconds):
    """A part of the ranks works on, and ends in good order."""
    start(play, "others_go_on", nodes, victim=2, way=way, seconds=seconds)
    play.end()
    for rank in (0, 1):
        assert play.facts(rank, "passed") and not play.facts(rank, "raised"), play.facts(rank, "raised")
        assert play.cast[rank].status == 0, play.cast[rank].printed()
