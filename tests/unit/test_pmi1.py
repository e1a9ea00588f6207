"""The PMI-1 service without MPI: clients here speak the protocol by hand."""

import contextlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from accdp_comm import pmi1


def expand(text: str, size: int) -> list[int]:
    """Read a process mapping the way MPI does: blocks in order, each node's ranks one after another."""
    nodes: list[int] = []
    for block in text.removeprefix("(vector,(").removesuffix("))").split("),("):
        first, count, ranks = map(int, block.split(","))
        nodes += [first + i for i in range(count) for _ in range(ranks)]
    assert len(nodes) == size
    return nodes


@pytest.mark.parametrize(
    "nodes", [[0], [0, 0, 0], [0, 1], [0, 0, 1, 1, 2, 2], [0, 1, 0, 1], [0, 0, 1, 0, 2, 2, 1], [0, 1, 1, 1, 2, 3, 3]]
)
def test_mapping_tells_every_ranks_node(nodes):
    assert expand(pmi1.process_mapping(nodes), len(nodes)) == nodes


def test_mapping_joins_equal_nodes():
    assert pmi1.process_mapping([0, 0, 1, 1, 2, 2]) == "(vector,(0,3,2))"


def test_mapping_too_long_for_a_client_is_left_out():
    assert pmi1.process_mapping([rank * 7 % 400 for rank in range(400)]) is None


class Client:
    def __init__(self, port):
        self.link = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.lines = self.link.makefile("rb")

    def say(self, text: str) -> None:
        self.link.sendall(text.encode() + b"\n")

    def ask(self, text: str) -> str:
        self.say(text)
        return self.hear()

    def hear(self) -> str:
        return self.lines.readline().decode().strip()

    def join(self, rank: int) -> "Client":
        assert self.ask(f"cmd=initack pmiid={rank}") == "cmd=initack rc=0"
        self.answers = [self.hear() for _ in range(3)]
        return self

    def close(self) -> None:
        self.lines.close()
        self.link.close()


@pytest.fixture
def serve():
    made = []

    def start(nodes, timeout_s=10.0):
        service = pmi1.Pmi1Service(nodes, timeout_s=timeout_s)
        made.append(service)
        return service, lambda rank: Client(service.port).join(rank)

    yield start
    for service in made:
        service.close()


def test_ranks_connections_last_through_days_of_silence(serve):
    service, join = serve([0])
    rank = join(0)
    [link] = service._connections
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1 and rank.answers


def test_ranks_learn_their_place(serve):
    service, join = serve([0, 0, 1])
    rank = join(2)
    assert rank.answers == ["cmd=set size=3", "cmd=set rank=2", "cmd=set debug=0"]
    assert rank.ask("cmd=init pmi_version=1 pmi_subversion=1").endswith("rc=0")
    assert rank.ask("cmd=get_universe_size") == "cmd=universe_size size=3 rc=0"
    assert rank.ask("cmd=get kvsname=x key=PMI_process_mapping").endswith("value=(vector,(0,1,2),(1,1,1))")
    assert service.token in rank.ask("cmd=get_my_kvsname")


def test_keys_put_by_one_rank_are_got_by_another(serve):
    _, join = serve([0, 0])
    first, second = join(0), join(1)
    assert "rc=0" in first.ask("cmd=put kvsname=x key=card value=a=b")
    assert second.ask("cmd=get kvsname=x key=card") == "cmd=get_result rc=0 msg=success value=a=b"
    assert "rc=-1" in second.ask("cmd=get kvsname=x key=nothing")
    assert "rc=-1" in second.ask(f"cmd=put kvsname=x key=card value={'v' * 2000}")


@pytest.mark.parametrize("timeout_s", [10.0, float("inf")])
def test_barrier_waits_for_all_and_can_be_used_again(serve, timeout_s):
    _, join = serve([0, 0], timeout_s)
    first, second = join(0), join(1)
    for _ in range(3):
        first.say("cmd=barrier_in")
        first.link.settimeout(0.05)
        with pytest.raises(TimeoutError):
            first.link.recv(1)
        first.link.settimeout(10)
        first.lines = first.link.makefile("rb")
        assert second.ask("cmd=barrier_in") == "cmd=barrier_out rc=0"
        assert first.hear() == "cmd=barrier_out rc=0"


