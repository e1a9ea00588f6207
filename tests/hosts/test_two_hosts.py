"""Groups that span hosts: one script under mpiexec and torchrun, uneven nodes, groups across hosts, a lost rank."""

import subprocess
import sys

import jobs
import pytest
import testbed

LAUNCH_CHILD = str(jobs.TESTS / "launch_child.py")
COLLECTIVES_CHILD = str(testbed.HERE / "collectives_child.py")
KILLED_CHILD = str(testbed.HERE / "killed_child.py")
SECONDS = 100.0
GROUP_TIMEOUT_S = 10.0


def start(hosts, launcher: str, ranks, script: str, *args: str) -> jobs.Result:
    if launcher == "mpiexec":
        return hosts.mpiexec(ranks, [sys.executable, script, *args], timeout=SECONDS)
    return hosts.torchrun(ranks, script, args, timeout=SECONDS)


def check_reports(result: jobs.Result, placed: list[str]) -> None:
    """Every rank reported once, and all saw the ranks on the hosts where they were put."""
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == list(range(len(placed))), str(result)
    assert all(report["hosts"] == placed for report in result.reports), str(result)


@pytest.fixture(params=["mpiexec", "torchrun"])
def launcher(request) -> str:
    # torchrun's ranks too: only MPICH can be joined by ranks that its launcher did not start.
    request.getfixturevalue("mpich_launcher")
    return request.param


def test_the_same_script_on_two_hosts(two_hosts, launcher):
    result = start(two_hosts, launcher, 2, LAUNCH_CHILD)
    check_reports(result, ["node0", "node0", "node1", "node1"])


def test_open_mpi_refuses_ranks_over_hosts_that_it_did_not_start(two_hosts):
    mpiexec = jobs.find_mpiexec()
    if not jobs.is_open_mpi(mpiexec):
        pytest.skip(f"{mpiexec} is not Open MPI's; with MPICH such a job runs")
    result = two_hosts.torchrun(1, LAUNCH_CHILD, timeout=SECONDS)
    assert result.returncode != 0 and not result.reports, str(result)
    assert "this group spans nodes, and Open MPI" in result.stderr, str(result)
    assert "start the script by mpirun, or build accdp with MPICH" in result.stderr, str(result)


@pytest.mark.parametrize("owner", ["from mpi4py import MPI; ", ""], ids=["mpi4py", "accdp"])
@pytest.mark.parametrize("end", ["; group.close()", ""], ids=["closed", "open"])
def test_mpi_has_nothing_to_say_at_the_end(two_hosts, mpich_launcher, owner, end):
    """Over UCX each message that nobody has read is a warning, whoever calls MPI_Finalize."""
    code = f"{owner}import accdp_comm; group = accdp_comm.Communicator(); group.barrier(){end}"
    result = two_hosts.mpiexec(1, [sys.executable, "-c", code], timeout=SECONDS)
    assert result.returncode == 0 and not result.stdout + result.stderr, str(result)


BCAST = """
import json, resource, time
import numpy, accdp_comm
group = accdp_comm.Communicator()
data = numpy.full(4 << 20, float(group.rank))  # 32 MiB: more than a quarter of a second at 1 Gbit/s
group.barrier()
began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_THREAD)
group.bcast(data)
after, took = resource.getrusage(resource.RUSAGE_THREAD), time.perf_counter() - began
assert not data.any()
print(json.dumps({"sleeps_per_s": (after.ru_nvcsw - before.ru_nvcsw) / took}))
"""


def test_who_waits_for_a_slow_link_sleeps(two_hosts, mpich_launcher):
    """For a fifth of a millisecond at a time, where frames come every two; other waits look every 70 us."""
    result = two_hosts.mpiexec(1, [sys.executable, "-c", BCAST], timeout=SECONDS)
    assert result.returncode == 0 and len(result.reports) == 2, str(result)
    assert all(100 < report["sleeps_per_s"] < 7000 for report in result.reports), str(result)


