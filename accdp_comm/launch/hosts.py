"""Host files: one host a line, with the number of ranks on it as MPICH or as Open MPI writes it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import _core
from .placement import share

_LINE = re.compile(
    r"(?P<name>[\w.\-]+)"
    r"(?:\s*:\s*(?P<mpich>\d{1,9})|\s+(?:slots|max_slots)\s*=\s*(?P<openmpi>\d{1,9})(?:\s+max_slots\s*=\s*\d+)?)?"
)


@dataclass(frozen=True)
class Host:
    """One host and how many ranks it gets; 0 where the file does not say."""

    name: str
    ranks: int


def is_loopback(name: str) -> bool:
    return name == "localhost" or name.startswith("127.")


def is_here(name: str) -> bool:
    """Whether a name is known, without asking anybody, to be this host's."""
    own = socket.gethostname()
    return is_loopback(name) or name in (own, own.partition(".")[0])


def own_name() -> str:
    """Return what others call this host: Slurm, where it is one of its nodes, by a name that hostname may not say."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def read_hosts(path: str) -> list[Host]:
    """Read a host file: ``name``, ``name:4`` or ``name slots=4`` a line, ``#`` begins a comment.

    A host that has several lines gets the ranks of all, one for a line without a number: so schedulers write them.
    Beside others this one is called what these know it as.

    Raises:
        UsageError: It cannot be read, names no host, or has a line that is none of these.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise _core.UsageError(f"--hosts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _core.UsageError(f"--hosts {path}: expected a text of hosts: {error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        ranks = match and (match["mpich"] or match["openmpi"])
        if match is None or (ranks is not None and int(ranks) == 0):
            raise _core.UsageError(
                f"{path}, line {number}: expected HOST, HOST:N or HOST slots=N with N >= 1, got {text!r}"
            )
        hosts.append(Host(match["name"], int(ranks or 0)))
    if not hosts:
        raise _core.UsageError(f"--hosts {path}: it names no host")
    if not all(is_here(host.name) for host in hosts):
        known = next((host.name for host in hosts if is_here(host.name) and not is_loopback(host.name)), own_name())
        hosts = [replace(host, name=known) if is_here(host.name) else host for host in hosts]
    names = list(dict.fromkeys(host.name for host in hosts))
    if len(names) == len(hosts):
        return hosts
    return [Host(name, sum(host.ranks or 1 for host in hosts if host.name == name)) for name in names]


def spread(hosts: Sequence[Host], ranks: int | None, per_host: int | None) -> list[Host]:
    """Say how many ranks go on each host: evenly, or in order up to what the file says that each holds.

    Args:
        hosts: As read.
        ranks: All ranks of the job; None for as many as the hosts hold.
        per_host: How many a host holds at most where the file does not say; None for any number.
    Returns:
        The hosts that get ranks.
    Raises:
        UsageError: The hosts hold fewer than ``ranks``, or nothing says how many they hold.
    """
    if per_host is None and ranks is None and any(host.ranks == 0 for host in hosts):
        raise _core.UsageError("--hosts: give -n N, or the number of ranks behind each host (HOST:N)")
    if ranks is not None and not any(host.ranks for host in hosts):
        counts = share(ranks, len(hosts))
        if per_host is None or counts[0] <= per_host:
            return [replace(host, ranks=count) for host, count in zip(hosts, counts, strict=True) if count]
    most = -(-(ranks or 0) // len(hosts)) if per_host is None else per_host
    held = [replace(host, ranks=host.ranks or most) for host in hosts]
    room = sum(host.ranks for host in held)
    if ranks is None:
        return held
    if ranks > room:
        raise _core.UsageError(f"-n {ranks}: the hosts hold {room} ranks together")
    placed = []
    for host in held:
        count = min(host.ranks, ranks)
        ranks -= count
        if count:
            placed.append(replace(host, ranks=count))
    return placed
