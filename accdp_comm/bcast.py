"""bcast_compressed: a broadcast of one tensor, or of many as one stream, that moves fewer bytes between nodes."""

from __future__ import annotations

import math
import operator
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, overload

import numpy as np

from . import _core, nvcomp, settings
from .arguments import Arguments, real_number, shown, wait_limit
from .buffers import Buffer, describe
from .channels import Pending, channel_of
from .eager import eager
from .stream_call import LOSSLESS, ErrorBound, StreamCall

_MOST_CHUNK = 16 << 20  # bytes; the core knows the rest of what makes sense


@dataclass(frozen=True)
class Relative:
    """An error bound in units of each tensor's standard deviation."""

    value: float


def relative(value: float) -> Relative:
    """Return an error bound of ``value`` times the standard deviation of each tensor's finite values.

    Raises:
        UsageError: Not a finite number above 0.
    """
    return Relative(_bound_number(value, "value", "a finite number > 0"))


@dataclass(frozen=True)
class BcastResult:
    """What a compressed broadcast did, as this rank saw it.

    Attributes:
        logical_bytes: Of the tensors.
        wire_bytes: That went over one link between nodes (through shared memory where there is one node), with heads.
        codec: That encoded most of it; "none" also where this rank got it decoded, from another of its node.
        codec_place: Where this rank encoded or decoded most of that: "host", or "device" (docs/gpu.md).
        algorithm: How it went from node to node; "flat" on one node.
        seconds: By stage: "encode", "decode", "wire" (waiting for it), "node" (shared memory) and "total".
    """

    logical_bytes: int
    wire_bytes: int
    codec: str
    codec_place: str
    algorithm: str
    seconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """Bytes of the tensors over bytes on the wire; 1.0 where nothing was sent."""
        return self.logical_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def __str__(self) -> str:
        mib, wire = self.logical_bytes / 2**20, self.wire_bytes / 2**20
        place = " on the device" if self.codec_place == "device" else ""
        stages = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in self.seconds.items())
        return f"{mib:.2f} MiB as {wire:.2f} MiB ({self.ratio:.2f}x, {self.codec}{place}, {self.algorithm}): {stages}"


class BcastWork:
    """An asynchronous bcast_compressed: wait for it before the tensors are used."""

    _Result = BcastResult

    def __init__(self, pending: Pending):
        self._pending = pending

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._pending.is_completed()

    def wait(self, timeout_s: float | None = None) -> BcastResult:
        """Return when it is done; raises what it failed with.

        Args:
            timeout_s: PeerTimeout is raised when so many seconds have passed; the operation goes on, and its tensors
                are not to be used before it has ended. None: no limit but the operation's own.
        Raises:
            UsageError: Not such a number of seconds.
        """
        try:
            return self._Result(**self._pending.wait(wait_limit("timeout_s", timeout_s)))
        finally:
            del self  # else an error, whose traceback has this frame, keeps itself and the tensors


@overload
def bcast_compressed(
    tensor: Any,
    root: int = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    reference: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: Literal[False] = ...,
) -> BcastResult: ...


@overload
def bcast_compressed(
    tensor: Any,
    root: int = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    reference: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: Literal[True],
) -> BcastWork: ...


@overload
def bcast_compressed(
    tensor: Any,
    root: int = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    reference: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: bool = ...,
) -> BcastResult | BcastWork: ...


