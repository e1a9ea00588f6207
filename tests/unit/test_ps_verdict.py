"""Who holds a job up, by what its ranks wait for."""

import json
from dataclasses import replace

import pytest

from accdp_comm.ps.pages import Membership, Peer, Rank, Wait, from_json
from accdp_comm.ps.verdict import Job, jobs, seconds

HOST = "a"


def peer(rank: int, host: str = HOST, awaits: str = "", opened: str = "") -> Peer:
    return Peer(rank, 100 + rank, host, tuple(awaits.split()), tuple(opened.split()))


def waits(*peers: Peer, what: str = "allreduce #7", lasts: float = 9.0, is_blocking: bool = True) -> Wait:
    return Wait(what, peers, len(peers), lasts, False, is_blocking)


def message(what: str, *peers: Peer, lasts: float = 9.0, is_blocking: bool = True, is_for_any: bool = False) -> Wait:
    count = sum(bool(one.awaits) for one in peers)
    return Wait(f"{what} of 4 bytes, tag 7", peers, count, lasts, True, is_blocking, is_for_any)


def member(rank: int, *waiting: Wait, group: str = "w", size: int = 4, **more) -> Membership:
    """In the seventh allreduce if it waits, else out of the sixth."""
    busy = bool(waiting) and not waiting[0].is_message
    whole = Membership(group, group, rank, size, 1, "", 7 if busy else 6, "allreduce", busy, busy, 9.0, waiting)
    return replace(whole, **more)


def process(number: int, *groups: Membership, state: str = "S", host: str = HOST) -> Rank:
    return Rank(host, 100 + number, 100 + number, state, "python train.py", groups)


def verdict(*ranks: Rank) -> list[str]:
    return Job(ranks, HOST).verdict({HOST})


LATE = "rank 0 (pid 100) waits for rank 1 (pid 101), which has not come to allreduce #7: "


@pytest.mark.parametrize(
    ("awaited", "said"),
    [
        (process(1, member(1)), LATE + "in no collective for 9 s (py-spy dump --pid 101 shows where its script is)"),
        (
            process(1, member(1, sequence=0)),
            LATE + "in no collective yet (py-spy dump --pid 101 shows where its script is)",
        ),
        (
            process(1, member(1), member(0, group="v", size=2, is_busy=True, is_blocking=True)),
            LATE + "it is in allreduce #6 in group v",
        ),
        (process(1, member(1), state="T"), "which is stopped: kill -CONT 101 lets it go on"),
        (process(1, member(1), state="D"), "which waits for the kernel (a disk, a network file system)"),
        (process(1, member(1, failure="rank 3 exited")), "for which the group has failed: rank 3 exited"),
        (process(1, member(1, failure="rank 3 exited", sequence=7)), "for which the group has failed: rank 3 exited"),
        (process(1, member(1), state="t"), "which a debugger holds"),
        (
            process(1, member(1), member(0, group="v", size=2, failure="rank 9 exited")),
            LATE + "its group v has failed (rank 9 exited), in no collective for 9 s (py-spy",
        ),
        (process(1, member(1, sequence=7, is_busy=True)), "which is at work in allreduce #7"),
        (process(1, member(1, waits(peer(2), lasts=0.5))), "which is at work in allreduce #7"),
        (process(1, member(1, message("recv", peer(0), is_blocking=False))), LATE + "in no collective for 9 s"),
        (
            process(1, member(1, message("recv", peer(2, awaits="recv"), lasts=0.3))),
            LATE + "it is in recv of 4 bytes, tag 7",
        ),
    ],
)
def test_what_the_awaited_rank_does_instead(awaited, said):
    lines = verdict(process(0, member(0, waits(peer(1)))), awaited)
    assert len(lines) == 1 and said in lines[0], lines
    assert lines[0].startswith("rank 0 (pid 100) waits for rank 1 (pid 101)")


