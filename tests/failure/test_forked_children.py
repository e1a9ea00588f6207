"""A process that a rank forked is no rank: it is told so, and the group does not notice its end."""

import sys
from pathlib import Path

import jobs
import pytest

CHILD = str(Path(__file__).with_name("fork_child.py"))


@pytest.mark.parametrize("kind", ["communicator", "torch"])
def test_a_forked_process_leaves_the_group_alone(kind):
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, CHILD, kind], timeout=60)
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == [0, 1], str(result)


PENDING = """
import os, time
import numpy as np
import accdp_comm
comm = accdp_comm.Communicator()
comm.barrier()
if comm.rank == 1:
    time.sleep(1)
work = accdp_comm.allreduce_compressed(np.ones(1000, np.float32), group=comm, async_op=True)
if comm.rank == 0 and os.fork() == 0:
    try:
        comm.barrier()
    except accdp_comm.UsageError as error:
        print("told:", error, flush=True)
    comm.close()
    os._exit(0)
work.wait()
comm.barrier()
if comm.rank == 0:
    print("status", os.wait()[1], flush=True)
"""


CLOSED = """
import os, sys
import numpy as np
import accdp_comm
closed, comm = accdp_comm.Communicator(), accdp_comm.Communicator(timeout_s=20)
closed.barrier()
closed.close()
for turn in range(20):
    work = comm.irecv(np.empty(100_000), 1 - comm.rank)
    comm.send(np.full(100_000, turn), 1 - comm.rank)
    child = os.fork()
    if child == 0:
        del closed, work
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    work.wait()
    comm.barrier()
print("goes on", flush=True)
"""


def test_a_group_that_was_closed_before_the_fork_is_the_parents_to_end():
    """What is left of it in MPI is read when it ends, and would be taken from the parent."""
    result = jobs.run(
        [*jobs.mpiexec_command(2), sys.executable, "-c", CLOSED], env={"ACCDP_TOPOLOGY": "2x1"}, timeout=60
    )
    assert result.returncode == 0 and result.stdout.count("goes on") == 2, str(result)


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_a_process_forked_during_an_operation_does_not_wait_for_it(topology):
    """Nor for the thread that carries it out, which is not in the forked process."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", PENDING]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=40)
    assert result.returncode == 0 and "status 0" in result.stdout, str(result)
    assert "told: rank 0 of 2" in result.stdout and "which was forked from it" in result.stdout, str(result)
