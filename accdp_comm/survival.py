"""Going on after a rank has died: who has, and torch groups without them."""

from __future__ import annotations

import time

import torch.distributed as dist

from . import _core
from .backend import backend_of, is_member, our_group
from .eager import eager

_SEEN_SECONDS = 5.0  # until a death of which another node has told is seen here, too
_LOOK_SECONDS = 0.05


@eager
def failed_ranks(group: dist.ProcessGroup | None = None) -> list[int]:
    """Return the ranks of a torch group whose processes have ended, as far as is known on this rank.

    Args:
        group: Process group with the backend accdp; None is the default group.
    Returns:
        Ranks in the group, ascending. Of this node all; of other nodes those to which there is a line
        (docs/design/0016): not under mpiexec, which ends the whole job with a rank, nor in jobs too large for lines.
        Empty on a rank that is not in the group.
    Raises:
        UsageError: The group has no accdp backend.

    Local; of any rank at any time. Costs a file of /proc for each rank of the node, a look at a socket for the others.
    """
    if not is_member(group, "failed_ranks"):
        return []
    backend = backend_of(our_group(group, "failed_ranks"))
    return [rank for rank in range(backend.size()) if backend.has_ended(rank)]


@eager
def shrink() -> dist.ProcessGroup:
    """Go on without the ranks of torch's default group that have died: shrink_group() with them, however many more die.

    Call it on every rank that lives, when an operation has raised. What torch says of shrink_group() holds: the group
    that is made is the default one from then on, its ranks are numbered anew, and all other groups have ended.

    Returns:
        The group of those that live, with the time-out and options of the one before.
    Raises:
        UsageError: The default group has no accdp backend, or no rank of it has ended within 5 s.
        PeerDied: The new group cannot be formed, as when the process that served torch's store is dead; after 5 s in
            which no more deaths were seen.
        PeerTimeout: A rank that lives did not call this within the group's time-out.

    Collective among the ranks that live, blocking. Costs the forming of a group, 1 to 2 s for each death meanwhile.
    """
    chosen = our_group(None, "shrink")
    dead: list[int] = []
    problem: Exception = _core.UsageError(
        f"shrink: no rank of {dist.get_world_size()} has ended, as far as rank {dist.get_rank()} knows: expected one; "
        "dist.shrink_group() leaves out those that live"
    )
    while True:
        dead = _more_than(dead, chosen, problem)
        try:
            made = dist.shrink_group(dead, chosen)
        except (_core.PeerDied, _core.SystemCallError) as error:  # the latter of memory that a process took along
            problem = error
        else:
            # torch goes on with the numbers that the ranks had, and would take them for today's another time.
            dist.distributed_c10d._world.pg_group_ranks[made] = {rank: rank for rank in range(made.size())}
            return made


def _more_than(dead: list[int], group: dist.ProcessGroup, problem: Exception) -> list[int]:
    """Wait until more ranks have failed than those; raise the problem if none does."""
    deadline = time.monotonic() + _SEEN_SECONDS
    while len(found := failed_ranks(group)) == len(dead):
        if time.monotonic() >= deadline:
            raise problem
        time.sleep(_LOOK_SECONDS)
    return found
