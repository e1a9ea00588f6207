"""TCP connections that are to last. Standard library alone: guards import it by file, without the package."""

from __future__ import annotations

import socket

# What stands between two hosts may forget, or break, a connection that says nothing for some minutes. One whose other
# end does not answer breaks after the quarter of an hour that TCP itself goes on trying with what it has to send.
_OPTIONS = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 60), (socket.TCP_KEEPCNT, 15))


def keep_open(link: socket.socket) -> None:
    """Have the kernel ask the other end now and then whether it is there."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _OPTIONS:
        link.setsockopt(socket.IPPROTO_TCP, option, value)
