"""Jobs in which some ranks leave MPI to us, others to mpi4py, and others never come at all."""

import sys

import jobs
import pytest

from accdp_comm.siblings import Siblings

pytest.importorskip("mpi4py")

# What a rank does, by name; the first word of the arguments is rank 0's.
SCRIPT = """
import ctypes, os, sys, time
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
what = sys.argv[1:][rank]
if "titled" in what:  # as setproctitle writes over the variables that the process was given
    os.environ.update(dict(os.environ))
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    ctypes.memset(start, 0, end - start)
    time.sleep(3)
if "mpi4py" in what:
    from mpi4py import MPI
if "accdp" in what:
    import accdp_comm
if "group" in what:
    with accdp_comm.Communicator(timeout_s=float(os.environ["LIMIT"])) as comm:
        comm.barrier()
if "catches" in what:
    try:
        accdp_comm.Communicator(timeout_s=float(os.environ["LIMIT"]))
    except accdp_comm.Error as error:
        print("caught", type(error).__name__)
if "finalizes" in what:
    MPI.Finalize()
print("done")
"""


def play(*what: str, limit_s: float = 60.0, timeout: float = 30.0) -> jobs.Result:
    command = [*jobs.mpiexec_command(len(what)), sys.executable, "-c", SCRIPT, *what]
    return jobs.run(command, env={"LIMIT": str(limit_s)}, timeout=timeout)


@pytest.mark.parametrize(
    "what",
    [
        ("accdp group", "mpi4py accdp group"),
        ("mpi4py accdp group", "accdp group", "mpi4py accdp group"),
        ("mpi4py accdp group finalizes", "accdp group"),
        ("mpi4py accdp group", "mpi4py accdp group"),
    ],
    ids=" / ".join,
)
def test_whoever_owns_mpi_all_ranks_end(what):
    result = play(*what)
    assert result.returncode == 0 and result.stdout.count("done") == len(what), str(result)


def test_a_rank_that_hides_its_variables_behind_a_title_is_waited_for():
    result = play("accdp group", "titled accdp group")
    assert result.returncode == 0 and result.stdout.count("done") == 2, str(result)


def test_a_rank_that_ends_before_mpi():
    result = play("accdp", "accdp group")
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "MPI_Init in process" in result.stderr and "cannot finish:" in result.stderr, str(result)


def test_no_rank_needs_mpi():
    result = play("accdp", "accdp")
    assert result.returncode == 0 and result.stdout.count("done") == 2, str(result)


@pytest.mark.parametrize("other", ["accdp group", "mpi4py accdp group"])
def test_a_rank_that_leaves_mpi_to_mpi4py_and_makes_no_group(other):
    result = play("mpi4py accdp", other)
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "PeerDied: rank 0 (pid " in result.stderr, str(result)
    assert "has left MPI without having made a group" in result.stderr, str(result)


@pytest.mark.parametrize("other", ["accdp group", "mpi4py accdp group", "accdp catches", "mpi4py accdp catches"])
def test_a_rank_that_knows_nothing_of_us(other):
    """Nothing tells that it will not come: the time-out says so."""
    result = play("mpi4py", other, limit_s=2.0)
    assert result.seconds < 30, str(result)
    if "catches" in other:
        assert "caught PeerTimeout" in result.stdout, str(result)
    else:
        assert "PeerTimeout: Timed out after 2 s (timeout) waiting for all ranks of MPI_COMM_WORLD" in result.stderr
        assert result.returncode != 0


def test_ranks_that_cannot_be_seen_are_not_taken_for_dead(monkeypatch):
    """As below a starter of containers: its children are not all the ranks of the host."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    siblings = Siblings()
    assert [siblings.gone() for _ in range(3)] == ["", "", ""]


# A launcher, which counts two ranks and is slow to make its second child one.
SLOW_LAUNCHER = """
import os, sys, time
with open("/proc/self/comm", "w") as name:
    name.write("hydra_pmi_test")
os.environ["MPI_LOCALNRANKS"] = "2"
ranks = []
looked, says = os.pipe()
os.set_inheritable(says, True)
for rank in "01":
    ranks.append(os.fork())
    if ranks[-1] == 0:
        if rank == "1":
            os.close(says)
            os.read(looked, 1)  # until rank 0 has looked, or ended
            os._exit(0)
        os.environ["PMI_RANK"] = rank
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], str(says)])
os.close(says)
for rank in ranks:
    os.waitpid(rank, 0)
"""
LOOKS = """
import os, sys, time
from accdp_comm.siblings import Siblings
siblings, said = Siblings(), []
for _ in range(8):
    said.append(siblings.gone())
    time.sleep(0.1)
os.close(int(sys.argv[1]))
until = time.monotonic() + 30
while not said[-1] and time.monotonic() < until:
    said.append(siblings.gone())
    time.sleep(0.2)
print(said.count(""), said[-1])
"""


def test_a_rank_that_is_not_yet_one_is_not_taken_for_dead():
    """Between fork and exec it shows the launcher's variables. When it has ended that is seen."""
    result = jobs.run([sys.executable, "-c", SLOW_LAUNCHER, LOOKS])
    looks, _, gone = result.stdout.strip().partition(" ")
    assert gone == "1 of the 2 ranks on this host have ended" and int(looks) >= 8, str(result)
