"""The torch.distributed backend "accdp": torch calls create() for every process group it makes with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core, _torch, autoload, leaving, mpi_world, rendezvous, steps, uncaught
from .arguments import ENDLESS_SECONDS, real_number
from .bootstrap import form_for_all, form_group
from .eager import eager
from .exchange import StoreExchange, names
from .options import Options

# How long a process that ends goes on with what its groups have yet to do: all of them together, and each.
_PATIENCE_S, _LEAST_PATIENCE_S = 5.0, 0.25

autoload.register()  # for those who turned torch's autoloading off and import this instead


def create(options: Any, pg_options: Any = None) -> C10dBackend:
    """Make the backend of one process group; torch's creator function (extended API).

    Args:
        options: torch's DistributedBackendOptions: store, group_rank, group_size, timeout, group_id,
            global_ranks_in_group (empty for the default group).
        pg_options: None, or the options that torch itself passes on.
    Raises:
        UsageError: ``pg_options`` of another backend, or what form_group() refuses.

    Collective among the group's members only.
    """
    # torch's own options carry the time-out and the ranks, which `options` says too.
    if not (pg_options is None or isinstance(pg_options, C10dBackend.Options)):
        raise _core.UsageError(
            f"rank {options.group_rank} of {options.group_size}: pg_options is a {type(pg_options).__qualname__}: "
            "expected accdp_comm.Options"
        )
    ranks = list(options.global_ranks_in_group)
    world = seat(ranks[options.group_rank]) if ranks else None
    rank, size, name = options.group_rank, options.group_size, options.group_id
    # torch counts names from 0 again in each world, and after shrink_group() ranks, too.
    label = f"{_world().label}.{name}" if ranks and _world() is not None else name
    ended = who_has_ended(ranks)
    backend = _form(
        options.store, rank, size, options.timeout, name, label=label, members=ranks, world=world, ended=ended
    )
    (pg_options if isinstance(pg_options, Options) else Options()).apply(backend)
    return backend


def split(
    parent: Any, ranks: Sequence[int], rank: int, options: C10dBackend.Options, name: str, label: str
) -> C10dBackend:
    """Make the backend of a group split from another; called by ProcessGroupAccdp::split on the new group's members.

    Args:
        parent: The backend of the group they come from.
        ranks: The members, as ranks of that group.
        rank: Place in the new group.
        options: Its own, if they are accdp_comm.Options; of others the time-out counts, and all else is the parent's.
        name: Of the new group on this rank.
        label: Tells the split apart from all others, with equal text on all members.
    """
    size, timeout = len(ranks), options._timeout
    members = [parent.options.global_ranks_in_group[member] for member in ranks]
    ended = _ended_in(parent, ranks)
    backend = _form(
        parent.store, rank, size, timeout, name, label=label, members=members, world=parent.seat, ended=ended
    )
    _behave(backend, options, parent)
    return backend


def shrink(parent: Any, ranks: Sequence[int], rank: int, options: C10dBackend.Options, label: str) -> C10dBackend:
    """Make the backend of what is left of a group; called by ProcessGroupAccdp::shrink on the ranks that stay.

    Arguments as split()'s.
    """
    size, timeout, name = len(ranks), options._timeout, f"{parent.options.group_name}:shrunk"
    members = [parent.options.global_ranks_in_group[member] for member in ranks]
    out = [member for member in range(parent.size()) if member not in ranks]
    is_world = dist.is_initialized() and parent in _backends(dist.distributed_c10d._get_default_group())
    backend: Any = _form(
        parent.store,
        rank,
        size,
        timeout,
        name,
        label=f"{label}.{members}",
        members=range(size) if is_world else members,  # torch counts the ranks of a smaller default group anew
        world=parent.seat,
        ended=_ended_in(parent, ranks),
        what=f"group {parent.options.group_name} without {names(out)}, ranks counted anew",
        form=form_for_all,  # a rank that had no new group would shrink the old one again, and the others the new one
    )
    _behave(backend, options, parent)
    return backend


def merge(parent: Any, store: Any, rank: int, size: int, options: C10dBackend.Options, name: str) -> C10dBackend:
    """Make the backend of a group that joins others; called by ProcessGroupAccdp::merge on the ranks of all of them.

    Args:
        parent: The backend of this rank's group, whose broadcasts and reductions are the new group's.
        store: Where all ranks meet.
        rank, size: In the new group.
        options: Their time-out counts.
        name: Of the new group, equal on all ranks.
    """
    backend = _form(store, rank, size, options._timeout, name, label=name, members=[], world=None)
    backend.behave_like(parent)
    return backend


def _form(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
    label: str,
    members: Sequence[int],
    world: tuple[int, int] | None,
    ended: Callable[[], Sequence[int]] = tuple,
    what: str = "forming the group",
    form: Callable[..., _core.Group] = form_group,
) -> Any:
    rendezvous.check_timeout(timeout, f"rank {rank} of {size}: ")
    # torch counts group names from 0 again in each world, so one name may have had other members in this store before.
    label = hashlib.sha1(",".join([label, *map(str, members)]).encode()).hexdigest()[:12]
    exchange = StoreExchange(store, rank, size, timeout.total_seconds(), label, ended, what)
    group = form(exchange, name, world=world)
    leaving.before_exit(_shut_down)
    steps.watch_optimizers(register_optimizer_step_post_hook)
    return _torch.ProcessGroupAccdp(
        rank,
        size,
        group.capsule(),
        timeout,
        name,
        [*members] or [*range(size)],
        device_path=_device_path(group),
        store=store,
        label=label,
        seat=world or (rank, size),
    )


def _behave(backend: Any, options: C10dBackend.Options, parent: Any) -> None:
    """Make a backend do as it is told, or as the one it comes from."""
    if isinstance(options, Options):
        options.apply(backend)
    else:
        backend.behave_like(parent)


def _world() -> Any:
    """The backend of torch's world; None if it has none of ours."""
    return backend_of(dist.distributed_c10d._get_default_group()) if dist.is_initialized() else None


