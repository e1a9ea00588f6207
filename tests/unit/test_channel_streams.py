"""Device arrays of other libraries in a torch group keep the order of their own streams. Without a device."""

import types

import pytest

from accdp_comm import channels
from accdp_comm._core import Datatype
from accdp_comm.buffers import Buffer
from accdp_comm.stream_call import StreamCall

torch = pytest.importorskip("torch")


class Stream:
    """Writes down what is to wait for what."""

    def __init__(self, name: str, log: list):
        self.name, self.log, self.device = name, log, 1

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} after {other.name}")


@pytest.fixture
def log(monkeypatch) -> list:
    """What is done, in order, on a machine whose torch has CUDA."""
    log: list = []
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda ptr, device: Stream(f"stream {ptr}", log))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream("default", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("current", log))
    monkeypatch.setattr(channels, "_as_tensor", lambda buffer: buffer)
    return log


class Backend:
    """Does nothing but say so."""

    def __init__(self, log: list):
        self._log = log

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def bcast_stream(self, *args) -> types.SimpleNamespace:
        self._log.append("broadcast")
        return types.SimpleNamespace(wait=lambda limit: self._log.append("wait") or {"codec": "fpk"})


def on_device(stream: int, owner: object = None) -> Buffer:
    return Buffer(
        4096, 6, Datatype.f32, 4, (6,), object() if owner is None else owner, "float32", device=1, stream=stream
    )


def bcast(log: list, *buffers: Buffer) -> list:
    channel = channels.TorchChannel(Backend(log))
    pending = channel.bcast(list(buffers), None, 0, StreamCall("auto"), async_op=True)
    log.append("meanwhile")
    assert pending.wait(None) == {"codec": "fpk"}
    return log


def test_their_stream_comes_before_and_after(log):
    assert bcast(log, on_device(64), on_device(64)) == [
        "current after stream 64",
        "broadcast",
        "meanwhile",
        "wait",
        "stream 64 after current",
    ]


def test_the_default_stream_is_torchs_own(log):
    assert bcast(log, on_device(1))[0] == "current after default"


def test_tensors_of_torch_are_in_order_anyway(log):
    assert bcast(log, on_device(64, torch.zeros(6))) == ["broadcast", "meanwhile", "wait"]
