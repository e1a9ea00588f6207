"""Which of the ranks that failed is blamed."""

from types import SimpleNamespace

from accdp_comm.launch.output import Said
from accdp_comm.launch.ranks import Rank, explain, first_failure, some_of


def ranks(*ends: tuple[float, int, float, str]) -> tuple[list[Rank], SimpleNamespace]:
    """Ranks 0, 1, ... by when they ended, with what, when their traceback began and its last line ("": none)."""
    made, said = [], {}
    for number, (ended_at, code, at, error) in enumerate(ends):
        made.append(Rank(number, None, {"host": "n1"}, pid=100 + number, code=code, ended_at=ended_at))
        lines = [b"Traceback (most recent call last):", error.encode()] if error else []
        said[number] = [Said(line, at) for line in lines]
    return made, SimpleNamespace(last_error=said.get)


def gone(rank: int) -> str:
    return f"accdp_comm.PeerDied: rank {rank} (pid {100 + rank}, host n1) left the group during allreduce #2"


def test_whom_the_errors_of_others_name():
    """Rank 1 was heard of last."""
    made, output = ranks((1.0, 1, 0.5, gone(2)), (3.0, 1, 2.5, "ValueError: boom"), (2.0, 1, 1.5, gone(1)))
    assert first_failure(made, made, output).rank == 1


def test_ranks_that_name_each_other():
    made, output = ranks((2.0, 1, 1.5, gone(1)), (1.0, 1, 0.5, gone(0)))
    assert first_failure(made, made, output).rank == 1


def test_who_is_named_and_did_not_fail():
    """Rank 1 left in order, or was ended with the others."""
    made, output = ranks((2.0, 1, 1.5, gone(1)), (1.0, 0, 0.0, ""))
    assert first_failure(made[:1], made, output).rank == 0


def test_the_launcher_ended_the_job():
    """All were told to end; one had an error before."""
    made, output = ranks((2.0, 143, 0.0, ""), (3.0, 143, 1.5, "ValueError: boom"))
    assert first_failure([], made, output, is_launchers=True).rank == 1
    assert first_failure([], made, output) is None


def test_an_error_that_a_rank_went_on_after():
    """It is older than the first end by more than it takes to leave."""
    made, output = ranks((30.0, 1, 29.5, "ValueError: boom"), (31.0, 143, 1.0, "KeyError: went on"))
    assert first_failure(made[:1], made, output).rank == 0


def test_a_process_of_that_number_on_another_host():
    made, output = ranks((1.0, 1, 0.5, gone(1)), (2.0, 1, 1.5, "ValueError: boom"))
    made[1].hello["host"] = "n2"
    assert first_failure(made, made, output).rank == 0


def test_who_had_ended_before():
    made, output = ranks((1.0, 0, 0.0, ""), (2.0, 3, 0.0, ""), (3.0, 0, 0.0, ""))
    lines = []
    output.say, output.is_last = lines.append, lambda rank, said: False
    explain(made[1], made, output)
    assert "(after rank 0 with status 0)" in lines[0], lines


def test_some_of_many():
    assert some_of(list("abcdefgh")).endswith("g, h") and some_of(list("abcdefghi")).endswith("h and 1 more")
