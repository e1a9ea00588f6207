"""Ctrl-C, the end of a script without destroy_process_group, and destroy while others still work."""

import signal
import sys
import time

import jobs
import pytest
from jobs import SOON_S
from when_asleep import until_asleep

RAISES = """
import torch, torch.distributed as dist
dist.init_process_group("accdp")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("bad data")
try:
    dist.all_reduce(torch.ones(2))
except dist.DistBackendError as error:
    print(error, flush=True)
"""


LOST = """
import sys, time
import numpy as np
from accdp_comm import Communicator, PeerDied, PeerTimeout
world = Communicator(timeout_s=30)

def leaves(send):
    comm = world.split(0)
    if world.rank == 0:
        send(comm)
    try:
        comm.close()
        heard = None
    except PeerDied as error:
        heard = error
    comm.close()
    world.barrier()
    return heard

kept = []

def sends(comm, keeps):
    work = comm.isend(np.ones(300_000), 1, 1)
    if keeps:
        kept.append(work)

def sends_and_waits(keeps):  # until the background thread has seen that rank 1 left; a work tells of no error so
    def send(comm):
        sends(comm, keeps)
        last = comm.isend(np.ones(300_000), 1, 1)
        kept.append(last)
        while not last.is_completed():
            time.sleep(0.01)
    return send

def heard_of(fails):
    def send(comm):
        comm.isend(np.ones(300_000), 1, 1)
        try:
            fails(comm)
            raise AssertionError
        except PeerDied:
            pass
    return send

def fails_for_its_own_reason(comm):
    try:
        with comm:
            kept.append(comm.isend(np.ones(300_000), 1, 1))
            time.sleep(0.5)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass

for keeps in (False, True):
    for send in (lambda comm: sends(comm, keeps), sends_and_waits(keeps)):
        assert (leaves(send) is not None) == (world.rank == 0), (send, keeps)
for fails in (lambda comm: comm.send(np.ones(300_000), 1, 1), lambda comm: comm.allreduce(np.ones(1))):
    assert leaves(heard_of(fails)) is None, fails
assert leaves(fails_for_its_own_reason) is None

brief = Communicator(timeout_s=3)
comm = brief.split(0)
if world.rank == 0:
    receive = comm.irecv(np.ones(1), 1, 2)  # which times out alone
    for ask in (receive.wait, world.barrier, lambda: sends_and_waits(True)(comm), receive.wait, comm.close):
        try:
            ask()
            heard = None
        except (PeerTimeout, PeerDied) as error:
            heard = type(error)
        wanted = {receive.wait: PeerTimeout, comm.close: PeerDied}.get(ask)
        assert heard == wanted, (ask, heard)
else:
    world.barrier()
    comm.close()
world.barrier()
kept.clear()
last = world.split(0)
if world.rank == 0:
    last.isend(np.ones(300_000), 1, 1)
    time.sleep(1)
    print("ends", flush=True)
else:
    last.close()
"""


POLLS = """
import time
import numpy as np
from accdp_comm import Communicator, PeerDied
world = Communicator(timeout_s=30)
for pause in (0, 0.001, 0.01, 0.1):
    comm = world.split(0)
    if world.rank == 0:
        work = comm.isend(np.ones(300_000), 1)
        began = time.monotonic()
        while not work.is_completed():
            time.sleep(pause)
        print(pause, time.monotonic() - began, flush=True)
        assert time.monotonic() - began < 15, pause
        try:
            work.wait()
            raise AssertionError
        except PeerDied:
            pass
    comm.close()
    world.barrier()
"""


def signal_rank_0(play, number, scene, **given):
    """Play a scene of two ranks in which rank 0 gets a signal while it waits."""
    play.start(scene, 2, **given)
    play.until("ready", [0])
    until_asleep(play.pid(0))
    play.cause_at = time.monotonic()
    play.cast[0].kill(number)
    play.end()


def test_others_hear_of_the_exception_that_ended_a_script():
    """Of the one behind an abort() that nobody called, under a launcher that has MPI."""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", RAISES], timeout=60)
    assert "aborted the group: rank 1 ended by ValueError('bad data')" in result.stdout, str(result)


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_a_send_that_failed_is_heard_of(topology):
    """By who asks its work, or is told that the group has failed; else at close(), else at the interpreter's end."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", LOST]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=90)
    assert result.returncode == 0 and result.stdout == "ends\n", str(result)
    (line,) = result.stderr.splitlines()
    assert line.startswith("accdp: while leaving: rank 0 of 2") and "left the group during send of 2400000 " in line


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_who_polls_hears_that_a_rank_has_left(topology):
    """Each look takes the messages from the background thread, which would know soonest that nobody will come."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", POLLS]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=90)
    assert result.returncode == 0, str(result)


@pytest.mark.parametrize("operation", ["all_reduce", "all_reduce, not synchronous", "recv", "irecv"])
def test_ctrl_c_in_an_operation(play, record, operation):
    signal_rank_0(play, signal.SIGINT, "waiting", operation=operation)
    record(f"Ctrl-C on rank 0 of 2 in {operation}")
    assert play.raised(0)["type"] == "KeyboardInterrupt"
    assert play.after(0) < SOON_S
    said = play.raised(1)  # comes later and is told at once
    assert f"rank 0 (pid {play.pid(0)}, host " in said["text"], said
    assert said["at"] - said["began"] < SOON_S


