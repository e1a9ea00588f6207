"""Device memory that is worked on in the host: copies that come from a CUDA device and go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from .buffers import Buffer

if TYPE_CHECKING:
    from ._core import Collectives, DevicePath, Group
    from .arguments import Arguments


class OnDevices:
    """Base class of Communicator: how its calls on device memory are made."""

    _core: Group
    _args: Arguments
    _device_path: DevicePath | None = None

    @property
    def device_path(self) -> str:
        """How arrays on a CUDA device go between the ranks: empty before the first, else as docs/gpu.md tells."""
        return self._device_path.describe() if self._device_path else ""

    def _path(self) -> DevicePath:
        """Return what the calls on device memory share: one, whichever threads come first (setdefault is one step)."""
        self._device_path = self._device_path or vars(self).setdefault("_first_path", _core.DevicePath(self._core))
        return self._device_path

    def _path_of(self, *data: Buffer) -> DevicePath | None:
        for one in data:
            if one.device is not None:
                return self._path()
        return None

    def _via(self, data: Buffer, *owners: Any) -> Collectives | None:
        """Return how an operation on ``data`` is carried out: None for host memory.

        Args:
            owners: Of all other memory that the operation uses: kept if the device may go on with it after a failure.
        """
        if data.device is None:
            return None
        with self._args.naming_rank():
            return _core.DeviceCollectives(self._path(), data.device, data.stream, (data, owners))


def mark_of(path: _core.DevicePath, buffers: Sequence[Buffer]) -> _core.StreamMark | None:
    """Return what the stream of those on a device holds now, for a HostView on another thread; None if there are none.

    Raises:
        UsageError: As HostView().
    """
    on_device = [buffer for buffer in buffers if buffer.device is not None]
    return path.mark(*_place(on_device)) if on_device else None


def _place(on_device: Sequence[Buffer]) -> tuple[int, int]:
    """Return the device that all of them are on, and the stream in whose order they are used."""
    first = on_device[0]
    for buffer in on_device:
        if buffer.device != first.device:
            raise _core.UsageError(f"a buffer on device {buffer.device}: expected device {first.device} as others")
        if not buffer.is_ordered_with(first):
            raise _core.UsageError(
                f"a buffer used on stream {buffer.stream:#x}: expected stream {first.stream:#x} as others"
            )
    assert first.device is not None
    return first.device, first.stream


class HostView:
    """Where buffers can be read and written in the host: where they are, or in copies of those on a device.

    Args:
        path: What the group's calls on device memory share.
        buffers: In host memory or on one CUDA device, each with whether it is read and whether it is written.
        later: What is read on a device is not fetched now, but where ``on_device`` is asked for it: an operation that
            encodes there copies only what it encoded.
        mark: What the buffers' stream held when the operation was called, if that was on another thread. The stream
            may be gone since, so it is left alone, and deliver() returns when all is done.
    Raises:
        UsageError: Buffers on several devices or of several streams, or a stream that is being captured into a graph.

    Waits until what is read has come.
    """

    def __init__(
        self,
        path: _core.DevicePath | None,
        buffers: Sequence[tuple[Buffer, bool, bool]],
        later: bool = False,
        mark: _core.StreamMark | None = None,
    ):
        self.pointers = [buffer.pointer for buffer, _, _ in buffers]
        self._copies: _core.HostCopies | None = None
        on_device = [i for i, (buffer, _, _) in enumerate(buffers) if buffer.device is not None]
        if not on_device:
            return
        assert path is not None
        device, stream = _place([buffers[i][0] for i in on_device])
        blocks = []
        for i in on_device:
            buffer, is_read, is_written = buffers[i]
            blocks.append((buffer.pointer, buffer.count * buffer.itemsize, is_read, is_written, later))
        # What is fetched now has come when this returns, and what is delivered keeps the order of the stream.
        owners = [buffer.owner for buffer, _, _ in buffers] if later else None
        self._copies = (
            path.fetch(device, stream, blocks, owners) if mark is None else path.fetch_behind(mark, blocks, owners)
        )
        for i, pointer in zip(on_device, self._copies.pointers, strict=True):
            self.pointers[i] = pointer

    @property
    def on_device(self) -> _core.DeviceTensors | None:
        """The argument ``on_device`` of Group.bcast_stream and Group.allreduce_stream."""
        return None if self._copies is None else self._copies.on_device

    def deliver(self) -> None:
        """Copy what was written back to the device, in the order of the buffers' stream."""
        if self._copies is not None:
            self._copies.deliver()
