"""Communication hooks for DistributedDataParallel: how it averages gradients."""

# No postponed annotations here: DistributedDataParallel looks at those of a hook, and wants types.
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from . import _core, nvcomp
from .allreduce import AllreduceResult
from .arguments import Arguments
from .bcast import Relative, bound_of, check_codec
from .channels import TorchChannel, channel_of, torch_channel_of
from .stream_call import LOSSLESS, ErrorBound, StreamCall


def compressed_allreduce(
    error_bound: float | Relative | None = None,
    error_feedback: bool = True,
    *,
    codec: str = "auto",
    group: Any = None,
) -> "CompressedAllreduce":
    """Return a hook for ``model.register_comm_hook(None, hook)`` that averages gradients compressed between nodes.

    Args:
        error_bound: As in allreduce_compressed(), of the averaged gradients, parameter by parameter. None: lossless.
        error_feedback: Add what encoding left out of a step's gradients to those of the next step, so that nothing is
            lost for good. Costs one float32 per parameter of memory. Without effect where nothing is left out. Belongs
            into checkpoints: ``hook.state_dict(model)``. A step that a GradScaler skips loses what was added to it, and
            what is left is in units of the scaled loss: ``hook.load_state_dict(model, {})`` where the scale changes. So
            does a step in which no rank used a parameter (find_unused_parameters): DDP leaves its gradient out.
        codec: As in allreduce_compressed(). With a bound, runs with "auto" differ in their bits: it takes what is fast.
        group: The process group of the model, with the backend accdp, which a hook is not told of; None: the default
            group.
    Raises:
        UsageError: Not such a codec, bound or group.

    Every rank registers the same hook. Cost: docs/compression.md.
    """
    return CompressedAllreduce(error_bound, error_feedback, codec, group)


