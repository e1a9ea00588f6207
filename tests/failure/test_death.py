"""A rank dies or leaves: the others raise soon, say which one, and end in good order."""

import signal
import time

import pytest
from jobs import SOON_S
from scenes import MESSAGES, OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_in_the_middle_of_an_operation(play, record, operation):
    play.start("busy", 3, operation=operation)
    play.until("ready", [0, 1, 2])
    time.sleep(0.2)
    play.cause_at = time.monotonic()
    play.cast[1].kill()
    play.end()
    record(f"rank 1 of 3 gets SIGKILL, {operation} under way")
    assert play.cast[1].status == -signal.SIGKILL
    for rank in (0, 2):
        first, second = play.facts(rank, "raised")
        assert f"rank 1 (pid {play.pid(1)}, host " in first["text"], first
        assert f"rank {rank} of 3" in first["text"] and first["type"] == "DistBackendError", first
        assert play.after(rank) < SOON_S
        assert f"rank 1 (pid {play.pid(1)}" in second["text"], second  # the first reason, and at once
        assert second["at"] - second["began"] < SOON_S


@pytest.mark.parametrize(
    "way, status",
    [
        ("raises an exception", 1),
        ("returns from its script", 0),
        ("calls sys.exit(3)", 3),
        ("calls os._exit(3)", 3),
        ("destroys the group", 0),
    ],
)
def test_leaves_while_others_wait(play, record, way, status):
    play.start("gone", 3, victim=2, way=way)
    play.end()
    (left,) = play.facts(2, "leaves")
    play.cause_at = left["at"]
    record(f"rank 2 of 3 {way}, the others in all_reduce")
    assert play.cast[2].status == status
    assert ("something of the user's" in play.cast[2].printed()) == (way == "raises an exception")
    for rank in (0, 1):
        said = play.raised(rank)
        assert f"rank 2 (pid {play.pid(2)}, host " in said["text"] and "during allreduce" in said["text"], said
        assert play.after(rank) < SOON_S


def test_operations_under_way_when_a_peer_dies(play, record):
    play.start("in_flight", 3, victim=0)
    play.until("ready", [0, 1, 2])
    time.sleep(0.3)
    play.cause_at = time.monotonic()
    play.cast[0].kill()
    play.end()
    record("rank 0 of 3 gets SIGKILL, asynchronous operations under way")
    for rank in (1, 2):
        errors = play.facts(rank, "raised")
        assert len(errors) == 4, errors
        for error in errors:
            assert f"rank 0 (pid {play.pid(0)}, host " in error["text"], error
            assert error["at"] - play.cause_at < SOON_S, error
        assert play.facts(rank, "works")[0]["completed"] == [True] * 3
        assert play.cast[rank].status == 0


def test_leaving_with_operations_that_can_never_finish(play, record):
    play.start("unwaited", 2, victim=1)
    play.until("ready", [0, 1])
    time.sleep(0.5)
    play.cause_at = time.monotonic()
    play.cast[1].kill()
    play.end()
    record("rank 1 of 2 gets SIGKILL; rank 0 leaves without waiting for its operations")
    assert play.facts(0, "passed") and play.cast[0].status == 0
    assert play.cast[0].ended_at - play.cause_at < SOON_S


@pytest.mark.parametrize("operation", MESSAGES)
def test_killed_while_a_message_is_awaited(play, record, operation):
    play.start("message", 2, operation=operation)
    play.until("ready", [0, 1])
    time.sleep(0.3)
    play.cause_at = time.monotonic()
    play.cast[1].kill()
    play.end()
    record(f"rank 1 of 2 gets SIGKILL, rank 0 in {operation}")
    assert f"rank 1 (pid {play.pid(1)}, host " in play.raised(0)["text"]
    assert play.after(0) < SOON_S


@pytest.mark.parametrize("way", ["waitall", "test"])
def test_killed_while_works_are_under_way(play, record, way):
    play.start("works", 2, way=way)
    play.until("ready", [0, 1])
    time.sleep(0.3)
    play.cause_at = time.monotonic()
    play.cast[1].kill()
    play.end()
    record(f"rank 1 of 2 gets SIGKILL, rank 0 in {way} for an irecv and an isend of 4 MB of a Communicator")
    assert f"rank 1 (pid {play.pid(1)}, host " in play.raised(0)["text"]
    assert play.after(0) < SOON_S
    second = play.facts(0, "raised")[1]
    assert f"rank 1 (pid {play.pid(1)}, host " in second["text"], second
    assert play.facts(0, "passed")[0]["what"] == "close"
