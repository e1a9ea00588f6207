"""Between MPICH and srun --mpi=pmi2 while MPI starts: says a smaller limit for values than srun does.

MPICH speaks PMI-1 there. srun reads a request by one read() of 1024 bytes, yet tells its ranks that a value alone may
have 1024: a longer request (their network addresses, with whatever stood in memory behind them) is torn in two, and
MPI_Init fails or never returns.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
from collections.abc import Iterator

# A request is a value and about 100 bytes around it: command, job and step, key.
_VALUE_BYTES = 896
_LIMITS = b"cmd=maxes "
_READ_BYTES = 65536


@contextlib.contextmanager
def relayed(fd: int) -> Iterator[None]:
    """Let what is written to and read from ``fd``, the rank's connection to srun, pass through this process.

    After the block ``fd`` is the connection itself again. Nothing may be under way then: PMI-1 answers each request.
    """
    inheritable, blocking = os.get_inheritable(fd), os.get_blocking(fd)
    launcher = socket.socket(fileno=os.dup(fd))
    launcher.setblocking(True)  # of the connection, so of `fd` too
    inside, outside = socket.socketpair()
    os.dup2(outside.fileno(), fd, inheritable)
    outside.close()
    thread = threading.Thread(target=_relay, args=(inside, launcher), name="accdp-pmi-relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(launcher.fileno(), fd, inheritable)
        with contextlib.suppress(OSError):  # of a thread that has ended already
            inside.shutdown(socket.SHUT_RDWR)  # a child that was forked meanwhile may have the other end, too
        thread.join()
        launcher.close()
        os.set_blocking(fd, blocking)


def _relay(inside: socket.socket, launcher: socket.socket) -> None:
    """Carry bytes both ways until either side has closed; MPICH then finds its end closed too."""
    with inside, contextlib.suppress(ConnectionError):
        poll = select.poll()  # select() cannot take descriptors of 1024 and above
        ways = {inside.fileno(): (inside, launcher), launcher.fileno(): (launcher, inside)}
        for fd in ways:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                source, target = ways[fd]
                data = source.recv(_READ_BYTES)
                if not data:
                    return
                target.sendall(data if source is inside else _with_smaller_limit(data, launcher))


def _with_smaller_limit(answer: bytes, launcher: socket.socket) -> bytes:
    if not answer.startswith(_LIMITS):
        return answer
    while not answer.endswith(b"\n") and (more := launcher.recv(_READ_BYTES)):
        answer += more
    return re.sub(
        rb"\bvallen_max=(\d+)", lambda found: b"vallen_max=%d" % min(int(found.group(1)), _VALUE_BYTES), answer
    )
