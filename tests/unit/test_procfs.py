"""Processes as /proc shows them, whatever they call themselves."""

import os
import subprocess
import sys

from accdp_comm import procfs
from accdp_comm.launch import processes

# Ends when its standard input does. Linux cuts names after 15 bytes, in the middle of a character if need be.
NAMED = "import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}); print('named', flush=True); sys.stdin.read()"


def running(name: bytes) -> subprocess.Popen:
    command = [sys.executable, "-c", NAMED.format(name=name)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"named\n"
    return child


def test_any_name_of_a_command():
    for name in (b") R 1 (", "fourteen bytes\u00e9".encode()[:15], b"\xff\n\xfe"):
        with running(name) as child:
            it = procfs.processes()[child.pid]
            assert it == procfs.process(child.pid) and it.parent == os.getpid()
            assert procfs.start_time(child.pid) == it.started >= procfs.start_time(os.getpid()) > 0
            assert procfs.descendants([os.getpid()])[child.pid] == os.getpid()
            child.stdin.close()


def test_descendants_come_after_their_parents():
    command = f"{sys.executable} -c 'import sys; print(0, flush=True); sys.stdin.read()'; true"
    with subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        found = procfs.descendants([shell.pid, os.getpid()])
        (below,) = (pid for pid, it in procfs.processes().items() if it.parent == shell.pid)
        assert list(found)[:2] == [shell.pid, below] and found[below] == shell.pid and found[os.getpid()] == os.getpid()
        shell.stdin.close()


def test_zombies_and_processes_that_are_not():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert procfs.start_time(child) == 0 and child not in procfs.processes() and procfs.process(child).is_zombie
    os.waitpid(child, 0)
    assert procfs.process(child) is None and procfs.process(1 << 22) is None


def test_a_node_is_a_kernel_a_process_table_and_a_name():
    key = procfs.node_key()
    assert procfs.boot_id() in key.split("/") and len(key.split("/")) == 4
    assert subprocess.run(
        [sys.executable, "-c", "from accdp_comm import procfs; print(procfs.node_key())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines() == [key]


def test_a_process_that_became_another_users_is_left_alone(monkeypatch):
    asked = []

    def refuse(pid, number):
        asked.append((pid, number))
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(processes.os, "kill", refuse)
    processes.send_signal(os.getpid(), procfs.start_time(os.getpid()), 15)
    assert asked == [(os.getpid(), 15)]