@pytest.mark.parametrize(
    ("operation", "reaction"),
    [
        ("all_reduce, not synchronous", "destroy"),
        *((one, how) for one in ("all_reduce", "recv") for how in ("destroy", one)),
        *(("all_reduce", how) for how in ("bcast_compressed", "bcast_compressed, not synchronous")),
        *(("all_reduce", how) for how in ("monitored_barrier", "all_reduce, not synchronous")),
    ],
)
def test_a_signal_handler_that_uses_the_group(play, record, operation, reaction):
    """The operation that it interrupts cannot go on before the handler has returned."""
    # Where it is on, an asynchronous operation is one more behind that.
    env = dict.fromkeys((0, 1), {"ACCDP_ASYNC_OPS": "off"}) if reaction == "all_reduce, not synchronous" else None
    signal_rank_0(play, signal.SIGUSR1, "handler", operation=operation, reaction=reaction, env=env)
    record(f"{reaction} in a signal handler, in {operation} on rank 0 of 2")
    assert play.cast[0].ended_at - play.cause_at < SOON_S
    if reaction == "destroy":
        assert play.cast[0].status == 0, play.cast[0].printed()
    else:
        assert "signal handler" in play.raised(0)["text"], play.raised(0)
    assert "rank 0 (pid " in play.raised(1)["text"], play.raised(1)


def test_ctrl_c_while_the_group_is_formed(play, record):
    signal_rank_0(play, signal.SIGINT, "waiting", operation="init_process_group")
    record("Ctrl-C on rank 0 of 2 in init_process_group")
    assert play.raised(0)["type"] == "KeyboardInterrupt"
    assert play.after(0) < SOON_S


def test_ctrl_c_that_nobody_catches_ends_the_whole_job(play, record):
    play.start("uncaught", 2)
    play.until("ready", [0, 1])
    time.sleep(0.3)
    play.cause_at = time.monotonic()
    for player in play.cast:  # a terminal sends it to all
        player.kill(signal.SIGINT)
    play.end()
    record("Ctrl-C on both ranks of 2, nobody catches it")
    for player in play.cast:
        assert player.status == -signal.SIGINT and "KeyboardInterrupt" in player.printed()
        assert player.ended_at - play.cause_at < SOON_S


@pytest.mark.parametrize("size", [1, 2, 4])
def test_script_ends_without_destroy(play, record, size):
    play.start("without_destroy", size)
    play.end()
    play.cause_at = max(said["at"] for player in play.cast for said in player.said)
    record(f"{size} rank{'s' * (size > 1)} end without destroy_process_group")
    for player in play.cast:
        assert player.status == 0 and "Error" not in player.printed(), player.printed()
        assert player.ended_at - play.cause_at < SOON_S


def test_destroy_while_others_go_on(play, record):
    play.start("one_after_the_other", 4)
    play.end()
    play.cause_at = play.facts(0, "passed")[0]["at"]
    record("4 ranks destroy their groups one after the other, the others go on")
    for rank, player in enumerate(play.cast):
        (left,) = play.facts(rank, "passed")
        assert left["at"] - left["began"] < SOON_S
        assert player.status == 0, player.printed()


DAEMON = """
import threading, time
import numpy as np
import accdp_comm
comm = accdp_comm.Communicator(timeout_s=20)
comm.barrier()
def work():
    x = np.zeros(1000)
    while True:
        {operation}
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3 + comm.rank)
print("done", flush=True)
"""


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize("operation", ["comm.allreduce(x)", "comm.recv(x, 1 - comm.rank)"])
def test_a_daemon_thread_at_work_when_the_script_ends(operation, topology):
    """Its operation ends with an error; nothing goes from under it."""
    command = [*jobs.mpiexec_command(2), sys.executable, "-c", DAEMON.format(operation=operation)]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=40)
    assert result.returncode == 0 and result.stdout.count("done") == 2, str(result)


CALLBACK = """
import sys, threading, time
import torch, torch.distributed as dist

dist.init_process_group("accdp")
came, rank = threading.Event(), dist.get_rank()

def callback(future):
    came.set()
    for _ in range(30):
        time.sleep(0.05)
    print("called back", flush=True)

if rank == 0:
    work = dist.irecv(torch.zeros(4), 1)
    work.get_future().then(callback)
    del work
    dist.barrier()
    came.wait()
    if sys.argv[1] == "destroys":
        dist.destroy_process_group()
else:
    dist.barrier()
    dist.send(torch.ones(4), 0)
"""


@pytest.mark.parametrize("how", ["destroys", "ends"])
def test_a_callback_of_a_message_returns_before_its_process_ends(how):
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", CALLBACK, how], timeout=90)
    assert result.returncode == 0 and result.stdout.count("called back") == 1, str(result)


MANY_GROUPS = """
import datetime, sys, time
import torch, torch.distributed as dist
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=60))
groups = [dist.new_group() for _ in range(6)]
works = [dist.isend(torch.ones(3_000_000), 1 - dist.get_rank(), group=group) for group in groups]
dist.barrier()
print("left at", time.time(), flush=True)
if sys.argv[1] == "raises":
    raise ValueError("enough")
"""


@pytest.mark.parametrize("way", ["raises", "returns"])
def test_leaving_many_groups_takes_no_longer_than_one(way):
    """In each of them both ranks have sent what nobody will receive, and could wait for each other."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "WORLD_SIZE": "2"}
    both = 'RANK=1 "$@" & RANK=0 "$@"; code=$?; wait; exit $code'  # without a launcher, which would end the second
    result = jobs.run(["sh", "-c", both, "sh", sys.executable, "-c", MANY_GROUPS, way], env=env)
    left = [float(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("left at")]
    assert len(left) == 2 and time.time() - min(left) < SOON_S, str(result)