def test_rank_that_leaves_is_not_waited_for_at_the_end(serve):
    """MPICH's clients crash where a connection is closed."""
    service, join = serve([0, 0])
    first, second = join(0), join(1)
    first.say("cmd=barrier_in")
    assert [second.ask("cmd=barrier_in"), first.hear()] == ["cmd=barrier_out rc=0"] * 2
    first.say("cmd=barrier_in")
    second.close()
    assert first.hear() == "cmd=barrier_out rc=0"
    assert service.broken == "rank 1 of 2 left the PMI-1 service without MPI_Finalize"
    assert first.ask("cmd=finalize") == "cmd=finalize_ack rc=0" and service.wait_closed(10)


def test_the_others_have_time_to_notice_a_rank_that_leaves_before_mpi_has_begun(serve, monkeypatch):
    monkeypatch.setattr(pmi1, "_PATIENCE_SECONDS", 0.5)
    service, join = serve([0, 0], timeout_s=math.inf)
    first, second = join(0), join(1)
    began = time.monotonic()
    first.say("cmd=barrier_in")
    second.close()
    assert first.hear() == "" and 0.5 <= time.monotonic() - began < 5
    assert service.broken == "rank 1 of 2 left the PMI-1 service without MPI_Finalize"
    assert service.wait_closed(5)  # however long ranks might wait


def test_rank_that_never_comes_ends_the_barrier_at_its_time_out(serve, monkeypatch):
    monkeypatch.setattr(pmi1, "_PATIENCE_SECONDS", 0.0)
    service, join = serve([0, 0], timeout_s=0.2)
    first = join(0)
    started = time.monotonic()
    assert first.ask("cmd=barrier_in") == ""
    assert 0.2 <= time.monotonic() - started < 5
    assert "rank 1 of 2 did not come" in service.broken


def test_abort_is_told_to_the_others(serve, monkeypatch):
    monkeypatch.setattr(pmi1, "_PATIENCE_SECONDS", 0.0)
    service, join = serve([0, 0], timeout_s=0.5)
    first, second = join(0), join(1)
    first.say("cmd=barrier_in")
    second.say("cmd=abort exitcode=1")
    assert first.hear() == ""
    assert service.broken == "rank 1 of 2 called MPI_Abort"


@pytest.mark.parametrize("pmiid", ["0", "2", "-1", "x", ""])
def test_only_the_ranks_there_are_may_join_once(serve, pmiid):
    service, join = serve([0, 0])
    join(0)
    stranger = Client(service.port)
    assert "rc=-1" in stranger.ask(f"cmd=initack pmiid={pmiid}")
    assert stranger.hear() == ""


@pytest.mark.parametrize("text", ["GET / HTTP/1.1", "cmd=get key=PMI_process_mapping", "\x00\x01", "x" * 10_000])
def test_strangers_are_dropped(serve, text):
    service, join = serve([0])
    stranger = Client(service.port)
    try:
        assert stranger.ask(text) == ""
    except ConnectionError:
        pass  # dropped before it had read all of it
    assert join(0).ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"


def test_a_stranger_has_so_much_time_whatever_it_says(serve, monkeypatch):
    monkeypatch.setattr(pmi1, "_HELLO_SECONDS", 0.4)
    service, join = serve([0])
    stranger, began = Client(service.port), time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() < began + 10:  # a byte at a time
            stranger.link.sendall(b"c")
            time.sleep(0.1)
    assert join(0).ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"


def test_strangers_that_take_all_descriptors_drop_no_rank(monkeypatch):
    """They are dropped before long, and who waits comes then."""
    monkeypatch.setattr(pmi1, "_HELLO_SECONDS", 0.5)
    service = pmi1.Pmi1Service([0, 1], "127.0.0.1", 10.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        held.callback(service.close)
        first = Client(service.port).join(0)
        calls = [held.enter_context(socket.socket()) for _ in range(12)]
        second = held.enter_context(socket.socket())
        second.settimeout(10)
        fillers = [os.dup(second.fileno())]
        held.callback(lambda: [os.close(filler) for filler in fillers])
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[0] + 5, before[1]))  # for some of them
        for call in [*calls, second]:
            call.connect(("127.0.0.1", service.port))
        second.sendall(b"cmd=initack pmiid=1\n")
        assert second.recv(20).startswith(b"cmd=initack rc=0")
        assert first.ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0" and service.broken == ""


