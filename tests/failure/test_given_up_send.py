"""A send between nodes that was given up: what its sender does with the buffer then never arrives as the message."""

import sys

import jobs
import pytest

# Rank 1 receives when rank 0 has given up and told so; until rank 1 looks, MPI has neither message nor notice for it.
LATE = """
import sys, time
import accdp_comm, numpy as np
from accdp_comm import PeerTimeout
world = accdp_comm.Communicator()
arrived = []
for trial in range(12):
    comm = accdp_comm.Communicator(timeout_s=30)
    data = np.full(int(sys.argv[1]), 1 - world.rank, np.uint8)
    world.barrier()
    if world.rank == 0:
        comm._core.timeout_s = 0.05  # only now: to form the group may take longer
        try:
            comm.send(data, 1)
        except PeerTimeout:
            data[:] = 77  # its caller has it back
    else:
        time.sleep(0.5)
        try:
            comm.recv(data, 0)
            arrived.append(int(data.max()))
        except PeerTimeout as error:
            assert "send of" in str(error), error
    world.barrier()
    comm.close()
print("arrived:", sorted(set(arrived)), flush=True)
world.barrier()
"""


@pytest.mark.parametrize("size", [70_000, 200_000, 2_000_000])
def test_what_a_buffer_holds_after_its_send_was_given_up_does_not_arrive(size):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", LATE, str(size)]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": "2x1"}, timeout=90.0)
    # Not the status: after a group has failed nobody finalises MPI, and whoever leaves later mpiexec may kill.
    assert "77" not in result.stdout and result.stdout.count("arrived:") == 2, str(result)
