"""The relay between MPICH and srun: what passes unchanged, what does not, and what is left afterwards."""

import array
import contextlib
import fcntl
import os
import resource
import socket
import subprocess
import termios
import time

import pytest

from accdp_comm import pmi_relay

SECONDS = 10.0


@pytest.fixture
def ends():
    """The descriptor that MPICH uses, and the launcher at the other end."""
    rank, launcher = socket.socketpair()
    for end in (rank, launcher):
        end.settimeout(SECONDS)
    os.set_inheritable(rank.fileno(), True)
    with rank, launcher:
        yield rank, launcher


def _until_read(end: socket.socket) -> None:
    """Wait until the other side has read all that this end has sent."""
    unread = array.array("i", [1])
    limit = time.monotonic() + SECONDS
    while unread[0]:
        fcntl.ioctl(end, termios.TIOCOUTQ, unread)
        assert time.monotonic() < limit, "not read in time"


def test_the_limit_of_values_leaves_room_for_the_rest_of_a_request(ends):
    rank, launcher = ends
    with pmi_relay.relayed(rank.fileno()):
        rank.sendall(b"cmd=get_maxes\n")
        assert launcher.recv(100) == b"cmd=get_maxes\n"
        launcher.sendall(b"cmd=maxes rc=0 kvsname_max=256 keylen_max=256 ")
        _until_read(launcher)  # an answer may come in pieces
        launcher.sendall(b"vallen_max=1024\n")
        assert rank.recv(100) == b"cmd=maxes rc=0 kvsname_max=256 keylen_max=256 vallen_max=896\n"


def test_a_smaller_limit_stays(ends):
    rank, launcher = ends
    with pmi_relay.relayed(rank.fileno()):
        launcher.sendall(b"cmd=maxes rc=0 vallen_max=512\n")
        assert rank.recv(100) == b"cmd=maxes rc=0 vallen_max=512\n"


def test_descriptors_may_have_any_number(ends):
    rank, launcher = ends
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            opened.enter_context(open(os.devnull))
        with pmi_relay.relayed(rank.fileno()):
            rank.sendall(b"cmd=get_maxes\n")
            assert launcher.recv(100) == b"cmd=get_maxes\n"


def test_everything_else_passes_unchanged(ends):
    rank, launcher = ends
    answer = b"cmd=get_result rc=0 value=vallen_max=1024" + b"7" * 100_000 + b"\n"
    with pmi_relay.relayed(rank.fileno()):
        launcher.sendall(answer)
        got = b""
        while len(got) < len(answer):
            got += rank.recv(len(answer))
    assert got == answer


def test_afterwards_the_descriptor_is_the_connection_itself(ends):
    rank, launcher = ends
    inode, blocking = os.fstat(rank.fileno()).st_ino, os.get_blocking(rank.fileno())
    with pmi_relay.relayed(rank.fileno()):
        assert os.fstat(rank.fileno()).st_ino != inode
    assert os.fstat(rank.fileno()).st_ino == inode and os.get_inheritable(rank.fileno())
    assert os.get_blocking(rank.fileno()) == blocking
    rank.sendall(b"cmd=finalize\n")
    assert launcher.recv(100) == b"cmd=finalize\n"


def test_a_launcher_that_closes_is_seen_to_close(ends):
    rank, launcher = ends
    with pmi_relay.relayed(rank.fileno()):
        launcher.close()
        assert rank.recv(100) == b""


def test_a_child_that_was_begun_meanwhile_is_not_waited_for(ends):
    rank, _ = ends
    with contextlib.ExitStack() as opened:
        with pmi_relay.relayed(rank.fileno()):
            child = opened.enter_context(subprocess.Popen(["sleep", "20"], close_fds=False))
            began = time.monotonic()
        assert time.monotonic() - began < SECONDS
        child.kill()
