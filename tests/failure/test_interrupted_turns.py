"""Ctrl-C in calls that wait for another one of their own process, and in processes that a thread forked."""

import sys
from collections.abc import Callable

import jobs
import pytest

SCRIPT = """
import os, pathlib, signal, sys, threading, time
import numpy as np
import accdp_comm

sys.path.append(sys.argv[3])
from when_asleep import signal_me_asleep, until_asleep

signal.signal(signal.SIGALRM, signal.default_int_handler)
was_interrupted = pathlib.Path(sys.argv[2])

def comes_late():
    while not was_interrupted.exists():
        time.sleep(0.01)

def tell(call):
    began = time.monotonic()
    try:
        call()
        print("done", flush=True)
    except KeyboardInterrupt:
        print("interrupted", "soon" if time.monotonic() - began < 5 else "late", flush=True)
    except (accdp_comm.Error, RuntimeError) as error:
        print(type(error).__name__, error, flush=True)

def turns_of_torch():
    import torch
    import torch.distributed as dist
    dist.init_process_group("accdp")
    data, more = torch.ones(100), torch.ones(100)
    if dist.get_rank() == 0:
        work = dist.all_reduce(data, async_op=True)
        signal_me_asleep(signal.SIGALRM)
        tell(lambda: dist.all_reduce(more))
        was_interrupted.touch()
        tell(work.wait)
    else:
        comes_late()
        tell(lambda: dist.all_reduce(data))

def turns_of_threads():
    world = accdp_comm.Communicator(timeout_s=30)
    if world.rank == 0:
        other = threading.Thread(target=lambda: tell(world.barrier))
        other.start()
        until_asleep(os.getpid(), other.native_id)
        signal_me_asleep(signal.SIGALRM)
        tell(lambda: world.allreduce(np.ones(100)))
        was_interrupted.touch()
        other.join()
    else:
        comes_late()
        tell(world.barrier)

def handler_behind_a_worker():
    world = accdp_comm.Communicator(timeout_s=30)
    data = np.ones(1000, np.float32)
    if world.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: (tell(world.barrier), was_interrupted.touch()))
        works = []
        main = threading.get_native_id()
        def begin():
            until_asleep(os.getpid(), main)
            works.append(accdp_comm.bcast_compressed(data, group=world, async_op=True))
            signal_me_asleep(signal.SIGALRM, main)
        threading.Thread(target=begin).start()
        tell(lambda: world.allreduce(np.ones(100)))
        tell(works[0].wait)
    else:
        comes_late()
        tell(lambda: world.allreduce(np.ones(100)))
        tell(lambda: accdp_comm.bcast_compressed(data, group=world))

def turns_of_a_communicator():
    world = accdp_comm.Communicator(timeout_s=30)
    data = np.ones(1000, np.float32)
    if world.rank == 0:
        work = accdp_comm.bcast_compressed(data, 1, group=world, async_op=True)
        signal_me_asleep(signal.SIGALRM)
        tell(lambda: world.allreduce(np.ones(100)))
        was_interrupted.touch()
        tell(work.wait)
        tell(lambda: world.allreduce(np.ones(100)))
    else:
        comes_late()
        tell(lambda: accdp_comm.bcast_compressed(data, 1, group=world))

def left_thread():
    world = accdp_comm.Communicator(timeout_s=30)
    if world.rank == 0:
        other = threading.Thread(target=lambda: tell(world.barrier))
        other.start()
        signal_me_asleep(signal.SIGALRM)
        try:
            other.join()
        finally:
            was_interrupted.touch()
    else:
        comes_late()
        time.sleep(0.5)  # in which the first thread ends, and the interpreter waits for the other one
        tell(world.barrier)

def forked():
    def fork():
        child = os.fork()
        if child:
            return print("child's status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        tell(lambda: accdp_comm.Communicator(timeout_s=30).recv(np.zeros(1), 0))
        sys.stdout.flush()
        os._exit(0)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()

globals()[sys.argv[1]]()
"""


@pytest.fixture
def play(tmp_path) -> Callable[..., jobs.Result]:
    def play(what: str, ranks: int = 2) -> jobs.Result:
        launcher = jobs.mpiexec_command(ranks) if ranks > 1 else []
        words = [what, str(tmp_path / "was interrupted"), str(jobs.TESTS)]
        return jobs.run([*launcher, sys.executable, "-c", SCRIPT, *words], timeout=60)

    return play


def test_a_synchronous_operation_behind_an_asynchronous_one(play):
    """It would come to its turn all the same, when nobody knows of it any more: so the group ends."""
    result = play("turns_of_torch")
    assert result.stdout.count("interrupted soon") == 1, str(result)
    why = "aborted the group: all_reduce was interrupted before its turn came"
    assert result.stdout.count(why) == 2, str(result)


def test_an_operation_of_a_communicator_behind_an_asynchronous_one(play):
    """Else the next call of this rank would be taken for the one that was interrupted, by ranks that are in that."""
    result = play("turns_of_a_communicator")
    assert result.stdout.count("interrupted soon") == 1, str(result)
    assert result.stdout.count("rank 0 of 2 was interrupted before an operation's turn came") == 3, str(result)


def test_a_call_behind_that_of_another_thread(play):
    result = play("turns_of_threads")
    assert result.stdout.count("interrupted soon") == 1, str(result)
    assert result.stdout.count("was interrupted before its allreduce began") == 2, str(result)


def test_a_handler_does_not_wait_for_what_waits_for_the_call_it_interrupts(play):
    result = play("handler_behind_a_worker")
    said = "in a signal handler, in the middle of another operation"
    assert result.stdout.count(said) == 1 and result.stdout.count("done") == 4, str(result)


def test_a_process_that_a_thread_forked(play):
    result = play("forked", ranks=1)
    assert result.stdout.splitlines() == ["interrupted soon", "child's status 0"], str(result)


def test_an_interpreter_that_ends_before_a_thread_has_returned(play):
    """Since Ctrl-C in Thread.join() Python 3.11 takes the thread to have ended; it wants the GIL that is no more."""
    result = play("left_thread")
    assert "KeyboardInterrupt" in result.stderr and "terminate called" not in result.stderr, str(result)
    assert result.returncode not in (6, 134, -6) and "Aborted (signal 6)" not in result.stdout, str(result)
