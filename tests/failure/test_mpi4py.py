"""A rank that raises in a job in which mpi4py initialised MPI, and would wait for the others in MPI_Finalize."""

import re
import sys

import jobs
import pytest

pytest.importorskip("mpi4py")

RAISES = """
from mpi4py import MPI
import signal
import accdp_comm
comm = accdp_comm.Communicator({argument})
comm.barrier()
if comm.rank == 1:
    raise ValueError("rank 1 has had enough")
signal.pause()  # computes for hours
"""


@pytest.mark.parametrize("argument", ["", "MPI.COMM_WORLD"])
def test_an_exception_ends_the_job(argument):
    command = [*jobs.mpiexec_command(3), sys.executable, "-c", RAISES.format(argument=argument)]
    result = jobs.run(command, timeout=60.0)
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "ValueError: rank 1 has had enough" in result.stderr, str(result)


OUTSIDE = """
import sys
import mpi4py
mpi4py.rc.initialize = "before" not in sys.argv
from mpi4py import MPI
import accdp_comm
if "during" in sys.argv:
    accdp_comm.Communicator().close()
if "before" not in sys.argv:
    MPI.Finalize()
for given in ((MPI.COMM_WORLD,), ()) if "before" not in sys.argv else ((MPI.COMM_WORLD,),):
    try:
        accdp_comm.Communicator(*given)
    except accdp_comm.UsageError as error:
        print("told:", error)
"""


@pytest.mark.parametrize(("what", "told"), [("before", 2), ("after", 4), ("during", 4)])
def test_mpi_that_is_not_up_is_an_error_that_can_be_caught(what, told):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", OUTSIDE, what]
    result = jobs.run(command, env={"ACCDP_MPI": "on"}, timeout=60.0)
    assert result.stdout.count("told: ") == told and "finalised" in result.stdout, str(result)


@pytest.mark.parametrize(("how", "status", "got"), [("sys.exit()", 0, 2), ("sys.exit(3)", 3, 1)])
def test_who_leaves_a_with_block_by_sys_exit(how, status, got, tmp_path):
    """With status 0 it is done, and others get what it has sent; else it has failed, and they hear of it."""
    script = f"""
import pathlib, sys, time
import numpy as np
import accdp_comm
left = pathlib.Path({str(tmp_path / "left")!r})
try:
    with accdp_comm.Communicator() as comm:
        came = time.monotonic()
        while comm.rank == 1 and not left.exists() and time.monotonic() < came + {5 if status == 0 else 50}:
            time.sleep(0.01)
        comm.bcast(np.ones(3))
        print("got", flush=True)
        {how}
finally:
    left.touch()
"""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", script], timeout=60.0)
    assert (result.returncode == 0) == (status == 0) and result.stdout.count("got") == got, str(result)


GOES_ON = """
from mpi4py import MPI
import accdp_comm
comm = accdp_comm.Communicator()
comm.barrier()
MPI.Finalize()
with comm.split(0) as part:
    part.barrier()
    print("parted", part.size)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise ValueError('enough')"])
def test_a_group_of_one_node_outlives_mpi(end):
    """The script has finalised MPI, which from then on ends the process of who asks it for anything."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", GOES_ON.format(end=end)]
    result = jobs.run(command, timeout=60.0)
    assert result.stdout.count("parted 2") == 2 and (result.returncode != 0) == bool(end), str(result)
    assert "before initializing or after finalizing" not in result.stderr, str(result)
    assert result.stderr.count("ValueError: enough") == (2 if end else 0), str(result)


HANDLER = """
import mpi4py
mpi4py.rc(initialize=False, finalize=False, errors="default")
import accdp_comm
world = accdp_comm.Communicator()
from mpi4py import MPI
assert MPI.COMM_SELF.Get_errhandler() == MPI.ERRORS_RETURN
"""


def test_errors_of_mpi_that_belong_to_no_communicator_are_told():
    """As those of MPI_Testsome. MPICH tells them by the handler of MPI_COMM_SELF, which would end the process."""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", HANDLER])
    assert result.returncode == 0, str(result)


OPEN = """
import datetime, sys, time
from mpi4py import MPI
import torch, torch.distributed as dist
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=20))
other = 1 - dist.get_rank()
works = [dist.irecv(torch.zeros(300_000), other, tag=3)]
if sys.argv[1] == "sends":
    works.append(dist.isend(torch.zeros(300_000), other, tag=4))
MPI.Finalize()
for work in works:
    try:
        work.wait()
    except RuntimeError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("what", ["receives", "sends"])
def test_mpi_that_is_finalised_while_messages_are_under_way(what):
    """A thread of ours moves them. It stays out of MPI from then on, and who waits hears why."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", OPEN, what]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": "2x1"}, timeout=60.0)
    assert result.returncode == 0, str(result)
    works = 1 if what == "receives" else 2
    assert result.stdout.count("MPI was finalised before the group was closed") == 2 * works, str(result)


AFTER = """
import time
from mpi4py import MPI
import accdp_comm, numpy as np
comm = accdp_comm.Communicator(timeout_s=20)
comm.barrier()
MPI.Finalize()
for call in (comm.allreduce, lambda x: comm.send(x, 1 - comm.rank)):
    time.sleep(0.01)  # then a call looks at once what others say
    try:
        call(np.ones(3))
    except accdp_comm.MpiError as error:
        print(f"{comm.rank} said {error}", flush=True)
"""


def test_operations_after_mpi_was_finalised_say_so_and_name_the_rank():
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", AFTER], env={"ACCDP_TOPOLOGY": "2x1"})
    said = re.findall(r"(\d) said rank (\d) of 2, group \S+: (?:in .*: )?MPI was finalised", result.stdout)
    assert sorted(said) == [("0", "0")] * 2 + [("1", "1")] * 2, str(result)
