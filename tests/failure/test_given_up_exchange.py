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
if world.rank == 0:
    try:
        _mpi.allgather(b"early", 0.2)
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
        _mpi.allgather(b"late", 0.5)
    except PeerTimeout as error:
        print(error, flush=True)
    world.recv()
"""


def test_memory_of_an_exchange_that_timed_out_is_not_used_again():
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", LATE], timeout=60.0)
    assert "exchange of sizes Timed out" in result.stdout, str(result)
    assert "changed: []" in result.stdout, str(result)