class CompressedAllreduce:
    """The hook; made by compressed_allreduce().

    Attributes:
        last: What the most recent finished bucket did, or None.

    A copy, as of a whole model by ``copy.deepcopy``, begins with nothing left out; one that was pickled averages over
    the default group, as the model itself then does.
    """

    def __init__(self, error_bound: float | Relative | None, error_feedback: bool, codec: str, group: Any):
        nvcomp.find()
        bound = bound_of(error_bound)
        check_codec(codec, bound)
        _channel_of(group)
        self._begin(bound, codec, error_feedback and bound.value > 0, group)

    def _begin(self, bound: ErrorBound, codec: str, feedback: bool, group: Any) -> None:
        self._bound, self._codec, self._feedback = bound, codec, feedback
        self._group = group  # None: what is the default group when a bucket comes
        self._buckets: dict[tuple[int, ...], torch.Tensor] = {}  # residual, by the parameters of a bucket
        # A parameter's part of its bucket's residual, for as long as the parameter lives.
        self._left: Any = WeakTensorKeyDictionary()
        self.last: AllreduceResult | None = None
        self.__name__ = self.__qualname__ = "compressed_allreduce"  # DistributedDataParallel asks a hook for both

    # A model's copy has parameters of its own, of which nothing is left out yet.

    def __copy__(self) -> "CompressedAllreduce":
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompressedAllreduce":
        copy = type(self).__new__(type(self))
        copy._begin(self._bound, self._codec, self._feedback, self._group)
        return copy

    def __getstate__(self) -> tuple[Any, ...]:
        return self._bound, self._codec, self._feedback

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        nvcomp.find()
        bound, codec, feedback = state
        self._begin(bound, codec, feedback, None)

    def state_dict(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return a copy of what this rank's steps left out, by the names of the model's parameters; for checkpoints.

        Flat, in the order of a parameter's elements, whatever its memory format: a model of another one may load it.
        Other ranks left out something else: each saves its own. Not collective.
        """
        found = {}
        for name, parameter in model.named_parameters():
            if parameter in self._left:
                left = _by_elements(self._left[parameter], parameter)
                found[name] = left.clone(memory_format=torch.contiguous_format).flatten()
        return found

    def load_state_dict(self, model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        """Take what state_dict() returned, instead of what is known; an empty one forgets all. Not collective.

        Raises:
            UsageError: A name that is no parameter of the model, another number of elements, or not floats.
        """
        parameters = dict(model.named_parameters())
        for name, left in state.items():
            count = _reals_of(parameters[name]) if name in parameters else -1
            wanted = f"a tensor of {count} floats" if name in parameters else "no such name"
            if not isinstance(left, torch.Tensor) or left.numel() != count or not left.is_floating_point():
                is_tensor = isinstance(left, torch.Tensor)
                got = f"{left.numel()} of {left.dtype}" if is_tensor else f"a {type(left).__name__}"
                raise _core.UsageError(f"state[{name!r}]: expected {wanted}, got {got}")
        self._buckets.clear()
        self._left.clear()
        for name, left in state.items():
            parameter = parameters[name]
            taken = torch.empty(left.numel(), dtype=torch.float32, device=parameter.device)
            by_elements = _by_elements(taken, parameter)
            by_elements.copy_(left.detach().reshape(by_elements.shape))
            self._left[parameter] = taken

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket; called by DistributedDataParallel."""
        gradients, channel = bucket.buffer(), _channel_of(self._group)
        if gradients.layout is not torch.strided:  # of an embedding, say: as without a hook
            work = dist.all_reduce(gradients.div_(channel.size), group=self._group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        counts = [_reals_of(parameter) for parameter in bucket.parameters()]
        residual = self._residual_of(bucket, counts) if self._feedback else None
        rounded = None if residual is None else _add(gradients, residual)
        args = Arguments(channel.rank, channel.size, device=True)
        pending = channel.allreduce(
            args.buffer("gradients", gradients, writable=True),
            counts,
            "avg",
            StreamCall(self._codec, bound=self._bound if gradients.is_floating_point() else LOSSLESS),
            residual=None if residual is None else args.buffer("residual", residual, writable=True),
            async_op=True,
        )

        def finish(future: torch.futures.Future[Any]) -> torch.Tensor:
            future.value()  # raises what the allreduce failed with
            self.last = AllreduceResult(**pending.wait(None))
            if residual is not None and rounded is not None:
                if residual.is_cuda:  # here a stream of torch's futures is current, and what backward's used may go
                    for memory in (residual, rounded):
                        memory.record_stream(torch.cuda.current_stream(memory.device))
                residual.add_(rounded)
            return gradients

        return pending.torch_future().then(finish)  # type: ignore[attr-defined]

    def _residual_of(self, bucket: dist.GradBucket, counts: list[int]) -> torch.Tensor:
        """Return what the bucket's last step left out; DDP may sort parameters into other buckets after the first."""
        parameters = bucket.parameters()
        key = tuple(id(parameter) for parameter in parameters)
        if key not in self._buckets or not all(parameter in self._left for parameter in parameters):
            # Of buckets of other parameters, such as another model's, those that are still there.
            others = {id(parameter) for parameter in self._left} - set(key)
            self._buckets = {other: kept for other, kept in self._buckets.items() if others.issuperset(other)}
            whole = torch.zeros(sum(counts), dtype=torch.float32, device=bucket.buffer().device)
            for parameter, part in zip(parameters, whole.split(counts), strict=True):
                if parameter in self._left:
                    part.copy_(self._left[parameter])
                self._left[parameter] = part
            self._buckets[key] = whole
        return self._buckets[key]


def _channel_of(group: Any) -> TorchChannel:
    channel = torch_channel_of(None) if group is None else channel_of(group)
    if not isinstance(channel, TorchChannel):
        raise _core.UsageError(
            f"group={group!r}: expected a torch process group whose backend is accdp, which the gradients' reducer uses"
        )
    return channel


def _reals_of(parameter: torch.Tensor) -> int:
    """Return how many elements of its bucket are a parameter's: buckets hold a complex number as two."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _by_elements(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a view of a parameter's part of a bucket in the parameter's shape: there it lies as the parameter does.

    Where that has gaps its elements lie in order.
    """
    shaped = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    dense = torch.empty_like(shaped, device="meta")  # has other strides than what has gaps
    return (
        part.as_strided(shaped.shape, shaped.stride()) if dense.stride() == shaped.stride() else part.view(shaped.shape)
    )


def _add(gradients: torch.Tensor, residual: torch.Tensor) -> torch.Tensor | None:
    """Add in place; return what rounding to a shorter datatype took from the sum, or None.

    Nothing is left out where either is not finite: it would be there in all steps to come.
    """
    if gradients.element_size() >= residual.element_size():
        gradients.add_(residual)
        return None
    exact = gradients.float().add_(residual)
    gradients.copy_(exact)
    return exact.sub_(gradients).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
