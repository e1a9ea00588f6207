"""Ranks of several hosts: each is asked, by ssh, for what its own `accdp ps` sees."""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

from .. import own_programs
from ..launch.hosts import is_here, read_hosts
from .pages import Rank, from_json, ranks_here

_LIMIT_S = 20


def ranks_on(path: str) -> tuple[list[Rank], dict[str, str]]:
    """Return the ranks on the hosts of a file, and the hosts that could not be looked at with the reason.

    Args:
        path: As of `accdp run --hosts`. accdp is expected where it is here, and ssh to need no password.
    Raises:
        UsageError: The file cannot be read, or has a line that names no host.
    """
    names = list(dict.fromkeys(host.name for host in read_hosts(path)))
    with ThreadPoolExecutor(max_workers=min(len(names), 32)) as pool:
        answers = list(pool.map(_ask, names))
    found = [rank for answer in answers if not isinstance(answer, str) for rank in answer]
    return found, {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, str)}


def _ask(host: str) -> list[Rank] | str:
    if is_here(host):
        return ranks_here()
    command = shlex.join(own_programs.accdp("ps", "--json"))
    try:
        done = subprocess.run(
            ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except FileNotFoundError:
        return "there is no ssh here"
    except subprocess.TimeoutExpired:
        return f"no answer in {_LIMIT_S} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"ssh ended with status {done.returncode}"])[-1]
    try:
        return [from_json(row) for job in json.loads(done.stdout)["jobs"] for row in job["ranks"]]
    except (ValueError, KeyError, TypeError) as error:
        return f"what it says is no answer of accdp ps ({error!r})"
