"""Ranks of several hosts: each is asked, by ssh, for what its own `accdp ps` sees."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .. import own_programs
from ..launch.hosts import is_here, read_hosts
from .pages import Rank, from_json, ranks_here

_LIMIT_S = 20


@dataclass(frozen=True)
class Look:
    """What was seen."""

    ranks: list[Rank]
    hosts: set[str]  # that were looked at, as they call themselves
    unseen: dict[str, str]  # those that could not be, as the file calls them, with the reason


def look_here() -> Look:
    """Look at this host's ranks."""
    return Look(ranks_here(), {socket.gethostname()}, {})


def look_at(path: str) -> Look:
    """Look at the ranks on the hosts of a file.

    Args:
        path: As of `accdp run --hosts`. accdp is expected where it is here, and ssh to need no password.
    Raises:
        UsageError: The file cannot be read, or has a line that names no host.
    """
    names = list(dict.fromkeys(host.name for host in read_hosts(path)))
    with ThreadPoolExecutor(max_workers=min(len(names), 32)) as pool:
        looks = list(pool.map(_ask, names))
    ranks: dict[tuple[str, int], Rank] = {}  # a host may have several names
    hosts: set[str] = set()
    unseen: dict[str, str] = {}
    for look in looks:
        ranks |= {(rank.host, rank.pid): rank for rank in look.ranks}
        hosts |= look.hosts
        unseen |= look.unseen
    return Look(list(ranks.values()), hosts, unseen)


def _ask(host: str) -> Look:
    if is_here(host):
        return look_here()

    def unseen(reason: str) -> Look:
        return Look([], set(), {host: reason})

    command = shlex.join(own_programs.accdp("ps", "--json"))
    try:
        done = subprocess.run(
            ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
        )
    except OSError as error:
        return unseen(f"ssh: {error.strerror}")
    except subprocess.TimeoutExpired:
        return unseen(f"no answer in {_LIMIT_S} s")
    if done.returncode != 0:
        return unseen((done.stderr.strip().splitlines() or [f"ssh ended with status {done.returncode}"])[-1])
    try:
        answer = json.loads(done.stdout)
        return Look([from_json(row) for job in answer["jobs"] for row in job["ranks"]], set(answer["hosts"]), {})
    except (ValueError, KeyError, TypeError) as error:
        return unseen(f"what it says is no answer of this version's accdp ps ({error!r})")
