"""Processes that can have no more threads: what nobody would run ends, and its group with it."""

import sys

import jobs

LIMITED = """
import resource
import accdp_comm, numpy as np
comm = accdp_comm.Communicator()
data = np.zeros(10)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))  # no room for a thread's stack
try:
    comm.irecv(data, 0, tag=3).wait()
except RuntimeError as error:
    print("receive:", error)
resource.setrlimit(resource.RLIMIT_AS, before)
try:
    comm.send(np.ones(10), 0, tag=3)
except accdp_comm.Error as error:
    print("send:", error)
print("data:", data.max())
"""


def test_a_message_that_nobody_would_move_is_given_up():
    result = jobs.run([sys.executable, "-c", LIMITED], timeout=60.0)
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and lines[0].startswith("receive: Resource temporarily unavailable"), str(result)
    assert "failed in recv of 80 bytes, tag 3: " in lines[1], str(result)
    assert lines[2] == "data: 0.0", str(result)  # nothing that came later was put there


QUEUED = """
import os, resource, sys
import accdp_comm, torch
import torch.distributed as dist
dist.init_process_group("accdp")
data = torch.ones(10)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20) + int(sys.argv[1]) * (stack + (1 << 20)), before[1]))
work = error = None
try:
    work = dist.all_reduce(data, async_op=True)
    work.get_future().wait()  # on the worker
except RuntimeError as caught:
    error = caught
resource.setrlimit(resource.RLIMIT_AS, before)
print("first:", error or "done")
try:
    dist.all_reduce(data)
    print("then: done")
except RuntimeError as error:
    print("then:", error)
"""


def queued(threads: int) -> list[str]:
    result = jobs.run([sys.executable, "-c", QUEUED, str(threads)], timeout=60.0)
    assert result.returncode == 0, str(result)
    return result.stdout.splitlines()


def test_an_operation_that_nobody_would_run_is_given_up():
    first, then = queued(0)
    why = "aborted the group: all_reduce has no thread to run on: Resource temporarily unavailable"
    assert first.startswith("first: ") and then.startswith("then: ") and why in first and why in then, (first, then)


def test_one_thread_is_enough():
    assert queued(1) == ["first: done", "then: done"]
