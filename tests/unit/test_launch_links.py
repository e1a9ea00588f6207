"""What `accdp run` and its guards, and owners of MPS, say to each other over."""

import json
import socket

from accdp_comm.launch import control, guard_link
from accdp_comm.launch.mps import owners


def test_connections_of_guards_outlast_hours_of_silence():
    """What stands between two hosts forgets those that say nothing."""
    listener = control.Listener(["127.0.0.1"])
    port = json.loads(listener.invitation("RANK", []))["port"]
    with guard_link.connect(["127.0.0.1"], port) as link:
        ends = [link, listener.accept()._socket]
        assert all(end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1 for end in ends)
        assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 120 for end in ends)
        ends[1].close()
    listener.close()


def test_an_owner_that_comes_when_all_were_let_go_is_let_go():
    class Owner:
        told = []

        def order(self, **order):
            self.told.append(order)

    owners_of = owners.Owners("auto", print, 5.0, {})
    owners_of._hosts["n1"] = owners._Host("n1", {})
    owners_of.release()
    owners_of.hear(Owner(), {"event": "owner", "node": "n1"})
    assert Owner.told == [{"order": "release"}]
