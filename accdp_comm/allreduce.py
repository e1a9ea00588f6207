"""allreduce_compressed: an allreduce that moves fewer bytes between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from . import _core, nvcomp
from .arguments import Arguments
from .bcast import BcastResult, BcastWork, Relative, bound_of, check_codec, chunk_of, label_of
from .buffers import Buffer
from .channels import channel_of
from .eager import eager
from .stream_call import StreamCall


class AllreduceResult(BcastResult):
    """What a compressed allreduce did, as this rank saw it.

    ``logical_bytes`` is what this rank would have sent to other nodes without a codec, ``wire_bytes`` what it sent;
    both are 0 on one node and in deterministic groups, and on ranks that left it to their node's leader. ``algorithm``:
    "leaders" or "lanes" (all ranks of a node send, each its share); of what went without a codec also "direct", "ring"
    and the others of docs/algorithms.md; "rank_order" (deterministic groups) or "flat". ``codec``, ``codec_place`` and
    ``seconds`` as in BcastResult.
    """


class AllreduceWork(BcastWork):
    """An asynchronous allreduce_compressed: its wait() returns an AllreduceResult."""

    _Result = AllreduceResult


@overload
def allreduce_compressed(
    tensor: Any,
    op: str = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    parts: Sequence[int] | None = ...,
    residual: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: Literal[False] = ...,
) -> AllreduceResult: ...


@overload
def allreduce_compressed(
    tensor: Any,
    op: str = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    parts: Sequence[int] | None = ...,
    residual: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: Literal[True],
) -> AllreduceWork: ...


@overload
def allreduce_compressed(
    tensor: Any,
    op: str = ...,
    *,
    group: Any = ...,
    codec: str = ...,
    error_bound: float | Relative | None = ...,
    parts: Sequence[int] | None = ...,
    residual: Any = ...,
    chunk_bytes: int | None = ...,
    async_op: bool = ...,
) -> AllreduceResult | AllreduceWork: ...


@eager
def allreduce_compressed(
    tensor: Any,
    op: str = "sum",
    *,
    group: Any = None,
    codec: str = "auto",
    error_bound: float | Relative | None = None,
    parts: Sequence[int] | None = None,
    residual: Any = None,
    chunk_bytes: int | None = None,
    async_op: bool = False,
) -> AllreduceResult | AllreduceWork:
    """Combine ``tensor`` of all ranks element by element, in place, compressed between nodes where that is faster.

    On a node the ranks reduce through shared memory. Between nodes each part of the message has an owner: the others
    encode their node's sum of it, the owner decodes and adds up what it got in a fixed order, encodes the result once,
    and takes what that decodes to. So all ranks end with the same bits.

    Args:
        tensor: A contiguous torch tensor, NumPy array or DLPack object in host memory or on a CUDA device; bool,
            (u)int8..64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128. Same
            count and datatype on all ranks; a torch tensor may be dense in another memory format (channels_last), if
            it is on all ranks and there are no ``parts``. Is replaced.
        op: sum, avg (not of bool), prod, min, max (not of complex); band, bor, bxor of integers and bool; equal on all
            ranks.
        group: A torch process group with the backend accdp, or a Communicator. None: torch's default group where it
            has that backend, else all ranks of the job.
        codec: "auto" samples the data and takes what is predicted to be fastest, "none" included; or a name from
            ``accdp info``. Between ranks of one node nothing is compressed, nor in a deterministic group, which takes
            "auto" and "none" only.
        error_bound: None: the result is what it would be without a codec. A number, for sum and avg of floats: every
            finite element of the result may be off by up to it, beside the rounding of the datatype.
            ``relative(0.01)``: by up to 0.01 of the standard deviation that the result would have if the ranks'
            contributions were independent: sqrt(sum of their variances), divided by the number of ranks for avg.
        parts: Counts of the tensors that lie one after the other in ``tensor``, for relative bounds of their own. None:
            it is one.
        residual: float32, as many elements as ``tensor``, in the same memory: takes what encoding left out of what this
            rank sent, in units of a contribution, so that result + sum of all residuals (divided for avg) is the exact
            result; of float64 no more than float32 holds, which may be 3.4e38 at most.
        chunk_bytes: Longest chunk before encoding: 4096 to 16777216, a multiple of 4096; None: the setting
            codec_chunk_bytes.
        async_op: Return at once, with an AllreduceWork.
    Returns:
        AllreduceResult; or AllreduceWork where async_op.
    Raises:
        UsageError: Not such a tensor, an unknown op or codec, a bound for integers or another op, a bound or a codec
            in a deterministic group. Nothing was sent.
        MismatchError: Ranks disagree on any argument: nothing was written.
        CodecError: What arrived was damaged. The tensor is undefined.
        PeerTimeout, PeerDied: A rank did not come, or is gone.

    Collective over the group. Cost: 2 * bytes * (nodes - 1) / nodes / ratio over the link, beside 2 or 3 passes over
    shared memory. Source: docs/compression.md.
    """
    nvcomp.find()
    channel = channel_of(group)
    args = Arguments(channel.rank, channel.size, device=True)
    data = args.buffer("tensor", tensor, writable=True, any_order=parts is None)
    args.op(op, data, "tensor")
    if async_op:
        args.any_threads("tensor", data)
    if error_bound is not None and (not data.datatype.may_have_bound or op not in ("sum", "avg")):
        raise args.wrong("error_bound", f"None for {op} of {data.kind}", repr(error_bound))
    try:
        bound, chunk = bound_of(error_bound), chunk_of(chunk_bytes)
        check_codec(codec, bound, chunk)
    except _core.UsageError as error:
        raise _core.UsageError(f"rank {channel.rank} of {channel.size}: {error}") from None
    counts = [data.count] if parts is None else args.whole_numbers("parts", parts)
    if sum(counts) != data.count:
        raise args.wrong("parts", f"counts that add up to {data.count}", counts)
    counts = counts or [0]  # without any part nothing would have the datatype
    call = StreamCall(codec, chunk, bound, label_of(["tensor"], [data]) if data.order else 0)
    left = None if residual is None else _residual(args, residual, data)
    pending = channel.allreduce(data, counts, op, call, residual=left, async_op=async_op)
    return AllreduceWork(pending) if async_op else AllreduceResult(**pending.wait(None))


def _residual(args: Arguments, residual: Any, data: Buffer) -> Buffer:
    buffer = args.buffer("residual", residual, writable=True, any_order=True)
    if buffer.datatype.name != "f32" or buffer.count != data.count:
        got = f"{buffer.count} {buffer.kind}"
        raise args.wrong("residual", f"float32 of {data.count} elements", got)
    if buffer.order != data.order:
        raise args.wrong("residual", "the memory format of tensor", "another one")
    if buffer.device != data.device:
        raise args.wrong("residual", "the memory that tensor is in", "other memory")
    if buffer.overlaps(data):
        raise args.wrong("residual", "memory beside that of tensor", "memory that both are in")
    return buffer
