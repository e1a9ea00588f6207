"""Threads that form groups at the same time, each in its own order: over nodes, where MPI makes a communicator each."""

import sys

import jobs

SPLITS = """
import threading
import numpy as np
import accdp_comm
worlds = [accdp_comm.Communicator(timeout_s=30) for _ in range(2)]
wrong = []

def split(number):
    for turn in range(30):
        with worlds[number].split(0) as part:
            x = np.full(3, 1000.0 * number + turn)
            part.allreduce(x)
            if not np.all(x == 2 * (1000.0 * number + turn)):
                wrong.append((number, turn, x))

threads = [threading.Thread(target=split, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("wrong", len(wrong), *wrong[:3], flush=True)
"""

OF_MPI4PY = """
import threading
import numpy as np
from mpi4py import MPI
import accdp_comm
given, rank, sums = [MPI.COMM_WORLD.Dup() for _ in range(4)], MPI.COMM_WORLD.rank, {}

def form(number):
    with accdp_comm.Communicator(given[number], timeout_s=20) as group:
        x = np.full(3, float(number))
        group.allreduce(x)
        sums[number] = float(x[0])

threads = [threading.Thread(target=form, args=(number,)) for number in (range(4) if rank else reversed(range(4)))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("sums", [sums.get(number) for number in range(4)], flush=True)
"""


def test_groups_with_one_name():
    """Of two communicators that are split at once; their parts have the same name and the same members."""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", SPLITS], env={"ACCDP_TOPOLOGY": "2x1"})
    assert result.returncode == 0 and result.stdout.count("wrong 0") == 2, str(result)


def test_first_groups_of_all_threads():
    """MPI's world is joined by whichever comes first, on each rank another one."""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", OF_MPI4PY], env={"ACCDP_TOPOLOGY": "2x1"})
    assert result.returncode == 0 and result.stdout.count("sums [0.0, 2.0, 4.0, 6.0]") == 2, str(result)