@eager
def bcast_compressed(
    tensor: Any,
    root: int = 0,
    *,
    group: Any = None,
    codec: str = "auto",
    error_bound: float | Relative | None = None,
    reference: Any = None,
    chunk_bytes: int | None = None,
    async_op: bool = False,
) -> BcastResult | BcastWork:
    """Copy tensors of rank ``root`` to every rank, compressed between nodes where that is faster.

    Root encodes chunk after chunk while those before travel; nodes pass the encoded chunks on before they decode them,
    each node decodes once, and its ranks share the result through memory.

    Args:
        tensor: A contiguous torch tensor, NumPy array or DLPack object in host memory or on a CUDA device, of any shape
            and datatype; or a list of them, or a mapping of names to them such as a ``state_dict``, which go as one
            stream. Same counts, datatypes, names and, of torch tensors that are dense in another memory format
            (channels_last), formats on all ranks. Read on root, written elsewhere.
        root: Rank in the group that holds the data.
        group: A torch process group with the backend accdp, or a Communicator. None: torch's default group where it
            has that backend, else all ranks of the job.
        codec: "auto" samples the data and takes what is predicted to be fastest, "none" included; or a name from
            ``accdp info``, used for all tensors that it has. Between ranks of one node "auto" never compresses.
        error_bound: None: every bit arrives. A number: float tensors may arrive changed by up to it, everywhere, for
            every finite value (NaN and infinities arrive exactly). ``relative(0.01)``: by up to 0.01 of each tensor's
            standard deviation. Root's own tensors stay as they are; all other ranks get the same bits.
        reference: Tensors that all ranks hold already with the same content, usually the version before, in the same
            structure as ``tensor``; on receivers they may be ``tensor`` itself. Only differences travel; lossless.
        chunk_bytes: Size of a chunk before encoding: 4096 to 16777216, a multiple of 4096; None: the setting
            codec_chunk_bytes.
        async_op: Return at once, with a BcastWork.
    Returns:
        BcastResult; or BcastWork where async_op.
    Raises:
        UsageError: Not such tensors, an unknown codec or one that does not work here, an error bound for integers or
            together with a reference. Nothing was sent.
        MismatchError: Ranks disagree on any argument, or their references differ, by checksum: nothing was written. Of
            a short one, ranks that agree with root may have got it, and hear of it when they next wait for others, as
            root does (docs/sharp_bits.md).
        CodecError: What arrived was damaged. Tensors are undefined.
        PeerTimeout, PeerDied: A rank did not come, or is gone.

    Collective over the group. Cost: bytes / (ratio * link) plus a chunk per node, where the codec keeps up. Source:
    docs/compression.md.
    """
    nvcomp.find()
    channel = channel_of(group)
    args = Arguments(channel.rank, channel.size, device=True)
    root = args.rank_of("root", root)
    with args.naming_rank():
        names, stream = buffers_in("tensor", tensor, writable=channel.rank != root)
    if error_bound is not None and not any(x.datatype.may_have_bound for x in stream):
        # In a state_dict the counters stay exact; asking for an error in nothing but integers is a mistake.
        raise args.wrong("error_bound", "None, because there are no floats in tensor", repr(error_bound))
    if reference is not None and error_bound is not None:
        raise args.wrong("error_bound", "None where a reference is given: differences are sent exactly", error_bound)
    old = None
    if reference is not None:
        old = _references(args, reference, names, stream, writes=channel.rank != root)
    if async_op:
        for name, x in zip(names, stream, strict=True):
            args.any_threads(name, x)
    with args.naming_rank():
        bound, chunk = bound_of(error_bound), chunk_of(chunk_bytes)
        check_codec(codec, bound, chunk)
    call = StreamCall(codec, chunk, bound, label_of(names, stream))
    pending = channel.bcast(stream, old, root, call, async_op=async_op)
    return BcastWork(pending) if async_op else BcastResult(**pending.wait(None))


def flatten(name: str, value: Any) -> tuple[list[str], list[Any]]:
    """Return the tensors in a tensor, list or mapping, and what to call them."""
    if isinstance(value, Mapping):
        return [f"{name}[{key!r}]" for key in value], list(value.values())
    if isinstance(value, (list, tuple)):
        return [f"{name}[{index}]" for index in range(len(value))], list(value)
    return [name], [value]


def buffers_in(name: str, value: Any, *, writable: bool) -> tuple[list[str], list[Buffer]]:
    """Return what to call the tensors in a tensor, list or mapping, and where they are; raises UsageError."""
    names, tensors = flatten(name, value)
    found = []
    for which, x in zip(names, tensors, strict=True):
        try:
            found.append(describe(x, which, writable=writable, device=True, any_order=True))
        except Exception:  # a mapping may answer to any name, and then not as an array does
            if isinstance(x, (Mapping, Iterator, list, tuple)) or callable(getattr(x, "state_dict", None)):
                raise _core.UsageError(
                    f"{which} is a {type(x).__name__}: expected a tensor, or one flat list or mapping of tensors"
                ) from None
            raise
    return names, found


def label_of(names: Sequence[str], stream: Sequence[Buffer]) -> int:
    """Return a checksum of what all ranks must call the tensors, and of the order of their elements in memory."""
    lines = [f"{name}{x.order}" if x.order else name for name, x in zip(names, stream, strict=True)]
    return zlib.crc32("\n".join(lines).encode())


def rebuild(like: Any, tensors: list[Any]) -> Any:
    """Return tensors in the structure that flatten() took apart."""
    if isinstance(like, Mapping):
        return dict(zip(like, tensors, strict=True))
    return tensors if isinstance(like, (list, tuple)) else tensors[0]


def bound_of(error_bound: Any) -> ErrorBound:
    """Return what the argument ``error_bound`` means; raises UsageError."""
    if error_bound is None:
        return LOSSLESS
    if isinstance(error_bound, Relative):
        return ErrorBound(error_bound.value, True)
    return ErrorBound(_bound_number(error_bound, "error_bound", "a finite number > 0 or relative(number)"))