def test_unknown_commands_and_spawn_are_answered(serve):
    _, join = serve([0])
    rank = join(0)
    assert rank.ask("cmd=publish_name service=a port=b") == "cmd=publish_name rc=-1 msg=unknown_command"
    rank.say("mcmd=spawn\nnprocs=1\nexecname=x")
    assert rank.ask("endcmd") == "cmd=spawn_result rc=-1 msg=not_supported"
    assert rank.ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"


def test_service_ends_when_all_have_finalised(serve):
    service, join = serve([0, 0])
    ranks = [join(0), join(1)]
    assert service.is_complete
    assert ranks[0].ask("cmd=finalize") == "cmd=finalize_ack rc=0"
    assert not service.wait_closed(0.1)
    assert ranks[1].ask("cmd=finalize") == "cmd=finalize_ack rc=0"
    assert service.wait_closed(10)
    assert service.broken == ""
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", service.port), timeout=1).close()


def test_hello_needs_the_token(serve):
    service, _ = serve([0, 0])
    assert pmi1.reached_from("127.0.0.1", service.port, service.token) == "127.0.0.1"
    assert pmi1.reached_from("127.0.0.1", service.port, "0" * 16) == ""
    service.close()
    assert pmi1.reached_from("127.0.0.1", service.port, service.token) == ""


def start_process(nodes):
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", pmi1.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write(json.dumps({"nodes": nodes, "bind": "127.0.0.1", "timeout_s": 10}) + "\n")
    process.stdin.flush()
    return process, json.loads(process.stdout.readline())["port"]


def finish(process) -> int:
    process.stdin.close()
    try:
        return process.wait(10)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_process_outlives_its_owner_while_ranks_need_it():
    process, port = start_process([0, 0])
    ranks = [Client(port).join(rank) for rank in range(2)]
    process.stdin.close()
    assert ranks[0].ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"
    leaving = threading.Thread(target=lambda: [rank.ask("cmd=finalize") for rank in ranks])
    leaving.start()
    assert finish(process) == 0
    leaving.join()


def test_process_ends_with_an_owner_that_gave_up():
    process, port = start_process([0, 0])
    Client(port).join(0)
    assert finish(process) == 0


def test_a_service_without_descriptors_says_so_and_keeps_nobody_waiting(capfd):
    service = pmi1.Pmi1Service([0, 1], "127.0.0.1", 10.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as late:
        late.settimeout(10)
        filler = os.dup(late.fileno())
        resource.setrlimit(resource.RLIMIT_NOFILE, (filler + 1, before[1]))
        fillers = [filler]
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    fillers.append(os.dup(late.fileno()))
            with contextlib.suppress(ConnectionError):  # as accept() takes one before it waits
                late.connect(("127.0.0.1", service.port))
                late.sendall(b"cmd=initack pmiid=0\n")  # a stranger would be waited for, and dropped
            assert service.wait_closed(10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for filler in fillers:
                os.close(filler)
    assert "takes no more connections: [Errno 24] Too many open files" in service.broken
    assert service.broken in capfd.readouterr().err


def test_a_value_that_clients_would_cut_is_refused(serve):
    _, join = serve([0])
    one = join(0)
    assert "rc=0" in one.ask(f"cmd=put kvsname=x key=card value={'v' * 1023}")
    assert "rc=-1" in one.ask(f"cmd=put kvsname=x key=card value={'v' * 1024}")


def test_signals_to_the_job_leave_the_service_to_its_ranks():
    """Which may be at their end, and ask for the last barrier."""
    process, port = start_process([0])
    rank = Client(port).join(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    time.sleep(0.3)
    assert rank.ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"
    leaving = threading.Thread(target=rank.ask, args=("cmd=finalize",))
    leaving.start()
    assert finish(process) == 0
    leaving.join(10)


def test_the_service_takes_as_many_descriptors_as_it_may():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200 if hard == resource.RLIM_INFINITY else min(200, hard), hard))
    try:
        process, _ = start_process([0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert finish(process) == 0
