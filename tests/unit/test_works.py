"""isend and irecv of memory on a device, with stand-ins for the device's side: when data is fetched and delivered."""

import gc
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from accdp_comm import Communicator, UsageError, leaving, messages, waitall


class View:
    """As device_memory.HostView, of arrays that lie in the host; remembers what it was asked for."""

    made: list = []

    def __init__(self, path, buffers):
        (self.buffer, self.is_read, self.is_written), *_ = buffers
        self.copy = self.buffer.owner.copy()
        self.pointers = [self.copy.ctypes.data]
        self.delivered = 0
        View.made.append(self)

    def deliver(self):
        self.delivered += 1
        self.buffer.owner[:] = self.copy


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(messages, "HostView", View)
    monkeypatch.setattr(View, "made", [])
    with Communicator() as made:
        describe = made._args.buffer

        def on_device(name, x, *, writable):
            return replace(describe(name, x, writable=writable), device=0, stream=0)

        monkeypatch.setattr(made._args, "buffer", on_device)
        monkeypatch.setattr(made, "_path", lambda: None)
        yield made


def test_delivered_once_by_who_is_told(alone):
    sent, got = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    itself = np.int64(0)  # which the core does not take as it is, as it does not the arrays of a device
    work = alone.irecv(got, itself)
    assert not work.test() and not got.any()
    alone.isend(sent, itself)
    sent[:] = 9  # was fetched already
    assert work.is_completed() and not got.any()
    assert waitall([work]) == [0] and got.tolist() == [0, 1, 2, 3, 4]
    assert work.wait() == 0 and work.test()
    receiving, sending = View.made
    assert (receiving.is_read, receiving.is_written, receiving.delivered) == (False, True, 1)
    assert (sending.is_read, sending.is_written, sending.delivered) == (True, False, 0)


def test_of_a_dropped_work_nothing_is_kept_once_the_communicator_is_closed():
    got = np.zeros(3)
    references = sys.getrefcount(got)
    with Communicator() as comm:
        comm.irecv(got, 0, 1)
        comm.send(np.ones(3), 0, 1)
    assert sys.getrefcount(got) == references
    assert got.all()


def test_a_communicator_whose_messages_are_under_way_is_left_in_order_at_the_end():
    """It is known by Python's object of its group, as long as a work needs it, or a message that nobody asks about."""
    comm = Communicator()
    group = weakref.ref(comm._core)
    work = comm.irecv(np.zeros(3), 0, 3)
    del comm
    gc.collect()
    assert group() in leaving._groups
    del work
    gc.collect()
    assert group() in leaving._groups
    with pytest.raises(UsageError, match="closed with open receives"):
        group().settle()
    gc.collect()
    assert group() is None
