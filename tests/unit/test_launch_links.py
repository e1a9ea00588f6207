"""What `accdp run` and its guards, and owners of MPS, say to each other over."""

import contextlib
import json
import os
import resource
import selectors
import socket
import struct
import threading
import time

import pytest

from accdp_comm.launch import control, guard_link


class Head:
    """`accdp run`, as far as it is called."""

    def __init__(self, ranks: int = 1):
        self.listener = control.Listener([], ranks)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, "listener")
        invitation = json.loads(self.listener.invitation("RANK", []))
        self.port, self.token = invitation["port"], invitation["token"]
        self.known: list[control.Connection] = []

    def serve(self, seconds: float = 0.0) -> None:
        """Take what there is, and what comes in that time."""
        until = time.monotonic() + seconds
        while ready := self.selector.select(max(0.0, until - time.monotonic())):
            for key, _ in ready:
                if key.data == "listener":
                    self.listener.accept(self.selector)
                    continue
                assert list(key.data.receive()) == []
                if key.data.is_closed:
                    key.data.leave(self.selector)
                elif key.data.is_known:
                    self.known.append(key.data)

    def call(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def close(self) -> None:
        self.listener.close()
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, control.Connection):
                key.data.close()
        self.selector.close()


@pytest.fixture
def head():
    with contextlib.closing(Head()) as made:
        yield made


@contextlib.contextmanager
def guard_of(head: Head):
    """A guard that calls, while somebody listens."""
    found = []
    caller = threading.Thread(
        target=lambda: found.append(guard_link.connect(["127.0.0.1"], head.port, head.token)), daemon=True
    )
    caller.start()
    until = time.monotonic() + 20
    while not head.known and time.monotonic() < until:
        head.serve(0.05)
    caller.join(20)
    with found[0] as link:
        yield link


def is_turned_away(caller: socket.socket) -> bool:
    try:
        while caller.recv(1000):
            pass
    except ConnectionError:  # closed with something unread
        pass
    return True


@pytest.mark.parametrize("text", [b"[" * 200_000, b"\xff" * 64])
def test_strangers_are_obeyed_in_nothing(head, text):
    caller = head.call()
    caller.sendall(text)
    head.serve(0.1)
    assert head.known == [] and is_turned_away(caller)
    with guard_of(head):
        assert len(head.known) == 1


def test_a_stranger_s_proof_is_not_that_of_the_head_repeated(head):
    caller = head.call()
    caller.sendall(bytes(guard_link.NONCE_BYTES))
    head.serve(0.1)
    answer = caller.recv(1000)
    assert len(answer) == guard_link.NONCE_BYTES + guard_link.PROOF_BYTES
    caller.sendall(answer[guard_link.NONCE_BYTES :])
    head.serve(0.1)
    assert head.known == [] and is_turned_away(caller)


def test_strangers_cost_no_more_than_a_connection_each(head):
    """Of which there are as many at a time as guards, and some; the oldest goes, and all when the job begins."""
    callers = [head.call() for _ in range(control._STRANGERS + 10)]
    head.serve(0.1)
    assert len(head.selector.get_map()) <= 1 + 1 + control._STRANGERS
    assert callers[0].recv(1) == b""  # it has been dismissed
    with guard_of(head):
        head.listener.leave(head.selector)
        assert [key.data for key in head.selector.get_map().values()] == head.known and len(head.known) == 1
    for caller in callers:
        caller.close()


def test_a_guard_obeys_nobody_else():
    """Who listens at an address that does not lead to `accdp run` gets a nonce of it, and no answer to its own."""
    heard = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(1000))
            connection.sendall(bytes(guard_link.NONCE_BYTES + guard_link.PROOF_BYTES))
            heard.append(connection.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=answer, args=(listener,), daemon=True)
        stranger.start()
        with pytest.raises(SystemExit, match="127.0.0.1: somebody else answers there"):
            guard_link.connect(["127.0.0.1"], listener.getsockname()[1], "a token of 32 characters")
        stranger.join(20)
    assert [len(part) for part in heard] == [guard_link.NONCE_BYTES, 0]


def test_a_head_that_is_held_up_is_called_again(head, monkeypatch):
    monkeypatch.setattr(guard_link, "_ANSWER_S", 0.2)
    threading.Timer(0.7, head.serve, [1.0]).start()
    with guard_link.connect(["127.0.0.1"], head.port, head.token):
        until = time.monotonic() + 5
        while not head.known and time.monotonic() < until:
            time.sleep(0.01)
        assert len(head.known) == 1


def test_connections_of_guards_outlast_hours_of_silence(head):
    """What stands between two hosts forgets those that say nothing."""
    with guard_of(head) as link:
        ends = [link, head.known[0]._socket]
        assert all(end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1 for end in ends)
        assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 120 for end in ends)


def test_a_link_waits_for_as_long_as_it_takes(head):
    """A limit on it would end a rank whose output nobody takes for a while."""
    with guard_of(head) as link:
        assert link.gettimeout() is None


def test_strangers_drive_out_no_guard(head):
    callers = []
    with guard_of(head):
        for _ in range(control._STRANGERS + 10):
            callers.append(head.call())
            head.serve()
        head.serve(0.1)
        assert not head.known[0].is_closed
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("said", [b"", b"n" * 10, b"n" * guard_link.NONCE_BYTES])
def test_a_stranger_that_breaks_off(head, said):
    """By a reset, before or in the middle of what is said first."""
    caller = head.call()
    caller.sendall(said)
    if said:
        head.serve(0.1)
    else:
        head.listener.accept(head.selector)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()
    head.serve(0.2)
    assert head.known == []
    with guard_of(head):
        assert len(head.known) == 1


def test_a_proof_in_parts_and_a_message_right_behind_it(head):
    caller = head.call()
    mine = bytes(guard_link.NONCE_BYTES)
    caller.sendall(mine[:10])
    head.serve(0.05)
    caller.sendall(mine[10:])
    head.serve(0.1)
    proof = guard_link.proof(head.token, guard_link.GUARD, mine + caller.recv(1000)[: guard_link.NONCE_BYTES])
    caller.sendall(proof[:10])
    head.serve(0.05)
    content = b'{"event": "hello"}'
    caller.sendall(proof[10:] + struct.pack("<I", len(content) + 1) + b"j" + content)
    ((key, _),) = head.selector.select(5)
    assert list(key.data.receive()) == [] and key.data.is_known
    assert list(key.data.receive()) == [("j", {"event": "hello"})]
    caller.close()


def test_an_order_longer_than_one_read(head):
    """As with an environment of many variables."""
    with guard_of(head) as connected:
        link = guard_link.Link(connected)
        order = {"order": "start", "env": {"LONG": "x" * 500_000}}
        teller = threading.Thread(target=head.known[0].order, kwargs=order, daemon=True)
        teller.start()
        orders = []
        while not (orders or link.lost):
            orders = link.receive()
        teller.join(20)
        assert orders == [order]


def test_without_descriptors_a_stranger_goes(head):
    first = head.call()
    head.serve(0.1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with first, socket.socket() as late:
        late.settimeout(5)
        resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, before[1]))
        fillers = []
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    fillers.append(os.dup(late.fileno()))
            late.connect(("127.0.0.1", head.port))
            head.listener.accept(head.selector)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for filler in fillers:
                os.close(filler)
        assert is_turned_away(first)
