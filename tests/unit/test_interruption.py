"""Signals that come while daemons stop: they wait, whichever thread the kernel gives them to."""

import os
import signal
import threading

import pytest

from accdp_comm.launch.interruption import Interrupted, undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_whichever_thread_takes_it(number):
    def raise_it(number, _):
        raise Interrupted(number)

    before = signal.signal(number, raise_it)
    done, stops = [], threading.Event()
    other = threading.Thread(target=stops.wait)  # has none of them blocked
    other.start()
    try:
        with pytest.raises(Interrupted) as caught:
            undisturbed(lambda: (os.kill(os.getpid(), number), stops.wait(0.2), done.append(True)))
        assert done == [True] and caught.value.number == number
        assert signal.getsignal(number) is raise_it and number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        stops.set()
        other.join()
        signal.signal(number, before)


def test_a_signal_that_comes_before_any_can_wait_lets_the_step_be_done(monkeypatch):
    """Else what comes at the very moment when daemons are about to be stopped leaves them behind."""
    done, comes = [], [True]
    change = signal.pthread_sigmask

    def comes_first(how, which):
        if how == signal.SIG_BLOCK and which and comes:
            comes.clear()
            raise Interrupted(signal.SIGTERM)
        return change(how, which)

    monkeypatch.setattr(signal, "pthread_sigmask", comes_first)
    with pytest.raises(Interrupted):
        undisturbed(lambda: done.append(True))
    assert done == [True] and not comes


def test_two_signals_at_once_let_the_step_be_done(monkeypatch):
    """The second is raised where the first is taken note of."""
    done, change = [], signal.pthread_sigmask

    def raise_it(number, _):
        raise Interrupted(number)

    def both_come_first(how, which):
        if how == signal.SIG_BLOCK and which and not came:
            came.append(True)
            change(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            change(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
        return change(how, which)

    came: list[bool] = []
    before = {number: signal.signal(number, raise_it) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        monkeypatch.setattr(signal, "pthread_sigmask", both_come_first)
        with pytest.raises(Interrupted):
            undisturbed(lambda: done.append(True))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert done == [True] and came
