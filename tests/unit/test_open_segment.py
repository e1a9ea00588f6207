"""How a rank opens the memory that the lowest rank of its node made, and what it says where that has given it up."""

import functools
import os
import socket

import pytest
from test_bootstrap import card

from accdp_comm import _core, bootstrap, procfs


def test_a_file_that_is_not_the_leader_s_memory_is_left_alone(tmp_path):
    """It may have closed that by now, and the number may be of a file of its own."""
    with (tmp_path / "checkpoint").open("w+b") as file:
        file.write(b"precious")
        file.flush()
        leader = card(pid=os.getpid(), memfd=file.fileno(), inode=1)
        with pytest.raises(_core.PeerDied, match="rank 1 of 2: rank 0 on host-a has given up the group"):
            bootstrap._open_segment([leader, card()], 0, 1)
    assert (tmp_path / "checkpoint").read_bytes() == b"precious"


def test_memory_of_a_rank_that_has_just_ended_was_given_up():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    leader = card(pid=child, memfd=5, start_time=procfs.process(child).started)

    def opened_by(user):
        os.setuid(user)
        bootstrap._open_segment([leader, card()], 0, 1)

    try:
        for user in {os.getuid(), os.getuid() or 65534}:  # a zombie's files are root's
            with pytest.raises(_core.PeerDied, match="rank 1 of 2: rank 0 on host-a has given up the group"):
                in_a_child(functools.partial(opened_by, user))
    finally:
        os.waitpid(child, 0)


def in_a_child(step):
    """Raise what a step of a forked process raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            step()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__} {error}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        name, _, text = said.read().partition(" ")
    os.waitpid(child, 0)
    if name:
        raise getattr(_core, name, AssertionError)(text)


def test_memory_that_was_closed_was_given_up_by_a_rank_that_is_still_there():
    leader = card(pid=os.getpid(), memfd=1 << 30, start_time=procfs.start_time(os.getpid()))
    with pytest.raises(_core.PeerDied, match="rank 1 of 2: rank 0 on host-a has given up the group"):
        bootstrap._open_segment([leader, card()], 0, 1)
    with socket.socket() as another:  # which cannot be opened
        leader = card(pid=os.getpid(), memfd=another.fileno(), start_time=procfs.start_time(os.getpid()))
        with pytest.raises(_core.PeerDied, match="rank 1 of 2: rank 0 on host-a has given up the group"):
            bootstrap._open_segment([leader, card()], 0, 1)
    other = card(pid=os.getpid(), memfd=1 << 30, start_time=1)  # of another container, with the same number
    with pytest.raises(_core.SystemCallError, match="No such file or directory.*see each other in /proc"):
        bootstrap._open_segment([other, card()], 0, 1)
