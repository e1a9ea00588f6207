"""What ranks leave whose guard was killed: `accdp run` ends it, in the order in which the guard would have done it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from .. import procfs
from . import processes
from .ranks import Rank

_KILL_S = 1.0  # for what was killed to end
_POLL_S = 0.05  # each is a look at all processes


def end_unguarded(
    ranks: Sequence[Rank], grace_s: float, terminate_clients: Callable[[Sequence[int]], None] | None
) -> None:
    """End such ranks of this node and what they started: SIGTERM, after ``grace_s`` MPS's terminate_client, SIGKILL.

    Whom SIGTERM ends at once, for that one terminate_client comes before it; but the kernel told the ranks themselves
    to terminate when their guards ended.
    """
    ours = [rank for rank in ranks if rank.pid and rank.hello["node"] == procfs.node_key()]
    if not ours:
        return
    told = {rank.pid for rank in ours}
    untold = [(pid, started) for pid, started in _left(ours) if pid not in told]
    if terminate_clients and (exposed := [pid for pid, _ in untold if not procfs.heeds(pid, signal.SIGTERM)]):
        terminate_clients(exposed)
    for pid, started in untold:
        processes.send_signal(pid, started, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (living := _left(ours)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if living and terminate_clients:
        terminate_clients([pid for pid, _ in living])
    deadline = time.monotonic() + _KILL_S
    killed: set[tuple[int, int]] = set()
    while (living := _left(ours)) and (time.monotonic() < deadline or not killed.issuperset(living)):
        for pid, started in living:
            processes.send_signal(pid, started, signal.SIGKILL)
        killed.update(living)
        time.sleep(_POLL_S)


def _left(ranks: Sequence[Rank]) -> list[tuple[int, int]]:
    """Return the living processes of the ranks' sessions, which are theirs alone, as pid and start time."""
    return processes.in_sessions((rank.pid, rank.start_time) for rank in ranks)