def test_a_rank_that_is_not_there():
    gone, elsewhere = (verdict(process(0, member(0, waits(one)))) for one in (peer(1), peer(1, "b")))
    assert gone == [
        "rank 0 (pid 100) waits for rank 1 (pid 101, host a) in allreduce #7, which has ended, or is not to be seen"
    ]
    assert elsewhere[0].endswith(
        "rank 1 (pid 101, host b) in allreduce #7, which is on another host: accdp ps there tells of it"
    )


def test_ranks_of_other_hosts_are_said_to_be_there():
    """A process with that number here is another one."""
    ranks = process(0, member(0, waits(peer(1, "b")))), process(1, member(1), state="T", host="b")
    assert Job(ranks, HOST).verdict({HOST, "b"}) == [
        "rank 0 (pid 100) waits for rank 1 (pid 101 on b), which is stopped: kill -CONT 101 on b lets it go on"
    ]


def test_a_message():
    lines = verdict(process(0, member(0, message("recv", peer(1, awaits="recv")))), process(1, member(1)))
    assert lines[0].startswith(
        "rank 0 (pid 100) waits for rank 1 (pid 101), which has not done its part of recv of 4 bytes, tag 7: in no"
    )


def test_a_message_of_any_rank():
    any_rank = message("recv", peer(1, awaits="any"), peer(2, awaits="any"), is_for_any=True)
    lines = verdict(process(0, member(0, any_rank)), process(1, member(1)), process(2, member(2)))
    assert lines == ["rank 0 (pid 100) waits in recv of 4 bytes, tag 7 for any of rank 1, rank 2"]


def test_only_messages_that_are_waited_for_count():
    """Beside them another one lies open."""
    wait = message("recv", peer(1, awaits="recv", opened="recv"), peer(2, opened="recv"))
    lines = verdict(process(0, member(0, wait)), process(1, member(1)), process(2, member(2)))
    assert len(lines) == 1 and lines[0].startswith("rank 0 (pid 100) waits for rank 1")


def test_a_rank_that_has_left_the_call_does_not_hold_it_up():
    """Pages are read one after the other. But its data may not arrive."""
    for there in (member(1, sequence=8, is_busy=True), member(1, sequence=7)):
        lines = verdict(process(0, member(0, waits(peer(1)))), process(1, there))
        assert len(lines) == 1 and "waits in allreduce #7 for data of rank 1, which has left it" in lines[0]


def test_who_waits_for_any_of_ranks_that_wait_for_it():
    """A master that waits for work, and workers that have gone on."""
    any_rank = message("recv", peer(1, awaits="any"), peer(2, awaits="any"), is_for_any=True)
    ranks = [process(0, member(0, any_rank)), *(process(i, member(i, waits(peer(0)))) for i in (1, 2))]
    assert verdict(*ranks) == [
        "rank 0 (pid 100) waits in recv of 4 bytes, tag 7 for any of rank 1, rank 2, which all wait themselves"
    ]


def test_what_goes_on_in_a_worker_of_the_rank_that_is_blamed():
    """Validation on one rank, while the others' gradients wait for it."""
    wait = Wait("barrier #2", (Peer(1, 101, HOST),), 1, 9.0, False, True)
    ranks = (
        process(0, member(0), member(0, wait, group="v", size=2, sequence=2)),
        process(
            1, member(1, waits(peer(0), is_blocking=False), is_blocking=False), member(1, group="v", size=2, sequence=1)
        ),
    )
    lines = verdict(*ranks)
    assert lines[0].startswith(
        "rank 0 (pid 100) waits for rank 1 (pid 101), which has not come to barrier #2 in group v"
    )
    assert lines[-1].startswith("these wait for each other, if their scripts wait for that: "), lines


