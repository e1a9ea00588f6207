"""Signals that come while daemons stop: they wait, whichever thread the kernel gives them to."""

import os
import signal
import threading

import pytest

from accdp_comm.launch.interruption import Interrupted, signals_wait


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_whichever_thread_takes_it(number):
    def raise_it(number, _):
        raise Interrupted(number)

    before = signal.signal(number, raise_it)
    is_done, stops = False, threading.Event()
    other = threading.Thread(target=stops.wait)  # has none of them blocked
    other.start()
    try:
        with pytest.raises(Interrupted) as caught:
            with signals_wait():
                os.kill(os.getpid(), number)
                stops.wait(0.2)
                is_done = True
            stops.wait(10)
        assert is_done and caught.value.number == number
        assert signal.getsignal(number) is raise_it and number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        stops.set()
        other.join()
        signal.signal(number, before)
