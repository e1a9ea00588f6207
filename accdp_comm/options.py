"""Options: what a torch process group with the backend accdp does by default (``pg_options``)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

from . import _core, nvcomp
from .arguments import check_switch
from .bcast import Relative, bound_of, check_codec, chunk_of, codec_by_setting

# What torch's own options have, as far as this torch has them.
_TORCHS = ("_timeout", "group_name", "global_ranks_in_group", "use_pg_for_symm_mem_rendezvous")


class Options(Backend.Options):
    """Options of one process group, for ``pg_options`` of init_process_group and new_group; equal on all its ranks.

    Args:
        codec: How ``dist.broadcast``, and with it DistributedDataParallel's first synchronisation of parameters and
            buffers, compresses what goes to other nodes: "auto", "none" or a codec of ``accdp info``, which encodes on
            one node, too. None: "auto" with an error_bound or chunk_bytes, else the setting ``codec``.
        error_bound: Absolute, in the values' own units; root too ends with what the others get, since replicas must be
            alike. No relative() one: DistributedDataParallel broadcasts many parameters and buffers as one tensor, by
            whose standard deviation small ones would be rounded to nothing.
        chunk_bytes: As in bcast_compressed().
        deterministic: Reductions give the same bits for any number of nodes and ranks per node: contributions are added
            in the order of ranks. More bytes travel between nodes. None: the setting ``deterministic``.

    The time-out is no option of ours: ``split_group(opts=...)`` and ``shrink_group(pg_options=...)``, which have no
    argument for it, take the attribute ``_timeout`` that torch's options have (30 min).

    Raises:
        UsageError: No such codec, or one that needs a bound and has none; not such a bound, size or switch.
    """

    def __init__(
        self,
        codec: str | None = None,
        error_bound: float | None = None,
        chunk_bytes: int | None = None,
        deterministic: bool | None = None,
    ):
        super().__init__("accdp", timedelta(minutes=30))
        nvcomp.find()
        if isinstance(error_bound, Relative):
            raise _core.UsageError(
                f"error_bound=relative({error_bound.value:g}): expected an absolute bound, since what is broadcast may "
                "be many tensors in one; bcast_compressed() takes relative ones"
            )
        bound = bound_of(error_bound)
        chunk = chunk_of(chunk_bytes)
        if codec is None and error_bound is None and chunk_bytes is None:
            chosen = codec_by_setting()
        else:
            chosen = "auto" if codec is None else codec
            check_codec(chosen, bound, chunk)
        check_switch("deterministic", deterministic)
        self.codec, self.chunk_bytes = chosen, chunk
        self.error_bound = bound.value
        self.deterministic = deterministic

    def __reduce__(self) -> tuple[Any, ...]:
        torchs = {name: getattr(self, name) for name in _TORCHS if hasattr(self, name)}
        return _renewed, (type(self), vars(self), torchs)

    def apply(self, backend: Any) -> None:
        """Make a backend behave so."""
        backend.set_bcast(self.codec, self.chunk_bytes, self.error_bound)
        if self.deterministic is not None:
            backend.set_deterministic(bool(self.deterministic))


def _renewed(kind: type[Options], values: dict[str, Any], torchs: dict[str, Any]) -> Options:
    """Return a copy, in this or another process."""
    nvcomp.find()
    made = kind.__new__(kind)
    Backend.Options.__init__(made, "accdp")
    for name, value in torchs.items():
        setattr(made, name, value)
    vars(made).update(values)
    return made
