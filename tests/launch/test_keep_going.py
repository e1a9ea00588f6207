"""`accdp run --keep-going`: ranks fail, and the others go on."""

import os
import re
import signal
from pathlib import Path

import jobs
import pytest
from running import ACCDP, act

RANK = str(jobs.TESTS / "launch" / "keep_going_rank.py")
REFUSED = "--keep-going: expected one host, with mpiexec or torchrun, or --hosts with mpiexec and an MPI of the MPICH"


def run(*words: str) -> jobs.Result:
    return jobs.run([*ACCDP, "run", "--keep-going", *words], timeout=60.0)


@pytest.mark.parametrize(
    ("launcher", "failing"),
    [("mpiexec", ("0=exits",)), ("mpiexec", ("1=raises", "2=is_killed")), ("torchrun", ("0=is_killed", "3=exits"))],
    ids=str,
)
def test_those_that_live_end_the_job_well(launcher, failing):
    """Whoever fails: torch's store is not rank 0's."""
    result = run("--launcher", launcher, "-n", "4", RANK, *failing)
    assert result.returncode == 0, str(result)
    gone = {int(word[0]) for word in failing}
    living = [rank for rank in range(4) if rank not in gone]
    told = sorted(result.reports, key=lambda report: report["rank"])
    assert len({report.pop("guard") for report in told}) == len(told)
    bits = sum(1 << rank for rank in living)
    assert told == [{"rank": rank, "place": [place, len(living)], "bits": bits} for place, rank in enumerate(living)], (
        str(result)
    )
    accounts = re.findall(
        r"^accdp run: rank (\d) .* (?:ended with status \d|was killed by SIGKILL)", result.stderr, re.M
    )
    assert sorted(map(int, accounts)) == sorted(gone), str(result)
    assert result.stderr.count("    ValueError: this one's own") == ("1=raises" in failing), str(result)


def test_where_all_fail_the_job_does():
    result = run("-n", "2", RANK, "0=exits", "1=exits")
    assert result.returncode == 3, str(result)
    assert result.stderr.count("ended with status 3") == 2, str(result)


def test_ctrl_c_is_why_the_job_ends():
    """However many ranks have failed before."""
    words = ["run", "--keep-going", "-n", "3", RANK, "1=exits", "0=lingers", "2=lingers"]
    result = act(words, 2, lambda process, _: process.send_signal(signal.SIGINT), {}, marker="ended with status 3")
    assert result.returncode == 128 + signal.SIGINT and "accdp run: ended by SIGINT" in result.stderr, str(result)


def test_a_launcher_that_is_killed_ends_the_job():
    """Also one in which a rank has already ended well, and another failed."""

    def kill_mpiexec(process, _):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        [mpiexec] = [pid for pid in children if b"mpiexec" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
        os.kill(int(mpiexec), signal.SIGKILL)

    words = ["run", "--keep-going", "-n", "3", RANK, "1=exits", "2=lingers"]
    result = act(words, 2, kill_mpiexec, {}, marker="ended with status 3")
    assert sorted(report["rank"] for report in result.reports) == [0, 2]
    assert result.returncode == 128 + signal.SIGKILL, str(result)
    assert "accdp run: mpiexec ended the job when it was killed by SIGKILL" in result.stderr, str(result)


def test_a_guard_that_is_killed_is_told_of():
    words = ["run", "--keep-going", "-n", "2", RANK, "0=lingers", "1=lingers"]
    result = act(words, 2, lambda _, told: os.kill(told[0]["guard"], signal.SIGKILL), {})
    assert result.returncode == 0 and "lost its guard" in result.stderr, str(result)


def test_a_rank_that_somebody_told_to_end_is_told_of():
    """By its guard, as the services of a host that goes down do: nobody else says that it is not there any more."""
    words = ["run", "--keep-going", "-n", "2", RANK, "0=lingers", "1=lingers"]
    result = act(words, 2, lambda _, told: os.kill(told[0]["guard"], signal.SIGTERM), {})
    account = rf"^accdp run: rank {result.reports[0]['rank']} \(pid \d+, host \S+\) was killed by SIGTERM"
    assert result.returncode == 0 and re.search(account, result.stderr, re.M), str(result)


def test_hosts_want_an_mpi_whose_ranks_mpiexec_need_not_know(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:3\n")
    result = run("--hosts", str(hosts), RANK, "0=is_killed")
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        assert result.returncode == 2 and REFUSED in result.stderr, str(result)
    else:
        assert result.returncode == 0 and sorted(report["rank"] for report in result.reports) == [1, 2], str(result)


def test_srun_is_refused(tmp_path):
    jobs.write_program(tmp_path / "srun", "exit 9")
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    result = jobs.run([*ACCDP, "run", "--keep-going", "--launcher", "srun", "-n", "2", RANK], env=env)
    assert result.returncode == 2 and REFUSED in result.stderr, str(result)
