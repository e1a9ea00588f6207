"""Ranks that end, are interrupted or fork while an asynchronous operation of theirs waits for others."""

import sys

import jobs

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import accdp_comm

sys.path.append(sys.argv[-1])
from when_asleep import signal_me_asleep

world = accdp_comm.Communicator(timeout_s=30)
data, what = np.zeros(100_000), sys.argv[1]

def begin():
    return accdp_comm.bcast_compressed(data, 1, group=world, async_op=True)

def tell(call):
    try:
        print("done", call().logical_bytes)
    except accdp_comm.Error as error:
        print(type(error).__name__, error)

if what == "raises":
    if world.rank == 0:
        work = begin()
        time.sleep(0.2)
        raise ValueError("at work")
    tell(lambda: world.recv(np.zeros(4), 0))
elif what == "ends":
    if world.rank == 0:
        work = begin()
        sys.exit()  # what was begun is done first
    time.sleep(0.5)
    tell(lambda: accdp_comm.bcast_compressed(data, 1, group=world))
elif what == "stopped":
    if world.rank == 0:
        work = begin()
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
        sys.exit()  # waits for what was begun
    tell(lambda: world.recv(np.zeros(4), 0))
    time.sleep(60)  # is ended
elif what == "forks":
    if world.rank == 0:
        work = begin()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            tell(work.wait)
            tell(lambda: begin().wait())
            sys.stdout.flush()
            os._exit(0)
        print("child's status", os.waitpid(child, 0)[1])
        world.send(np.zeros(1), 1)
        tell(work.wait)
    else:
        world.recv(np.zeros(1), 0)
        accdp_comm.bcast_compressed(data, 1, group=world)
    world.barrier()
elif what == "interrupted":
    if world.rank == 0:
        def handle(*_):
            tell(lambda: begin().wait())
            open(sys.argv[2], "x").close()

        signal.signal(signal.SIGALRM, handle)
        signal_me_asleep(signal.SIGALRM)
    while world.rank == 1 and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    world.barrier()
    print("goes on")
"""


def play(*what: str) -> jobs.Result:
    return jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", SCRIPT, *what, str(jobs.TESTS)], timeout=60)


def test_others_hear_of_an_exception_at_once():
    result = play("raises")
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "aborted the group: rank 0 ended by ValueError('at work')" in result.stdout, str(result)


def test_what_was_begun_is_done_before_the_end():
    result = play("ends")
    assert result.returncode == 0 and result.stdout.count("done 800000") == 1, str(result)


def test_ctrl_c_ends_the_wait_at_the_end():
    result = play("stopped")
    assert result.returncode != 0 and result.seconds < 30, str(result)
    assert "aborted the group: rank 0 ended by KeyboardInterrupt()" in result.stdout, str(result)


def test_a_forked_child_is_refused():
    result = play("forks")
    assert result.returncode == 0 and "child's status 0" in result.stdout, str(result)
    assert result.stdout.count("UsageError") == 2 and result.stdout.count("which was forked from it") == 2, str(result)
    assert "done 800000" in result.stdout, str(result)


def test_a_signal_handler_in_the_middle_of_an_operation_is_refused(tmp_path):
    result = play("interrupted", str(tmp_path / "handled"))
    assert result.returncode == 0 and result.stdout.count("goes on") == 2, str(result)
    assert "UsageError rank 0 of 2: an asynchronous operation in a signal handler" in result.stdout, str(result)


FAILED = """
import gc, pathlib, sys, time, weakref
import numpy as np
import accdp_comm
world = accdp_comm.Communicator(timeout_s=10)
if world.rank == 0:
    gc.disable()
    class Data(np.ndarray):
        pass
    data = np.ones(1000, np.float32).view(Data)
    seen = weakref.ref(data)
    work = accdp_comm.allreduce_compressed(data, group=world, async_op=True)
    try:
        work.wait()
    except accdp_comm.Error as error:
        print(type(error).__name__, flush=True)
    pathlib.Path(sys.argv[1]).touch()
    del work, data
    world.close()
    deadline = time.monotonic() + 10  # the worker may be about to return
    while seen() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    print("kept" if seen() is not None else "let go", flush=True)
else:
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.1)
"""


def test_tensors_of_an_operation_that_failed_are_let_go(tmp_path):
    """At once: the error's traceback does not keep them until Python looks for cycles."""
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", FAILED, str(tmp_path / "failed")])
    assert result.stdout.split()[:2] == ["PeerTimeout", "let"], str(result)
