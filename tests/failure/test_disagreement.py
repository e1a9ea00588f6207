"""Ranks that call different things all raise at once, and the message names the odd rank and what both sides called."""

import re

import pytest
from jobs import SOON_S

CASES = [
    (
        "all_reduce of 3 floats",
        "all_reduce of 4 floats",
        "allreduce (sum) of 4 float32",
        "allreduce (sum) of 3 float32",
    ),
    (
        "all_reduce of 300000 floats",
        "all_reduce of 300001 floats",
        "allreduce (sum) of 300001 float32",
        "allreduce (sum) of 300000 float32",
    ),
    ("all_reduce of 3 floats", "all_reduce of 300000 floats", "of 300000 float32", "of 3 float32"),
    ("all_reduce of 3 floats", "all_reduce of 3 int32", "of 3 int32", "of 3 float32"),
    ("all_reduce of 3 floats", "all_reduce (max) of 3 floats", "allreduce (max)", "allreduce (sum)"),
    ("all_reduce of 3 floats", "barrier", "barrier", "allreduce"),
    ("broadcast from 0", "broadcast from 1", "with root 1", "with root 0"),
    ("reduce to 0", "reduce to 1", "with root 1", "with root 0"),
    ("broadcast from 0", "all_reduce of 3 floats", "allreduce", "bcast"),
    ("all_gather of equal blocks", "all_gather of other blocks", "allgather", "allgather"),
    ("reduce_scatter of 2 rows each", "reduce_scatter of 3 rows each", "reduce_scatter", "reduce_scatter"),
]


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("usual_call, odd_call, odd_words, usual_words", CASES, ids=lambda text: text.replace(" ", "_"))
def test_one_rank_calls_something_else(play, record, odd, usual_call, odd_call, odd_words, usual_words):
    play.start("disagree", 3, odd=odd, usual_call=usual_call, odd_call=odd_call)
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    if odd == 2:
        record(f"rank 2 of 3 calls {odd_call}, the others {usual_call}")
    for rank in range(3):
        text = play.raised(rank)["text"]
        # The odd rank comes first, then one of the others.
        place, others = r"\(pid \d+, host [^)]*\)", "012".replace(str(odd), "")
        named = re.search(rf"rank {odd} {place} (.*?)rank [{others}] {place}(.*)", text)
        assert named and f"rank {odd} (pid {play.pid(odd)}," in text, text
        assert odd_words in named[1] and usual_words in named[2], text
        assert play.after(rank) < SOON_S


@pytest.mark.parametrize("odd", [0, 2])
def test_one_rank_exchanges_blocks_of_another_size(play, record, odd):
    """Sizes of an all_to_all are a matter of each pair, so the pair is named."""
    play.start("disagree", 3, odd=odd, usual_call="all_to_all of 2 rows each", odd_call="all_to_all of 3 rows each")
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(3))
    if odd == 2:
        record("rank 2 of 3 calls all_to_all of 3 rows each, the others of 2 rows each")
    for rank in range(3):
        text = play.raised(rank)["text"]
        place = r"\(pid \d+, host [^)]*\)"
        pair = re.search(
            rf"alltoall #2: rank (\d) {place} sends (\d+) bytes to rank (\d) {place}, which expects (\d+)", text
        )
        assert pair and {pair[2], pair[4]} == {"8", "12"}, text
        assert str(odd) in (pair[1], pair[3]) and (pair[1] == str(odd)) == (pair[2] == "12"), text
        assert play.after(rank) < SOON_S


@pytest.mark.parametrize("sent, expected", [(3, 4), (4, 3), (100_000, 3), (3, 100_000), (100_000, 100_001)])
def test_a_message_of_another_size(play, record, sent, expected):
    play.start("wrong_message", 2, sent=sent, expected=expected)
    play.end()
    play.cause_at = max(play.facts(rank, "calls")[0]["at"] for rank in range(2))
    record(f"rank 0 of 2 sends {sent} floats, rank 1 receives {expected}")
    for rank in range(2):
        text = play.raised(rank)["text"]
        assert re.search(
            rf"rank 0 \(pid {play.pid(0)}.*sends {4 * sent} bytes.*rank 1 \(pid {play.pid(1)}.*{4 * expected}", text
        ), text
        assert play.after(rank) < SOON_S
