"""The owner of MPS on one other host of a job: started there by a rank's guard, told what to do by `accdp run`.

``accdp mps own`` is no command for people. It lives until it is told that the ranks of its host have ended, and stops
its daemons then, as the owner beside `accdp run` does: when all is gone that the ranks have started, for which their
guards see to, with the grace that it has, when `accdp run` is gone, too. What a rank leaves whose guard was killed is
its own to end.

What it says: ``owner`` (hello, with the node), ``owner_ready`` (pipe and log directory by GPU; none where MPS is not
used), ``owner_says`` (a line for the user), ``owner_trouble`` (why the job must end). What it is told: ``started`` (pid
of a rank), ``members`` (rank, pid and GPU of each rank that should be a client), ``release`` (whether guards see to the
rest).
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ... import _core, own_programs, procfs
from .. import gpus, processes
from ..agent import CONTROL_VARIABLE, OWNER_VARIABLE
from ..guard_link import Link, connect
from ..offspring import STOPPING
from .attachment import Member
from .session import Session, session

_LOOK_S = 0.5
_POLL_S = 0.05  # each is a look at all processes


def main() -> int:
    """Own MPS on this host; return 0, or 1 where it could not be."""
    try:
        control, wish = (json.loads(os.environ.pop(name)) for name in (CONTROL_VARIABLE, OWNER_VARIABLE))
    except KeyError as error:
        raise _core.UsageError("own: only accdp run starts this, on the hosts of a job") from error
    for number in STOPPING:
        # Its clients go first. Not SIG_IGN, which daemons would inherit.
        signal.signal(number, lambda *_: None)
    link = Link(connect(control["addresses"], control["port"], control["token"]))
    link.tell(event="owner", node=wish["node"])
    chosen = [gpu for gpu in gpus.list_gpus({}).gpus if gpu.uuid in wish["gpus"]]
    try:
        with session(
            wish["mode"], chosen, wish["ranks_per_gpu"], lambda text: link.tell(event="owner_says", text=text)
        ) as mps:
            shares = {gpu.uuid: mps.share(gpu, 100, 0) for gpu in chosen} if mps else {}
            paths = {uuid: [share.pipe_directory, share.log_directory] for uuid, share in shares.items()}
            link.tell(event="owner_ready", shares=paths)
            _serve(link, mps, chosen, wish["patience_s"])
    except _core.Error as error:
        link.tell(event="owner_trouble", text=str(error))
        return 1
    return 0


def _serve(link: Link, mps: Session | None, chosen: Sequence[gpus.Gpu], patience_s: float) -> None:
    """Look after the clients until `accdp run` has no more need of it, or is gone and they are, too."""
    members: list[Member] = []
    ranks: list[tuple[int, int]] = []  # by pid and start time
    by_uuid = {gpu.uuid: gpu for gpu in chosen}
    is_released = False
    while not link.lost and not is_released:
        ready, _, _ = select.select([link], [], [], _LOOK_S)
        for order in link.receive() if ready else ():
            if order["order"] == "release":
                is_released = True
                ranks = ranks if order["is_guarded"] else []
            elif order["order"] == "started":
                ranks.append((order["pid"], procfs.start_time(order["pid"])))
            elif order["order"] == "members":
                members = [Member(rank, pid, by_uuid[uuid]) for rank, pid, uuid in order["members"]]
                if mps:
                    mps.expect([member.rank for member in members])
        if mps and members and not is_released and (trouble := mps.watch(members)):
            link.tell(event="owner_trouble", text=trouble)
            members = []  # the job ends; said once
    deadline = time.monotonic() + patience_s
    while processes.in_sessions(ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def order(
    node: str,
    mode: str,
    wanted: Sequence[gpus.Gpu],
    ranks_per_gpu: int,
    patience_s: float,
    environment: Mapping[str, str | None],
) -> dict[str, Any]:
    """Return what a guard is told, to start an owner on its host.

    Args:
        node, mode, wanted, ranks_per_gpu: Its key, ``--mps``, its GPUs, and most ranks on one of them.
        patience_s: What guards may take to end their ranks.
        environment: What it is to have, and gets otherwise from the launcher; None removes a variable.
    """
    wish = {
        "node": node,
        "mode": mode,
        "gpus": [gpu.uuid for gpu in wanted],
        "ranks_per_gpu": ranks_per_gpu,
        "patience_s": patience_s,
    }
    owner = own_programs.accdp("mps", "own")
    return {"order": "own", "argv": owner, "wish": json.dumps(wish), "env": dict(environment)}
