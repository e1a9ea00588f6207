"""A rank that does not come in time is named; settings that are wrong or differ are named before anything starts."""

import pytest
from jobs import SOON_S
from scenes import OPERATIONS

LIMIT_S = 2.0


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if "4 MB" not in name or "all_reduce" in name])
def test_late_rank(play, record, operation):
    play.start("late", 3, victim=1, operation=operation, limit_s=LIMIT_S)
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    record(f"rank 1 of 3 comes when the others have given up, time-out {LIMIT_S:g} s, {operation}")
    for rank in range(3):  # it learns why in words of the rank that gave up
        text = play.raised(rank)["text"]
        assert f"Timed out after {LIMIT_S:g} s (timeout) waiting for rank 1 (pid {play.pid(1)}, host " in text, text
    waited = [said["at"] - said["began"] for said in map(play.raised, (0, 2))]
    assert LIMIT_S - 0.1 < max(waited) < LIMIT_S + SOON_S, waited  # who began later hears it of the other


def test_rank_that_never_comes_to_init(play, record):
    play.start("absent", 3, victim=2, limit_s=LIMIT_S)
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    record(f"rank 2 of 3 never comes to init_process_group, time-out {LIMIT_S:g} s")
    for rank in (0, 1):
        said = play.raised(rank)
        assert said["type"] == "PeerTimeout" and f"rank 2 of 3 did not come within {LIMIT_S:g} s" in said["text"], said
        assert LIMIT_S - 0.1 < said["at"] - said["began"] < LIMIT_S + SOON_S


def test_impatient_wait(play, record):
    play.start("patience", 2)
    play.end()
    play.cause_at = play.facts(0, "calls")[0]["at"]
    record("rank 1 of 2 is late, rank 0 calls wait(0.2 s) and then wait()")
    said = play.raised(0)
    assert said["what"] == "wait(0.2 s)" and "Timed out after 200 ms" in said["text"], said
    assert 0.15 < said["at"] - said["began"] < SOON_S
    for rank in (0, 1):
        assert [fact["what"] for fact in play.facts(rank, "passed")] == ["wait()"]
        assert play.cast[rank].status == 0


@pytest.mark.parametrize("who", [[1], [0], [0, 1, 2]], ids=["rank1", "rank0", "everybody"])
def test_setting_with_a_value_that_is_none(play, record, who):
    play.start("start", 3, env={rank: {"ACCDP_CHUNK_BYTES": "4q"} for rank in who})
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    record(f"ACCDP_CHUNK_BYTES=4q on {'all ranks' if len(who) == 3 else f'rank {who[0]}'} of 3")
    for rank in range(3):
        said = play.raised(rank)
        assert "ACCDP_CHUNK_BYTES=4q: expected bytes from 4k" in said["text"], said
        assert rank in who or f"rank {who[0]}" in said["text"], said
        assert said["type"] == "UsageError", said
        assert play.after(rank) < SOON_S


def test_setting_that_differs(play, record):
    play.start("start", 3, env={1: {"ACCDP_CHUNK_BYTES": "64k"}})
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    record("ACCDP_CHUNK_BYTES=64k on rank 1 of 3 only")
    for rank in range(3):
        said = play.raised(rank)
        assert said["type"] == "UsageError" and "rank 1" in said["text"], said
        assert "ACCDP_CHUNK_BYTES=64k" in said["text"] and "ACCDP_CHUNK_BYTES=1M" in said["text"], said
        assert play.after(rank) < SOON_S


def test_setting_that_may_differ(play):
    play.start("start", 2, env={1: {"ACCDP_SPIN_US": "5"}})
    play.end()
    for rank in (0, 1):
        assert [fact["what"] for fact in play.facts(rank, "passed")] == ["init_process_group", "barrier"]
