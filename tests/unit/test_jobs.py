"""What tests rely on in the jobs that they start."""

import socket
import subprocess
import sys

import jobs
import pytest

SAYS = "import os, sys; print('a', 1, None); print('b', 2, file=sys.stderr); os._exit(0)"


@pytest.mark.parametrize("unbuffered", ["", "1"])  # some machines have that set for all programs
def test_lines_are_written_in_one_piece(unbuffered):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps apart what was written apart
    with ours, theirs:
        argv, env = [sys.executable, "-c", SAYS], jobs.environment(PYTHONUNBUFFERED=unbuffered)
        subprocess.run(argv, env=env, stdout=theirs, stderr=theirs, check=True, timeout=60)
        assert [ours.recv(100), ours.recv(100)] == [b"a 1 None\n", b"b 2\n"]


def test_a_job_that_takes_too_long_says_where_its_ranks_are():
    sleeps = "import time\ndef stands_still(): time.sleep(60)\nstands_still()"
    with pytest.raises(AssertionError, match="not finished within 3.0 s") as raised:
        jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", sleeps], timeout=3.0)
    assert "in stands_still" in str(raised.value), raised.value  # mpiexec may end the others before they have said it
