"""isend and irecv of device memory, without a device: what MPI gets as it is, and after what."""

import pytest

from accdp_comm import messages
from accdp_comm._core import Datatype
from accdp_comm.buffers import Buffer

ON_DEVICE = Buffer(4096, 1000, Datatype.f32, 4, (1000,), "the owner", "float32", device=1, stream=7)


class Recorder(messages.Messages):
    """A Communicator whose group and device only write down what is asked of them."""

    def __init__(self, takes: bool):
        self.asked: list[tuple] = []
        self._core = self._args = self
        self._takes = takes

    def try_isend(self, *args):
        return None

    try_irecv = try_isend

    def rank_of(self, name, rank):
        return rank

    def source(self, rank):
        return rank

    def buffer(self, name, x, writable):
        return x

    def tag(self, tag):
        return tag

    def any_threads(self, name, data):
        assert (name, data) == ("x", ON_DEVICE)

    def takes_device_memory(self, nbytes, peer):
        assert (nbytes, peer) == (4000, 3)
        return self._takes

    def _path(self):
        return self

    def await_stream(self, device, stream):
        self.asked.append(("await", device, stream))


@pytest.mark.parametrize("way", ["isend", "irecv"])
def test_device_memory_goes_as_it_is_once_its_stream_has_come(monkeypatch, way):
    comm = Recorder(takes=True)
    # The group's own method has the name of Communicator's.
    monkeypatch.setattr(comm, way, lambda *what: comm.asked.append(what), raising=False)
    getattr(messages.Messages, way)(comm, ON_DEVICE, 3, 5)
    assert comm.asked == [("await", 1, 7), (4096, 1000, Datatype.f32, 3, 5, "the owner")]


@pytest.mark.parametrize("way", ["isend", "irecv"])
def test_else_it_passes_through_the_host(monkeypatch, way):
    comm = Recorder(takes=False)
    monkeypatch.setattr(comm, way, lambda *what: comm.asked.append(what), raising=False)

    class View:
        pointers = (64,)

        def __init__(self, path, buffers):
            assert path is comm and buffers == [(ON_DEVICE, way == "isend", way == "irecv")]

        def deliver(self):
            pass

    monkeypatch.setattr(messages, "HostView", View)
    getattr(messages.Messages, way)(comm, ON_DEVICE, 3, 5)
    ((pointer, count, datatype, peer, tag, (owner, _), *then),) = comm.asked
    assert (pointer, count, datatype, peer, tag, owner) == (64, 1000, Datatype.f32, 3, 5, "the owner")
    assert len(then) == (way == "irecv")
