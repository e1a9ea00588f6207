"""Who holds a job up, by what its ranks wait for."""

import json
from dataclasses import replace

import pytest

from accdp_comm.ps.pages import Membership, Peer, Rank, Wait, from_json
from accdp_comm.ps.verdict import Job, jobs, seconds

HOST = "a"


def peer(rank: int, host: str = HOST) -> Peer:
    return Peer(rank, 100 + rank, host)


def waits(*peers: Peer, what: str = "allreduce #7", lasts: float = 9.0, **more) -> Wait:
    return Wait(what, peers, len(peers), lasts, more.pop("is_message", False), more.pop("is_blocking", True))


def member(rank: int, *waiting: Wait, group: str = "w", size: int = 4, **more) -> Membership:
    """In the seventh allreduce if it waits, else out of the sixth."""
    busy = bool(waiting) and not waiting[0].is_message
    whole = Membership(group, group, rank, size, 1, "", 7 if busy else 6, "allreduce", busy, 9.0, waiting)
    return replace(whole, **more)


def process(number: int, *groups: Membership, state: str = "S", host: str = HOST) -> Rank:
    return Rank(host, 100 + number, 100 + number, state, "python train.py", groups)


def verdict(*ranks: Rank) -> list[str]:
    return Job(ranks).verdict({HOST})


LATE = "rank 0 (pid 100) waits for rank 1 (pid 101), which has not come to allreduce #7: "


@pytest.mark.parametrize(
    ("awaited", "said"),
    [
        (process(1, member(1)), LATE + "in no operation for 9 s (py-spy dump --pid 101 shows where its script is)"),
        (
            process(1, member(1, sequence=0)),
            LATE + "in no operation yet (py-spy dump --pid 101 shows where its script is)",
        ),
        (process(1, member(1), member(0, group="v", size=2, is_busy=True)), LATE + "it is in allreduce #6 in group v"),
        (process(1, member(1), state="T"), "which is stopped: kill -CONT 101 lets it go on"),
        (process(1, member(1), state="D"), "which waits for the kernel (a disk, a network file system)"),
        (process(1, member(1, failure="rank 3 exited")), "for which the group has failed: rank 3 exited"),
        (process(1, member(1, sequence=7, is_busy=True)), "which is at work in allreduce #7"),
        (process(1, member(1, waits(peer(2), lasts=0.5))), "which is at work in allreduce #7"),
        (process(1, member(1, waits(peer(0), is_blocking=False, is_message=True))), LATE + "in no operation for 9 s"),
    ],
)
def test_what_the_awaited_rank_does_instead(awaited, said):
    lines = verdict(process(0, member(0, waits(peer(1)))), awaited)
    assert len(lines) == 1 and said in lines[0], lines
    assert lines[0].startswith("rank 0 (pid 100) waits for rank 1 (pid 101)")


def test_a_rank_that_is_not_there():
    gone, elsewhere = (verdict(process(0, member(0, waits(one)))) for one in (peer(1), peer(1, "b")))
    assert gone == ["rank 0 (pid 100) waits for rank 1 (pid 101, host a), which has ended"]
    assert elsewhere[0].endswith("rank 1 (pid 101, host b), which is on another host: accdp ps there says what it does")


def test_a_message():
    message = waits(peer(1), what="recv of 4 bytes, tag 7", is_message=True)
    lines = verdict(process(0, member(0, message)), process(1, member(1)))
    assert lines[0].startswith(
        "rank 0 (pid 100) waits for rank 1 (pid 101), which has not done its part of recv of 4 bytes, tag 7: in no"
    )


def test_who_waits_for_a_waiter_is_not_named():
    """But whom that one waits for, by the number that he has in the job."""
    lines = verdict(
        process(0, member(0, waits(peer(1)))),
        process(1, member(1, waits(peer(2))), member(0, group="v", size=2)),
        process(2, member(2), member(1, group="v", size=2)),
        process(3, member(3, waits(peer(2)))),
    )
    assert len(lines) == 1 and lines[0].startswith("2 ranks wait for rank 2 (pid 102), which has not come")


def test_numbers_are_those_of_the_job():
    inner = Wait("allreduce #7", (Peer(1, 103, HOST),), 1, 9.0, False, True)
    lines = verdict(
        process(2, member(2), member(0, inner, group="v", size=2)), process(3, member(3), member(1, group="v", size=2))
    )
    assert lines[0].startswith(
        "rank 2 (pid 102) waits for rank 3 (pid 103), which has not come to allreduce #7 in group v"
    )


