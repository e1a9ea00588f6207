"""Which of the ranks that failed is blamed."""

from types import SimpleNamespace

from accdp_comm.launch.output import Said
from accdp_comm.launch.ranks import Rank, first_failure


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
