"""An exchange between MPI ranks that timed out: who comes late writes to no memory that has another use by now."""

import sys

import jobs
import pytest

pytest.importorskip("mpi4py")

LATE = """
import ctypes, time
from mpi4py import MPI
from accdp_comm import Communicator, PeerTimeout, _mpi

Communicator().close()  # joins the ranks
world = MPI.COMM_WORLD
exchange = _mpi.Exchange()
if world.rank == 0:
    try:
        exchange.allgather(b"early", 0.2)
    except PeerTimeout as error:
        print(error, flush=True)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(ctypes.c_size_t(8)) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 0xAA, 8)
    world.send(None, 1)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        world.Iprobe()  # lets MPI work
    changed = [ctypes.string_at(block, 8) for block in blocks if ctypes.string_at(block, 8) != bytes([0xAA]) * 8]
    print("changed:", changed, flush=True)
    world.send(None, 1)
else:
    world.recv()
    try:
        exchange.allgather(b"late", 0.5)
    except PeerTimeout as error:
        print(error, flush=True)
    world.recv()
"""


def test_memory_of_an_exchange_that_timed_out_is_not_used_again():
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", LATE], timeout=60.0)
    assert "waiting for other MPI ranks in the exchange of sizes" in result.stdout, str(result)
    assert "changed: []" in result.stdout, str(result)


FORMING = """
import sys
import numpy as np
from mpi4py import MPI
from accdp_comm import Communicator, PeerTimeout

world = MPI.COMM_WORLD
given = (world,) if "given" in sys.argv else ()
Communicator(*given).close()
if world.rank == 1:
    world.recv(source=0)
try:
    Communicator(*given, timeout_s=0.5)
except PeerTimeout as error:
    print(error, flush=True)
if world.rank == 0:
    world.send(None, 1)
world.Barrier()
for number in range(3):
    got = np.zeros(2)
    world.Iallgather(np.full(1, 10.0 * number + world.rank), got).Wait()
    assert got.tolist() == [10 * number, 10 * number + 1], got
with Communicator(*given, timeout_s=20) as again:
    print("again", again.allreduce(np.ones(1)))
"""


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize("what", ["given", "of the job"])
def test_a_late_rank_leaves_nobody_out_of_step(what, topology):
    """Neither in the caller's own calls of MPI nor when the ranks try again."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", FORMING, what]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=60.0)
    assert result.returncode == 0 and result.stdout.count("again [2.]") == 2, str(result)
    assert "some of 2 ranks did not come within 0.5 s (forming the group)" in result.stdout, str(result)


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from accdp_comm import Communicator, PeerTimeout

first = Communicator()
if first.rank == 0:
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        Communicator()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    first.send(np.ones(1), 1)
else:
    first.recv(np.ones(1), 0)
    try:
        Communicator(timeout_s=0.5)
    except PeerTimeout as error:
        print(error, flush=True)
first.barrier()
print("again", Communicator(timeout_s=20).allreduce(np.ones(1)))
"""


AGAIN = """
import accdp_comm
from accdp_comm import _mpi
world = accdp_comm.Communicator()
exchange = _mpi.Exchange()
for _ in range(2 if world.rank == 0 else 0):  # the other does not come
    try:
        exchange.allgather(b"", 0.2)
    except accdp_comm.Error as error:
        print(type(error).__name__, flush=True)
world.barrier()
"""


def test_an_exchange_that_was_given_up_takes_no_more():
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", AGAIN], timeout=60.0)
    assert result.stdout.split() == ["PeerTimeout", "UsageError"], str(result)


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_an_interrupted_rank_can_try_again(topology):
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", INTERRUPTED]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=60.0)
    assert result.returncode == 0, str(result)
    assert "interrupted" in result.stdout and result.stdout.count("again [2.]") == 2, str(result)