def test_two_processes_with_one_number_are_two():
    """Of two containers with one host name."""
    ranks = [process(0, member(0, waits(Peer(1, 7, HOST), Peer(2, 7, HOST))))]
    ranks += [replace(process(rank, member(rank), state=state), own_pid=7) for rank, state in ((1, "S"), (2, "T"))]
    assert len(verdict(*ranks)) == 2


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
    met = verdict(process(0, member(0, waits(peer(1)))), process(1, member(1, waits(peer(0)))))
    assert met == ["2 ranks are in allreduce #7 and wait for each other's data: on their way, or not arriving"]
    for mine, its in (("send", "recv"), ("recv", "send"), ("send recv", "send recv")):
        both = message(mine, peer(1, awaits=mine, opened=mine)), message(its, peer(0, awaits=its, opened=its))
        lines = verdict(process(0, member(0, both[0])), process(1, member(1, both[1])))
        assert len(lines) > 0 and all("has begun the other end" in line for line in lines), lines
    # a send that is open while its rank waits for something else
    first, second = (
        message("recv", peer(1, awaits="recv", opened="recv")),
        message("recv", peer(0, "a", "recv", "recv send")),
    )
    assert not any(
        "each other: " in line for line in verdict(process(0, member(0, first)), process(1, member(1, second)))
    )
    inner = Wait("bcast #1", (Peer(0, 100, HOST),), 1, 9.0, False, True)
    pair = member(1, inner, group="v", size=2, sequence=1)
    lines = verdict(
        process(0, member(0, waits(peer(1))), member(0, group="v", size=2, sequence=0)),
        process(1, member(1, waits(peer(2)))),
        process(2, member(2), pair),
    )
    assert lines[0].startswith("these wait for each other: ") and lines[0].count(" in ") == 4, lines


def test_messages_that_nobody_sends_are_a_circle():
    lines = verdict(
        process(0, member(0, message("recv", peer(1, awaits="recv", opened="recv")))),
        process(1, member(1, message("recv", peer(0, awaits="recv", opened="recv")))),
    )
    assert lines[0].startswith(
        "these wait for each other: rank 0 (pid 100) in recv of 4 bytes, tag 7 for rank 1; rank 1"
    )


def test_what_runs_in_the_background_is_no_certain_circle():
    """Its rank may come to the other call meanwhile; but a script may also wait in a way that is not seen."""
    later = replace(waits(peer(0)), what="bcast #1", is_blocking=False)
    ranks = (
        process(0, member(0, waits(peer(1), is_blocking=False)), member(0, group="v", size=2, sequence=0)),
        process(1, member(1), member(1, later, group="v", size=2, sequence=1)),
    )
    lines = verdict(*ranks)
    assert len(lines) == 1 and lines[0].startswith(
        "these wait for each other, if their scripts wait for that: rank 0 (pid 100) in allreduce #7 for rank 1; rank 1"
    )


def test_who_holds_up_what_runs_in_the_background():
    waiting = waits(peer(2), is_blocking=False)
    ranks = process(0, member(0, waiting)), process(1, member(1, waiting)), process(2, member(2))
    lines = verdict(*ranks)
    assert len(lines) == 1 and lines[0].startswith("2 ranks wait in the background for rank 2 (pid 102), which has not")


def test_a_call_hangs_upon_what_goes_on_in_a_worker():
    """Rank 1's script may do what it likes: its worker in the same call waits for rank 2, so rank 0 does."""
    behind = member(1, waits(peer(2), is_blocking=False), is_blocking=False)
    lines = verdict(process(0, member(0, waits(peer(1)))), process(1, behind), process(2, member(2)))
    assert len(lines) == 1 and lines[0].startswith("rank 1 (pid 101) waits in the background for rank 2 (pid 102)"), (
        lines
    )


def test_messages_that_are_not_all_listed_may_be_met():
    partial = replace(message("recv", peer(0, awaits="recv", opened="recv")), is_partial=True)
    ranks = (
        process(0, member(0, message("recv", peer(1, awaits="recv", opened="recv")))),
        process(1, member(1, partial)),
    )
    assert not any("each other" in line for line in verdict(*ranks))


