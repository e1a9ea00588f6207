"""Connections between ranks of different nodes, which break when a process ends; the ranks here are threads."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from accdp_comm import lines


class Threads:
    """The exchange of one of several ranks that are threads of this process."""

    timeout_s = 10.0

    def __init__(self, rank, size, table, barrier):
        self.rank, self.size = rank, size
        self._table, self._barrier = table, barrier

    def allgather(self, data):
        self._table[self.rank] = data
        self._barrier.wait(self.timeout_s)
        answer = list(self._table)
        self._barrier.wait(self.timeout_s)
        return answer


@pytest.fixture
def open_all():
    """Open the lines of ranks of these nodes; returns each rank's descriptors."""

    def call(nodes, address="127.0.0.1", hosts=None):
        size = len(nodes)
        barrier, table = threading.Barrier(size), [b""] * size
        with ThreadPoolExecutor(size) as pool:
            return list(
                pool.map(
                    lambda rank: lines.open_lines(
                        Threads(rank, size, table, barrier), nodes, (address, address), hosts or ["here"] * size
                    ),
                    range(size),
                )
            )

    yield call
    for fd in lines._open:
        os.close(fd)
    lines._open.clear()


@pytest.fixture
def open_between_hosts(monkeypatch):
    """As above for ranks that each run on a host of its own, of which rank 0's says that it has these addresses."""

    def call(size, found):
        barrier, table, here = threading.Barrier(size), [b""] * size, threading.local()
        monkeypatch.setattr(lines, "node_key", lambda: f"host {here.rank}")
        monkeypatch.setattr(lines.addresses, "candidate_addresses", lambda: found)

        def of_rank(rank):
            here.rank = rank
            return lines.open_between_hosts(Threads(rank, size, table, barrier), False)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(of_rank, range(size)))

    yield call
    for fd in lines._open:
        os.close(fd)
    lines._open.clear()


def is_broken(fd):
    with socket.socket(fileno=os.dup(fd)) as link:
        try:
            return link.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False


def test_ranks_of_different_nodes_are_connected(open_all):
    nodes = [0, 1, 0, 2, 2]
    found = open_all(nodes)
    for rank, fds in enumerate(found):
        assert [fd >= 0 for fd in fds] == [node != nodes[rank] for node in nodes]
        assert not any(is_broken(fd) for fd in fds if fd >= 0)
    for rank, fds in enumerate(found):
        for other, fd in enumerate(fds):
            if fd >= 0:  # each line joins the two that say so
                with socket.socket(fileno=os.dup(fd)) as mine, socket.socket(fileno=os.dup(found[other][rank])) as its:
                    assert mine.getsockname() == its.getpeername()


def test_an_end_breaks_a_line_for_good_and_only_that_one(open_all):
    found = open_all([0, 1, 2])
    gone = found[2][0]
    os.close(gone)
    lines._open.discard(gone)
    assert is_broken(found[0][2]) and is_broken(found[0][2])
    assert not is_broken(found[0][1]) and not is_broken(found[1][2])


def test_strangers_take_nobodys_place(monkeypatch, open_all):
    ports = []
    listening = socket.create_server

    def listen(*arguments, **options):
        made = listening(*arguments, **options)
        ports.append(made.getsockname()[1])
        for text in (b"GET / HTTP/1.1\r\n\r\n", bytes(20), b""):
            with socket.create_connection(("127.0.0.1", ports[-1])) as stranger:
                stranger.sendall(text)
        return made

    monkeypatch.setattr(socket, "create_server", listen)
    found = open_all([0, 1])
    assert len(ports) == 2 and not is_broken(found[0][1]) and not is_broken(found[1][0])


KILLED = """
import os, signal, socket, sys
from accdp_comm import lines
line = socket.socket(fileno=int(sys.argv[1]))
lines._keep(line)
line.close()
memory = os.memfd_create("ballast")  # its descriptor is below the one of MPI's connection, and it takes long to free
os.posix_fallocate(memory, 0, 400 << 20)
mpi = os.dup2(int(sys.argv[2]), memory + 1)
os.close(int(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_line_breaks_no_later_than_mpis_connections():
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as held:
        pairs = []
        for _ in range(2):
            its = socket.create_connection(listener.getsockname())
            pairs.append((held.enter_context(listener.accept()[0]), its))
        (line, its_line), (mpi, its_mpi) = pairs
        fds = [its_line.fileno(), its_mpi.fileno()]
        child = subprocess.Popen([sys.executable, "-c", KILLED, *map(str, fds)], pass_fds=fds)
        its_line.close()
        its_mpi.close()
        try:
            while not is_broken(mpi.fileno()):
                assert child.poll() in (None, -signal.SIGKILL)
            assert is_broken(line.fileno())
        finally:
            child.kill()
            child.wait()


@pytest.mark.parametrize("what", ["a route", "a listener", "descriptors"])
def test_without_all_lines_there_is_none_and_rank_0_says_why(monkeypatch, capsys, open_all, what):
    before = len(os.listdir("/proc/self/fd"))
    if what == "a route":
        found = open_all([0, 0, 1], "127.0.0.1", ["a", "a", "b"])
        assert found[2] != [-1] * 3

        def refuse(address, timeout):
            raise ConnectionRefusedError(111, "Connection refused")

        monkeypatch.setattr(socket, "create_connection", refuse)
        before = len(os.listdir("/proc/self/fd"))
    elif what == "descriptors":
        monkeypatch.setattr(resource, "getrlimit", lambda which: (2, 2))
    else:

        def fail(*arguments, **options):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket, "create_server", fail)
    assert open_all([0, 0, 1]) == [[-1] * 3] * 3
    assert len(os.listdir("/proc/self/fd")) == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ranks cannot connect to each other (rank " in said
    assert ("rank 2 to rank 0 at 127.0.0.1, port " in said) == (what == "a route")
    assert ("ulimit -n is 2, expected 6 or more" in said) == (what == "descriptors")
    assert ("Too many open files" in said) == (what == "a listener")


def test_jobs_with_too_many_ranks_have_none(monkeypatch, open_all):
    monkeypatch.setattr(lines, "_MOST", 2)
    assert open_all([0, 1, 2, 2]) == [[-1] * 4] * 4
    assert all(fd >= 0 for fd in open_all([0, 0, 1, 1])[0][2:])


def test_the_first_address_that_leads_there_is_used(open_between_hosts):
    """As where every host's first interface is that of its management controller, with the same address."""
    ends = open_between_hosts(3, ["255.255.255.255", "127.0.0.1"])
    assert [[fd >= 0 for fd in row] for row in ends] == [[at != rank for at in range(3)] for rank in range(3)]


def test_no_address_that_leads_there_is_said_once(open_between_hosts, capfd):
    assert open_between_hosts(3, ["255.255.255.255"]) == [[-1] * 3] * 3
    said = capfd.readouterr().err
    assert said.count("ranks cannot connect to each other (rank 0: no route to") == 1 and said.count("\n") == 1
