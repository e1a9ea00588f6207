"""Device memory that is worked on in the host: copies that come from a CUDA device and go back."""

from __future__ import annotations

from collections.abc import Sequence

from . import _core
from .buffers import Buffer


class HostView:
    """Where buffers can be read and written in the host: where they are, or in copies of those on a device.

    Args:
        path: What the group's calls on device memory share.
        buffers: In host memory or on one CUDA device, each with whether it is read and whether it is written.
        later: What is read on a device is not fetched now, but where ``far`` is asked for it: an operation that encodes
            there copies only what it encoded.
    Raises:
        UsageError: Buffers on several devices or of several streams, or a stream that is being captured into a graph.

    Waits until what is read has come.
    """

    def __init__(
        self, path: _core.DevicePath | None, buffers: Sequence[tuple[Buffer, bool, bool]], later: bool = False
    ):
        self.pointers = [buffer.pointer for buffer, _, _ in buffers]
        self._copies: _core.HostCopies | None = None
        far = [i for i, (buffer, _, _) in enumerate(buffers) if buffer.device is not None]
        if not far:
            return
        first = buffers[far[0]][0]
        blocks = []
        for i in far:
            buffer, is_read, is_written = buffers[i]
            if buffer.device != first.device:
                raise _core.UsageError(f"a buffer on device {buffer.device}: expected device {first.device} as others")
            if not buffer.is_ordered_with(first):
                raise _core.UsageError(
                    f"a buffer used on stream {buffer.stream:#x}: expected stream {first.stream:#x} as others"
                )
            blocks.append((buffer.pointer, buffer.count * buffer.itemsize, is_read, is_written, later))
        assert path is not None and first.device is not None
        self._copies = path.fetch(first.device, first.stream, blocks)
        for i, pointer in zip(far, self._copies.pointers, strict=True):
            self.pointers[i] = pointer

    @property
    def far(self) -> _core.FarMemory | None:
        """The argument ``far`` of Group.bcast_stream and Group.allreduce_stream."""
        return None if self._copies is None else self._copies.far

    def deliver(self) -> None:
        """Copy what was written back to the device, in the order of the buffers' stream."""
        if self._copies is not None:
            self._copies.deliver()
