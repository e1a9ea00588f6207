"""A message of a process that can have no more threads: nobody would move it, so it ends, and its group with it."""

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
