"""`accdp run --hosts` from a login node: ranks on two hosts, each with a GPU there, and failures across hosts."""

import os
import sys

import jobs
import pytest

ACCDP_RUN = [sys.executable, "-m", "accdp_comm", "run"]
STAND_INS = jobs.TESTS / "launch" / "stand_ins"
SECONDS = 90.0


@pytest.fixture
def places(two_hosts, mpich_launcher, tmp_path) -> list[str]:
    """The option that names both hosts, with two ranks each."""
    path = tmp_path / "hosts"
    path.write_text("".join(f"{address}:2\n" for address in two_hosts.addresses))
    return ["--hosts", str(path)]


def test_a_group_over_two_hosts(two_hosts, places):
    script = str(jobs.TESTS / "launch_child.py")
    result = two_hosts.login([*ACCDP_RUN, *places, script], {"UCX_TLS": "tcp,self"}, SECONDS)
    assert result.returncode == 0, str(result)
    assert [row["hosts"] for row in result.reports] == [["node0", "node0", "node1", "node1"]] * 4, str(result)


def test_each_rank_gets_a_gpu_of_its_own_host(two_hosts, places, tmp_path):
    """Every host lists the same two stand-ins; the login node's are none of the job's."""
    rows = "".join(f"{i}, GPU-{i}, Stand-in, 81920, 9.0, Disabled, 00000000:0{i}:00.0\n" for i in range(2))
    (tmp_path / "gpus.csv").write_text(rows)
    env = {"PATH": f"{STAND_INS}{os.pathsep}{os.environ['PATH']}", "STAND_IN_GPUS": str(tmp_path)}
    script = "echo $RANK $(hostname) $CUDA_VISIBLE_DEVICES $LOCAL_RANK $ACCDP_LOCAL_RANK"
    result = two_hosts.login([*ACCDP_RUN, "--ranks-per-gpu", "1", *places, "sh", "-c", script], env, SECONDS)
    found = sorted(line.split() for line in result.stdout.splitlines())
    wanted = [[str(rank), f"node{rank // 2}", f"GPU-{rank % 2}", "0", str(rank % 2)] for rank in range(4)]
    assert found == wanted, str(result)

    shared = ["--mps", "on", "--gpus", "0", "--ranks-per-gpu", "2", *places, "sh", "-c", script]
    result = two_hosts.login([*ACCDP_RUN, *shared], env | {"XDG_RUNTIME_DIR": str(tmp_path)}, SECONDS)
    assert result.returncode == 2 and "not on node0" in result.stderr, str(result)


def test_a_failure_on_one_host_ends_the_other(two_hosts, places):
    script = "import os, time; 1 / 0 if os.environ['RANK'] == '3' else time.sleep(600)"
    result = two_hosts.login([*ACCDP_RUN, "--grace", "1", *places, sys.executable, "-c", script], {}, SECONDS)
    assert result.returncode == 1 and "accdp run: rank 3 (pid" in result.stderr, str(result)
    assert "host node1) ended with status 1" in result.stderr.splitlines()[-1], str(result)