def _bound_number(value: Any, name: str, expected: str) -> float:
    number = real_number(value)
    if not math.isfinite(number) or number <= 0:
        raise _core.UsageError(f"{name}: expected {expected}, got {shown(value)}")
    return number


def chunk_of(chunk_bytes: Any) -> int:
    """Return the size of a chunk, 0 for None; raises UsageError."""
    if chunk_bytes is None:
        return 0
    try:
        number = operator.index(chunk_bytes)
    except TypeError:
        number = 0
    if not 0 < number <= _MOST_CHUNK:
        raise _core.UsageError(f"chunk_bytes={shown(chunk_bytes)}: expected 4096 to 16777216, a multiple of 4096")
    return number


def check_codec(codec: Any, bound: ErrorBound = LOSSLESS, chunk: int = 0) -> None:
    """Raise UsageError: no such codec, one that needs a bound where there is none, a chunk size that makes no sense."""
    if not isinstance(codec, str) or not codec.isprintable():
        raise _core.UsageError(f"codec={codec!r}: expected a name")
    _core.check_stream(codec, chunk)
    if not bound.value and codec in lossy_codecs():
        raise _core.UsageError(f"codec={codec}: expected an error_bound, because it is lossy")


def codec_by_setting() -> str:
    """Return the setting ``codec``, which the table of settings takes whatever it is; raises UsageError."""
    codec = settings.value_of("codec")
    if codec in lossy_codecs():
        raise _core.UsageError(
            f"ACCDP_CODEC={codec}: expected a lossless codec: a lossy one needs an error_bound, which "
            "accdp_comm.Options has, too"
        )
    if codec not in lossless_codecs():
        text = codec if codec.isprintable() else repr(codec)
        raise _core.UsageError(f"ACCDP_CODEC={text}: expected {', '.join(lossless_codecs())}")
    return codec


@cache
def lossy_codecs() -> frozenset[str]:
    """Return the names of the codecs that need an error bound."""
    return frozenset(row["name"] for row in nvcomp.codecs() if row["lossy"])


@cache
def lossless_codecs() -> tuple[str, ...]:
    """Return what may stand for a codec where there is no error bound."""
    return "auto", "none", *(row["name"] for row in nvcomp.codecs() if not row["lossy"])


def _references(
    args: Arguments, reference: Any, names: Sequence[str], stream: Sequence[Buffer], *, writes: bool
) -> list[Buffer]:
    """Return one reference per tensor, like it in count and datatype; ``writes``: whether tensors are overwritten."""
    keys, values = flatten("tensor", reference)
    if sorted(keys) != sorted(names):
        raise args.wrong("reference", f"the structure of tensor, {len(names)} entries", f"{len(keys)} other entries")
    by_name = dict(zip(keys, values, strict=True))
    found = []
    for name, like in zip(names, stream, strict=True):
        title = "reference" + name.removeprefix("tensor")
        buffer = args.buffer(title, by_name[name], writable=False, any_order=True)
        args.same_kind(title, buffer, like, one_stream=False)  # which the channel sees to
        if buffer.count != like.count:
            raise args.wrong(title, f"{like.count} elements", buffer.count)
        if buffer.order != like.order:
            raise args.wrong(title, f"the memory format of {name}", "another one")
        found.append(buffer)
    return _apart(args, found, stream) if writes else found


def _apart(args: Arguments, old: list[Buffer], stream: Sequence[Buffer]) -> list[Buffer]:
    """Return references that stay as they are while tensors are written: copies where one is in another's memory.

    Each may be the tensor's own memory, but not that of another one, as of a weight that has two names.
    """
    begins = sorted(x.pointer for x in stream if x.count)
    ends = sorted(x.block(x.count, 0)[0] for x in stream if x.count)
    apart = []
    for x, own in zip(old, stream, strict=True):
        # So many tensors begin before this one ends, less those that end before it begins.
        met = bisect_left(begins, x.block(x.count, 0)[0]) - bisect_right(ends, x.pointer)
        if x.count and met > (x.pointer == own.pointer):
            x = args.buffer("reference", copy_of(x.owner), writable=False)
        apart.append(x)
    return apart


def copy_of(tensor: Any) -> Any:
    """Return a copy of a torch tensor, a NumPy or CuPy array, or of what has DLPack, where it is."""
    if hasattr(tensor, "clone"):
        import torch

        with torch.inference_mode(False):  # else what is made in that mode cannot be written to outside of it
            return tensor.detach().clone()
    return tensor.copy() if hasattr(tensor, "copy") else np.from_dlpack(tensor).copy()