def test_the_other_end_of_a_message_is_one_with_that_rank():
    """Rank 1 sends, but to another one."""
    elsewhere = message("recv", peer(0, awaits="recv", opened="recv"), peer(2, opened="send"))
    ranks = (
        process(0, member(0, message("recv", peer(1, awaits="recv", opened="recv")))),
        process(1, member(1, elsewhere)),
        process(2, member(2)),
    )
    assert verdict(*ranks)[0].startswith("these wait for each other: ")


def test_ranks_in_several_operations_are_no_certain_circle():
    """Rank 0's other operation may be the one that it goes on after."""
    short = Wait("barrier #3", (Peer(1, 102, HOST),), 1, 0.3, False, True)
    ranks = (
        process(
            0, member(0, waits(peer(1))), member(0, short, group="u", size=2), member(0, group="v", size=2, sequence=0)
        ),
        process(1, member(1), member(1, replace(waits(peer(0)), what="bcast #1"), group="v", size=2, sequence=1)),
        process(2, member(2), member(1, group="u", size=2)),
    )
    lines = verdict(*ranks)
    assert len(lines) == 1 and lines[0].startswith("these wait for each other, if their scripts wait for that: "), lines


def test_long_circles_are_cut():
    ranks = []
    for i in range(12):
        wait = Wait("allreduce #7", (Peer(1, 100 + (i + 1) % 12, HOST),), 1, 9.0, False, True)
        mine = member(0, wait, group=f"g{i}", size=2)
        ranks.append(process(i, mine, member(1, group=f"g{(i - 1) % 12}", size=2, sequence=6)))
    lines = verdict(*ranks)
    assert len(lines) == 1 and lines[0].endswith("; and 4 more") and lines[0].count(" in allreduce #7") == 8, lines


def test_two_threads_of_a_rank_are_no_circle():
    """One waits for a rank that is on its way through a call of the other's."""
    later = Wait("bcast #1", (Peer(0, 100, HOST),), 1, 9.0, False, True)
    inner = member(1, waits(peer(0)), sequence=7, is_busy=True)
    both = process(1, inner, member(1, later, group="v", size=2, sequence=1))
    lines = verdict(process(0, member(0, waits(peer(1))), member(0, group="v", size=2, sequence=0)), both)
    assert not any("each other: " in line for line in lines), lines


def test_messages_of_any_rank_are_no_circle():
    """A receive from any rank ends when the other one sends."""
    any_rank = message("recv", peer(1, awaits="any"), peer(2, awaits="any"), is_for_any=True)
    lines = verdict(
        process(0, member(0, any_rank)),
        process(1, member(1, message("recv", peer(0, awaits="recv", opened="recv")))),
        process(2, member(2)),
    )
    assert len(lines) == 1 and "for any of rank 1, rank 2" in lines[0], lines


def test_jobs_are_ranks_that_share_groups():
    """Through a third one, too, whichever is found first."""
    first = process(0, member(0, group="x", size=2))
    second = process(2, member(0, group="y", size=2))
    both = process(1, member(1, group="x", size=2), member(1, group="y", size=2))
    other = process(9, member(0, group="z", size=1))
    for order in ([first, second, both, other], [both, other, first, second], [second, first, other, both]):
        found = sorted([rank.pid for rank in job.ranks] for job in jobs(order, HOST))
        assert [sorted(pids) for pids in found] == [[100, 101, 102], [109]]


def test_json_is_read_as_it_was_written():
    rank = process(
        0,
        member(0, waits(peer(1), peer(2))),
        member(3, message("send", peer(1, "b", "send", "send recv")), failure="x"),
    )
    assert from_json(json.loads(json.dumps(rank.as_json()))) == rank


@pytest.mark.parametrize(
    ("value", "said"), [(0.314, "0.31 s"), (9.96, "10 s"), (42.4, "42 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")]
)
def test_times(value, said):
    assert seconds(value) == said
