"""WeightSync: the weights of one rank on all others, again and again, as differences to the version before."""

from __future__ import annotations

from typing import Any

from . import _core, buffers, nvcomp
from .arguments import Arguments
from .bcast import BcastResult, bcast_compressed, buffers_in, check_codec, chunk_of, copy_of, flatten, rebuild
from .channels import channel_of
from .eager import eager


class WeightSync:
    """Keeps tensors of all ranks equal to those of rank ``root``, for instance a trainer's weights in its rollouts.

    The first sync() sends everything, later ones only what changed since the last: bf16 weights change in few bits
    between two optimiser steps. A rank whose tensors are not the last version (it joined late, or wrote to them) gets
    everything again, and so do the others in that round.

    Args:
        tensors: As in bcast_compressed(); every sync() looks anew what is in a list or mapping. Where names, shapes,
            datatypes or memory formats are not those of the last version, everything is sent again.
        root: Rank in the group whose tensors count.
        group, codec, chunk_bytes: As in bcast_compressed().
    Raises:
        UsageError: Not such tensors, no such codec, one that needs an error bound, or not such a size of chunks.

    Every rank of the group makes one; that is local, and what ranks disagree on is told by the first sync().

    Root keeps a copy of the last version, so it needs the memory of the tensors twice; receivers compare a checksum of
    what they hold, and need none. From the second sync() on each rank reads all tensors once for that checksum, on one
    thread; those on a CUDA device are copied to the host for it, one at a time. Lossless.
    """

    def __init__(
        self, tensors: Any, root: int = 0, *, group: Any = None, codec: str = "auto", chunk_bytes: int | None = None
    ):
        nvcomp.find()
        buffers_in("tensors", tensors, writable=False)  # what a group says to them comes with the first sync()
        check_codec(codec, chunk=chunk_of(chunk_bytes))
        self._tensors, self._root, self._group = tensors, root, group
        self._codec, self._chunk_bytes = codec, chunk_bytes
        self._version, self._check = 0, 0
        self._previous: Any = None  # root: copies, in the structure of the tensors

    @property
    def version(self) -> int:
        """How many versions this rank knows of: 0 before its first sync()."""
        return self._version

    @eager
    def sync(self) -> BcastResult:
        """Bring all ranks' tensors to the root's state. Collective over the group, blocking; errors as
        bcast_compressed(), whose result it returns.
        """
        channel = channel_of(self._group)
        root = Arguments(channel.rank, channel.size).rank_of("root", self._root)
        is_root = channel.rank == root
        args = Arguments(channel.rank, channel.size, device=True)
        with args.naming_rank():  # what is refused is so before others are asked for anything
            buffers_in("tensors", self._tensors, writable=not is_root)
        if is_root and not self._is_laid_out_as_before():
            self._previous = None
        held = self._previous if is_root else self._tensors
        # What a receiver holds must be what the root believes it to hold; its own memory of it does not prove that.
        # Who holds no version says 0. A version whose checksum is 0 goes as a whole.
        mine = (self._version, self._checksum(held) if self._version and held is not None else 0)
        rows = channel.table(mine, "in WeightSync.sync(), whose ranks first compare what they hold")
        base = rows[root]
        goes_as_difference = base[1] != 0 and all(row == base for row in rows)
        result = bcast_compressed(
            self._tensors,
            root,
            group=self._group,
            codec=self._codec,
            chunk_bytes=self._chunk_bytes,
            reference=held if goes_as_difference else None,
        )
        self._version = max(row[0] for row in rows) + 1  # as the others have it, whatever becomes of our copy
        if is_root:
            self._remember()
        return result

    def _is_laid_out_as_before(self) -> bool:
        if self._previous is None:
            return False
        (held_names, held), (names, tensors) = (flatten("tensor", x) for x in (self._previous, self._tensors))
        return held_names == names and all(map(_has_room, held, tensors))

    def _remember(self) -> None:
        _, tensors = flatten("tensor", self._tensors)
        if self._previous is None:
            copies = [copy_of(tensor) for tensor in tensors]
        else:
            copies = list(map(_copied_into, flatten("tensor", self._previous)[1], tensors))
        self._previous = rebuild(self._tensors, copies)

    def _checksum(self, held: Any) -> int:
        check = 0
        for name, tensor in zip(*flatten("tensor", held), strict=True):
            buffer = buffers.describe(_in_host(tensor), name, writable=False, any_order=True)
            check = _core.crc32c(buffer.pointer, buffer.count * buffer.datatype.itemsize, check)
        return check


def _in_host(tensor: Any) -> Any:
    """Return a tensor, or a copy of it if it is on a CUDA device."""
    if getattr(tensor, "is_cuda", False):  # torch
        return tensor.detach().cpu()
    if hasattr(tensor, "__cuda_array_interface__") and hasattr(tensor, "get"):  # CuPy
        return tensor.get()
    return tensor


def _has_room(old: Any, new: Any) -> bool:
    # What is no array at all is for bcast_compressed() to refuse.
    # On another device neither can be the other's reference.
    return all(getattr(old, name, None) == getattr(new, name, None) for name in ("shape", "dtype", "device")) and (
        not hasattr(new, "stride") or buffers.memory_order(old) == buffers.memory_order(new)
    )


def _copied_into(old: Any, new: Any) -> Any:
    """Return a copy of ``new``, in the memory of ``old`` where that can be written to."""
    if hasattr(old, "copy_"):
        return old.copy_(new.detach())
    try:
        old[...] = new
    except TypeError:  # it has no such assignment, as arrays of JAX
        return copy_of(new)
    return old
