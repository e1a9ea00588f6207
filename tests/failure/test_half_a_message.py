"""A rank stands still in the middle of a message to another node: whoever gave up waiting has its memory to itself."""

import jobs
import pytest

TIMEOUT_S = 1.0


@pytest.mark.parametrize(("operation", "baseline"), [("recv", "off"), ("broadcast", "off"), ("broadcast", "mpi")])
@pytest.mark.parametrize("stopped_s", [1.8, 4.5], ids=["for a while", "for too long"])
def test_memory_of_a_receive_that_was_given_up(play, operation, baseline, stopped_s):
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("several nodes without a launcher need an MPI of the MPICH family")
    if jobs.is_intel_mpi(jobs.find_mpiexec()):
        pytest.skip("libfabric's connection may stand still after such a receive, for other groups, too")
    variables = {"ACCDP_TOPOLOGY": "0,1", "UCX_TLS": "tcp,self", "ACCDP_BASELINE": baseline}
    arguments = {"operation": operation, "timeout_s": TIMEOUT_S, "stopped_s": stopped_s}
    # A rank that stands between the comparison of a call and its own part in MPI's broadcast does not begin that part
    # once the group has failed, and MPI has no way to take the others' back: as if it had been stopped for too long.
    for _ in range(6 if baseline == "mpi" and stopped_s < 2 else 1):
        play.start("reused", 2, env={0: variables, 1: variables}, **arguments)
        play.end()
        first, *later = play.facts(1, "raised")
        assert f"Timed out after {TIMEOUT_S:g} s" in first["text"], first
        assert play.facts(1, "counted")[0]["others"] == 0
        # Where the rest of a message is still to come, MPI must not be let work. Whether it is, of a rank that was
        # stopped for too long, is chance: it may have stood between two messages.
        assert all("MPI is not used any more in this process" in fact["text"] for fact in later), later
        assert [player.status for player in play.cast] == [0, 0], play.cast[1].printed()
        if not later:
            return
    assert stopped_s > 2, later
