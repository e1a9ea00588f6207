"""`accdp ps`: what the ranks on a host do, and for whom they wait."""

from __future__ import annotations

import argparse
import json
import socket
from typing import Any

from .hosts import look_at, look_here
from .pages import Membership, Rank, Wait
from .verdict import Job, in_group, jobs, seconds, world_of

_STATES = {"T": "stopped", "t": "traced", "D": "waits for the kernel"}
_MOST_COMMAND = 100  # characters of it


def add_parser(commands: Any) -> None:
    """Add `accdp ps` to the commands."""
    parser = commands.add_parser(
        "ps",
        help="what the ranks on this host do, and for whom they wait",
        description="Show what each rank on this host does, and who holds its job up. Ranks are not asked, and not "
        "disturbed: it works where they stand still, too.",
    )
    parser.add_argument("--hosts", metavar="FILE", help="look at these hosts, by ssh; a file as of accdp run --hosts")
    parser.add_argument("--json", action="store_true", help="as JSON, times in seconds")


def main(options: argparse.Namespace) -> int:
    """Run `accdp ps`; 0, or 1 if a host could not be looked at.

    Raises:
        UsageError: The file of hosts cannot be read.
    """
    look = look_at(options.hosts) if options.hosts else look_here()
    found = jobs(look.ranks, socket.gethostname())
    if options.json:
        rows = [{"ranks": [rank.as_json() for rank in job.ranks], "verdict": job.verdict(look.hosts)} for job in found]
        print(json.dumps({"hosts": sorted(look.hosts), "jobs": rows, "unseen": look.unseen}, indent=2))
        return 1 if look.unseen else 0
    print("\n\n".join("\n".join(_lines(job, look.hosts)) for job in found) or "no ranks of accdp are here")
    for host, reason in look.unseen.items():
        print(f"\n{host} could not be looked at: {reason}")
    return 1 if look.unseen else 0


def _lines(job: Job, hosts: set[str]) -> list[str]:
    first, here = job.ranks[0], len(job.ranks)
    world = world_of(first)
    size = world.size if world else here
    count = f"{here} of {size} ranks" if size != here else f"{size} rank{'s' * (size > 1)}"
    command = first.command if len(first.command) <= _MOST_COMMAND else first.command[: _MOST_COMMAND - 3] + "..."
    several = len({rank.host for rank in job.ranks}) > 1
    rows = [["rank", *["host"] * several, "pid", ""]]
    for rank in job.ranks:
        world = world_of(rank)
        begin = [str(world.rank) if world else "-", *[rank.host] * several, str(rank.pid)]
        for line in _does(rank, job):
            rows.append([*begin, line])
            begin = [""] * len(begin)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    table = ["  ".join([*(f"{row[i]:>{width}}" for i, width in enumerate(widths)), row[-1]]).rstrip() for row in rows]
    return [f"{count}: {command}", *table, *job.verdict(hosts)]


def _does(rank: Rank, job: Job) -> list[str]:
    """Say what it does, a line for each group in which it does something."""
    if rank.trouble:
        return [rank.trouble]
    lines = [line for group in rank.groups for line in _in(group, rank, job)]
    if not any(group.is_busy or any(wait.is_blocking for wait in group.waits) for group in rank.groups):
        last = min((group for group in rank.groups if group.sequence), key=lambda group: group.seconds, default=None)
        if last is None:
            lines.insert(0, "no collective yet")
        else:
            lines.insert(0, f"no collective for {seconds(last.seconds)}, last {_call(last, rank)}")
    if rank.state in _STATES:
        lines[0] = f"{_STATES[rank.state]}; {lines[0]}"
    if rank.not_shown:
        lines.append(f"and {rank.not_shown} more groups")
    return lines


def _in(group: Membership, rank: Rank, job: Job) -> list[str]:
    background = "" if group.is_blocking else ", in the background"
    lines = [f"{_call(group, rank)} for {seconds(group.seconds)}{background}"] if group.is_busy else []
    for wait in group.waits:
        whom = _whom(wait, group, rank, job)
        where = f"{wait.what}{in_group(group, rank)}"
        if wait.is_message and not wait.is_blocking:
            lines.append(f"meanwhile open for {seconds(wait.seconds)}: {where}, waits for {whom}")
        elif group.is_busy and not wait.is_message:
            lines[0] += f", waits for {whom}"
        else:
            lines.append(f"{where} for {seconds(wait.seconds)}, waits for {whom}")
    return [*lines, *([f"group {group.name} has failed: {group.failure}"] if group.failure else [])]


def _whom(wait: Wait, group: Membership, rank: Rank, job: Job) -> str:
    surely, perhaps = (
        ", ".join(job.name(rank, group, peer) for peer in wait.awaited if (peer.awaits == ("any",)) == is_any)
        for is_any in (False, True)
    )
    more = wait.count - len(wait.awaited)
    others = f" and {more} others" if more > 0 else ""
    return ", and for ".join(filter(None, [surely, perhaps and f"any of {perhaps}"])) + others


def _call(group: Membership, rank: Rank) -> str:
    return f"{group.call} #{group.sequence}{in_group(group, rank)}"