def test_short_waits_and_stopped_ranks_say_nothing():
    assert verdict(process(0, member(0, waits(peer(1), lasts=0.9))), process(1, member(1))) == []
    assert verdict(process(0, member(0, waits(peer(1))), state="T"), process(1, member(1))) == []


def test_a_circle_beside_what_leads_to_it():
    back = Wait("bcast #4", (Peer(0, 101, HOST),), 1, 9.0, False, True)
    lines = verdict(
        process(0, member(0, waits(peer(1)))),
        process(1, member(1, waits(peer(2))), member(0, group="v", size=2)),
        process(2, member(2, waits(peer(3)))),
        process(3, member(3), member(1, back, group="v", size=2)),
    )
    assert lines == [
        "these wait for each other: rank 2 (pid 102) in allreduce #7 for rank 3; rank 3 (pid 103) in bcast #4 in "
        "group v for rank 1; rank 1 (pid 101) in allreduce #7 for rank 2"
    ]


def test_data_on_their_way_are_no_circle():
    """Ranks that have come to the same call, or a send and its receive; but a circle may lead through such ranks."""
    assert verdict(process(0, member(0, waits(peer(1)))), process(1, member(1, waits(peer(0))))) == []
    send, recv = (
        waits(peer(to), what=f"{what} of 4 bytes", is_message=True) for to, what in ((1, "send"), (0, "recv"))
    )
    assert verdict(process(0, member(0, send)), process(1, member(1, recv))) == []
    lines = verdict(process(0, member(0, replace(send, what="recv of 4 bytes"))), process(1, member(1, recv)))
    assert lines[0].startswith("these wait for each other: rank 0 (pid 100) in recv of 4 bytes for rank 1; rank 1")
    inner = Wait("bcast #1", (Peer(0, 100, HOST),), 1, 9.0, False, True)
    pair = member(1, inner, group="v", size=2, sequence=1)
    lines = verdict(
        process(0, member(0, waits(peer(1))), member(0, group="v", size=2)),
        process(1, member(1, waits(peer(2)))),
        process(2, member(2), pair),
    )
    assert lines[0].startswith("these wait for each other: ") and lines[0].count(" in ") == 4, lines


def test_two_threads_of_a_rank_are_no_circle():
    """One waits for a rank that is on its way through a call of the other's."""
    later = Wait("bcast #1", (Peer(0, 100, HOST),), 1, 9.0, False, True)
    both = process(1, member(1, sequence=7, is_busy=True), member(1, later, group="v", size=2, sequence=1))
    assert verdict(process(0, member(0, waits(peer(1))), member(0, group="v", size=2)), both) == []


def test_messages_of_several_ranks_are_no_circle():
    """A receive from any rank ends when the other one sends."""
    any_rank = waits(peer(1), peer(2), what="recv of 4 bytes", is_message=True)
    lines = verdict(
        process(0, member(0, any_rank)),
        process(1, member(1, waits(peer(0), what="recv of 4 bytes", is_message=True))),
        process(2, member(2)),
    )
    assert len(lines) == 1 and lines[0].startswith("rank 0 (pid 100) waits for rank 2 (pid 102)")


def test_jobs_are_ranks_that_share_groups():
    """Through a third one, too, whichever is found first."""
    first = process(0, member(0, group="x", size=2))
    second = process(2, member(0, group="y", size=2))
    both = process(1, member(1, group="x", size=2), member(1, group="y", size=2))
    other = process(9, member(0, group="z", size=1))
    for order in ([first, second, both, other], [both, other, first, second], [second, first, other, both]):
        found = sorted([rank.pid for rank in job.ranks] for job in jobs(order))
        assert [sorted(pids) for pids in found] == [[100, 101, 102], [109]]


def test_json_is_read_as_it_was_written():
    rank = process(0, member(0, waits(peer(1), peer(2))), member(3, group="v", failure="x"))
    assert from_json(json.loads(json.dumps(rank.as_json()))) == rank


@pytest.mark.parametrize(
    ("value", "said"), [(0.314, "0.31 s"), (9.96, "10 s"), (42.4, "42 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")]
)
def test_times(value, said):
    assert seconds(value) == said
