"""A sender whose buffer is unmapped while the message is under way may crash; its receiver does not, and names it."""

import signal
import subprocess
import sys

import jobs
import pytest

UNMAPS = """
import ctypes, mmap
import accdp_comm, numpy as np
comm = accdp_comm.Communicator(timeout_s=20)
x = np.frombuffer(mmap.mmap(-1, 8 << 20), np.uint8)
comm.barrier()
if comm.rank == 0:
    sent = comm.isend(x, 1)
    ctypes.CDLL(None).munmap(ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))
    comm.send(np.ones(1), 1, tag=1)
    try:
        sent.wait()
    except accdp_comm.Error as error:
        print("rank 0 said", error)
else:
    comm.recv(np.zeros(1), 0, tag=1)
    try:
        comm.recv(np.zeros(8 << 20, np.uint8), 0)
    except accdp_comm.Error as error:
        print("rank 1 said", error)
"""


@pytest.mark.parametrize("cma", ["auto", "off"])
def test_a_buffer_that_is_unmapped_during_its_send(cma):
    master = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "ACCDP_CMA": cma}

    def start(out, err):
        command = [sys.executable, "-c", UNMAPS]
        envs = [jobs.environment(RANK=str(rank), **master) for rank in range(2)]
        started.extend(subprocess.Popen(command, stdout=out, stderr=err, env=env, text=True) for env in envs)
        return started

    started: list[subprocess.Popen] = []
    result = jobs.finish(start, lambda: [each.pid for each in started if each.poll() is None], 60.0)
    sender, receiver = (each.returncode for each in started)
    assert receiver == 0, str(result)
    assert "rank 1 said rank 1 of 2" in result.stdout and "rank 0 (pid " in result.stdout, str(result)
    assert sender == -signal.SIGSEGV or (sender == 0 and "rank 0 said" in result.stdout), str(result)