def test_collectives_with_uneven_nodes(two_hosts, launcher):
    result = start(two_hosts, launcher, [2, 1], COLLECTIVES_CHILD)
    check_reports(result, ["node0", "node0", "node1"])


def test_collectives_on_four_hosts_of_one_rank(four_hosts, launcher):
    result = start(four_hosts, launcher, 1, COLLECTIVES_CHILD)
    check_reports(result, ["node0", "node1", "node2", "node3"])


@pytest.mark.parametrize(
    ("placed", "pause_s"),
    [((0, 0, 1, 1), 0), ((0, 0, 1), 0), ((0, 0, 1), 0.5)],
    ids=["with a neighbour", "alone on its host", "between calls"],
)
def test_killed_rank_on_the_other_host(two_hosts, mpich_launcher, placed, pause_s):
    """No launcher that would kill the survivors: plain processes that meet by env://. The last rank is the victim."""
    size, victim = len(placed), len(placed) - 1
    env = {"WORLD_SIZE": str(size), "MASTER_ADDR": two_hosts.addresses[0], "MASTER_PORT": "29500"}
    command = [sys.executable, KILLED_CHILD, str(GROUP_TIMEOUT_S), str(pause_s)]

    def ranks(out, err):
        return [
            two_hosts.popen(host, command, {**env, "RANK": str(rank)}, stdout=out, stderr=err, text=True)
            for rank, host in enumerate(placed)
        ]

    result = jobs.finish(ranks, two_hosts.processes, SECONDS)
    reports = {report["rank"]: report for report in result.reports}
    assert sorted(reports) == list(range(victim)), str(result)
    for report in reports.values():
        assert report["seconds"] < GROUP_TIMEOUT_S, str(result)
        assert report["said"][0] == report["said"][1], str(result)
        assert f"rank {victim} (pid" in report["said"][0], str(result)
    assert "Segmentation fault" not in result.stderr, str(result)


# As of more ranks than have lines between them, or where a firewall lets none through.
WITHOUT_LINES = """
import sys, time, torch, torch.distributed as dist
from accdp_comm import lines
lines._MOST = 0
dist.init_process_group("accdp")
dist.all_reduce(torch.ones(4))
time.sleep(8 * dist.get_rank())  # longer than a rank waits for the others where it would see them end
dist.destroy_process_group()
"""


def test_a_rank_that_ends_long_after_others_of_which_nothing_tells(two_hosts, mpich_launcher):
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": two_hosts.addresses[0], "MASTER_PORT": "29500"}
    command = [sys.executable, "-c", WITHOUT_LINES]

    def ranks(out, err):
        places = [{**env, "RANK": str(rank)} for rank in range(2)]
        return [two_hosts.popen(rank, command, place, stdout=out, stderr=err) for rank, place in enumerate(places)]

    result = jobs.finish(ranks, two_hosts.processes, SECONDS)
    assert result.returncode == 0, str(result)


def test_all_addresses_of_an_interface_are_known(two_hosts):
    """MASTER_ADDR may be any of them."""
    code = "from accdp_comm import addresses; print(*addresses.candidate_addresses())"
    script = 'ip address add 10.9.9.9/24 dev eth0 && "$0" -c "$1"; ip address delete 10.9.9.9/24 dev eth0'
    command = ["sh", "-c", script, sys.executable, code]
    env = {"MASTER_ADDR": "10.9.9.9"}
    with two_hosts.popen(0, command, env, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=SECONDS)[0].split() == ["10.9.9.9", two_hosts.addresses[0], "127.0.0.1"]


def test_mpiexec_ends_a_job_that_lost_a_rank(two_hosts, mpich_launcher):
    result = two_hosts.mpiexec(1, [sys.executable, KILLED_CHILD, str(GROUP_TIMEOUT_S)], timeout=SECONDS)
    assert result.returncode != 0, str(result)