def seat(rank: int) -> tuple[int, int]:
    """This process's rank and size in the world that it began in, which ACCDP_TOPOLOGY declares; `rank` is today's."""
    world = _world()
    return world.seat if world is not None else (rank, _world_size())


def who_has_ended(ranks: Sequence[int]) -> Callable[[], Sequence[int]]:
    """Return what tells of which of these ranks of torch's world the process has ended, by their places here.

    The world's group knows, if it is ours; of others nobody does.
    """
    world = _world()
    return tuple if world is None else _ended_in(world, ranks)


def _ended_in(parent: Any, ranks: Sequence[int]) -> Callable[[], Sequence[int]]:
    return lambda: [place for place, rank in enumerate(ranks) if parent.has_ended(rank)]


def _device_path(group: _core.Group) -> Any:
    """Return the group's way to CUDA tensors; None where this torch or this build of accdp has no CUDA."""
    return _core.DevicePath(group).capsule() if torch.version.cuda and hasattr(_core, "DevicePath") else None


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 0


def _shut_down() -> None:
    """Leave the groups that a script left open at its end."""
    end = time.monotonic() + _PATIENCE_S
    for backend in _torch.open_groups():
        # On this node the others see that this rank left; on other nodes they only hear of an abort.
        if uncaught.last() is not None and mpi_world.place().size > 0:
            backend.abort_because(uncaught.reason(backend.rank()))
        else:
            left_s = max(_LEAST_PATIENCE_S, end - time.monotonic())
            backend.shutdown_briefly(timedelta(seconds=left_s))  # nobody is there any more to wait for


def _backends(group: dist.ProcessGroup) -> Iterator[Any]:
    """The accdp backends of a group, taken out of the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts round."""
    found: list[Any] = []
    for device in ("cpu", "cuda"):
        try:
            backend: Any = group._get_backend(torch.device(device))
        except RuntimeError:
            continue  # the group has no backend for this kind of device
        backend = getattr(backend, "wrapped_pg", backend)
        if backend.name() == autoload.NAME and backend not in found:
            found.append(backend)
            yield backend


def backend_of(group: dist.ProcessGroup) -> Any:
    """Return a group's accdp backend, None if it has none."""
    return next(_backends(group), None)  # to ask torch for a backend that is not there takes 5 us


def our_group(group: dist.ProcessGroup | None, who: str) -> dist.ProcessGroup:
    """Return a group, or the default one, if its backend is accdp."""
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    if backend_of(chosen) is None:
        raise _core.UsageError(f"{who}: the group's backend is {dist.get_backend(chosen)}, expected accdp")
    return chosen


def is_member(group: dist.ProcessGroup | None, who: str) -> bool:
    """Whether this rank is in a group, or the default one."""
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return group is None
    if not isinstance(group, dist.ProcessGroup):
        raise _core.UsageError(f"{who}: group is a {type(group).__name__}: expected a torch process group")
    return dist.get_rank(group) >= 0


@eager
def measure(group: dist.ProcessGroup | None = None) -> _core.Machine | None:
    """Measure a torch group's alpha and beta, of node and wire, as Communicator.measure() does.

    From then on the group's algorithms are chosen by them; before, by constants for a link of 1 to 10 Gbit/s. Takes
    some milliseconds on a node, and over nodes 3.5 MiB on every link.

    Args:
        group: Process group with the backend accdp; None is the default group.
    Returns:
        What all ranks agreed on, the worst of each: link_bytes_per_s, latency_s (of a message), message_s (of a further
        one at the same time), step_s (a hand-over between ranks of a node), node_bytes_per_s (copied),
        reduce_bytes_per_s. None on a rank that is not in the group.
    Raises:
        torch.distributed.DistBackendError: Ranks disagree on the call, or one did not come, or is gone.
        UsageError: The group has no accdp backend.

    Collective over the group, blocking, after the operations that were begun before. Source: docs/model.md.
    """
    if not is_member(group, "measure"):
        return None
    machine = _core.Machine()
    for name, value in backend_of(our_group(group, "measure")).measure().items():
        setattr(machine, name, value)
    return machine


@eager
def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all ranks of a group are here, or raise with the names of those that are not.

    torch.distributed.monitored_barrier() does this for Gloo and refuses every other backend by its name.

    Args:
        group: Process group with the backend accdp; None is the default group.
        timeout: How long rank 0 waits for the others, a timedelta or seconds; None takes the group's time-out.
        wait_all_ranks: Name all missing ranks after the time-out instead of the first.
    Raises:
        torch.distributed.DistBackendError: Ranks are missing; rank 0's message names them.
        RuntimeError: Operations that were begun before did not end in time.
        UsageError: The group has no accdp backend, or not such a timeout.

    Collective, blocking. A rank that is not in the group returns at once.
    """
    if not is_member(group, "monitored_barrier"):
        return
    chosen = our_group(group, "monitored_barrier")
    limit = timedelta(milliseconds=-1)  # torch's way to say "the group's"
    if timeout is not None:
        try:
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else real_number(timeout)
            limit = timedelta(seconds=min(seconds, ENDLESS_SECONDS))  # torch hands longer ones on as negative ones
        except (TypeError, ValueError, OverflowError):
            limit = timedelta(0)
        if limit <= timedelta(0):
            raise _core.UsageError(
                f"monitored_barrier: timeout={timeout!r}, expected a timedelta or seconds above 0, or None"
            )
    chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)  # type: ignore[attr-defined]


_torch.set_makers(split, shrink, merge)
