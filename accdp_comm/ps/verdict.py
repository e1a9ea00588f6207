"""Jobs, and who holds one up: what follows from what its ranks wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .pages import Membership, Peer, Rank, Wait

# Ranks wait for each other all the time; what lasts longer is worth a word.
_LONG_S = 1.0
_OTHER_END = {"send": "recv", "recv": "send"}
_MOST_LISTED = 6  # kMostShown in csrc/node/status.hpp


# A wait of a rank: process, group, and whether it is for messages. A rank may be in several at once, by threads.
_Place = tuple[int, str, bool]


@dataclass(frozen=True)
class _Edge:
    """A rank cannot go on before another one."""

    waiter: Rank
    group: Membership
    wait: Wait
    peer: Peer
    awaited: Rank | None  # None: not among those that were looked at

    @property
    def place(self) -> _Place:
        return id(self.waiter), self.group.group, self.wait.is_message

    @property
    def there(self) -> Membership | None:
        """What the awaited rank does in the group."""
        groups = self.awaited.groups if self.awaited else ()
        return next((group for group in groups if group.group == self.group.group), None)

    @property
    def is_met(self) -> bool:
        """Whether the awaited rank has come, so that what is waited for may be on its way."""
        if self.there is None:
            return False
        if not self.wait.is_message:
            return self.there.is_busy and self.there.sequence == self.group.sequence
        waits = [wait for wait in self.there.waits if wait.is_message]
        open_there = {
            part for wait in waits for peer in wait.peers if peer.rank == self.group.rank for part in peer.open
        }
        not_listed = any(wait.count >= len(wait.peers) >= _MOST_LISTED for wait in waits)
        return not_listed or all(_OTHER_END[part] in open_there for part in self.peer.awaits)

    @property
    def is_past(self) -> bool:
        """Whether the awaited rank has left that call by now: pages are not read at one time."""
        if self.there is None or self.wait.is_message:
            return False
        mine, its = self.group.sequence, self.there.sequence
        return its > mine or (its == mine and not self.there.is_busy)


class Job:
    """Ranks that share groups, in the order of their numbers in the largest one.

    Args:
        ranks: As far as they were looked at.
        here: Host whose name need not be said.
    """

    def __init__(self, ranks: Iterable[Rank], here: str) -> None:
        self._here = here
        self.ranks = sorted(ranks, key=lambda rank: (_number(rank), rank.pid))
        self._seats = {(group.group, group.rank): rank for rank in self.ranks for group in rank.groups}

    def awaited(self, group: Membership, peer: Peer) -> Rank | None:
        """Return the rank that is waited for in a group, if it was looked at."""
        return self._seats.get((group.group, peer.rank))

    def name(self, waiter: Rank, group: Membership, peer: Peer) -> str:
        """Name a rank that is waited for by its number in the job, where that is known."""
        found = self.awaited(group, peer)
        if found is not None:
            return f"rank {_number(found)}"
        return _unseen(peer, group, waiter)

    def verdict(self, hosts: Iterable[str]) -> list[str]:
        """Say who holds the job up, a line each; nothing where nobody has waited for long.

        Args:
            hosts: Those that were looked at, as they call themselves.
        """
        edges = self._edges()
        waiting = {id(edge.waiter) for edge in edges}
        held_by: dict[object, list[_Edge]] = {}
        for edge in edges:
            if edge.awaited is None or id(edge.awaited) not in waiting:
                who = id(edge.awaited) if edge.awaited else (edge.group.group, edge.peer.rank)
                held_by.setdefault(who, []).append(edge)
        certain = [held for held in held_by.values() if not held[0].wait.is_for_any]
        lines = [f"{self._waiters(held)} for {self._why(held[0], set(hosts))}" for held in certain]
        by_any = {id(edge.wait): edge for held in held_by.values() for edge in held if edge.wait.is_for_any}
        for edge in by_any.values():
            names = ", ".join(self.name(edge.waiter, edge.group, peer) for peer in edge.wait.awaited)
            lines.append(
                f"{self.label(edge.waiter)} waits in {edge.wait.what} for any of {names}, and none has sent it"
            )
        if circle := _circle(edges):
            said = (
                f"{self.label(edge.waiter)} in {edge.wait.what}{in_group(edge.group, edge.waiter)} "
                f"for {self.name(edge.waiter, edge.group, edge.peer)}"
                for edge in circle
            )
            lines.append("these wait for each other: " + "; ".join(said))
        if not lines:
            together: dict[str, set[int]] = {}
            for edge in edges:
                if edge.is_met:
                    what = f"{edge.wait.what}{in_group(edge.group, edge.waiter)}"
                    together.setdefault(what, set()).update((id(edge.waiter), id(edge.awaited)))
            lines += [
                f"{len(ranks)} ranks are in {what} and wait for each other's data: on their way, or not arriving"
                for what, ranks in together.items()
            ]
        return lines

    def label(self, rank: Rank) -> str:
        """Name a rank that was looked at, with its process."""
        return f"rank {_number(rank)} (pid {rank.pid}{'' if rank.host == self._here else f' on {rank.host}'})"

    def _waiters(self, held: Sequence[_Edge]) -> str:
        count = len({id(edge.waiter) for edge in held})
        return f"{count} ranks wait" if count > 1 else f"{self.label(held[0].waiter)} waits"

    def _edges(self) -> list[_Edge]:
        found = (
            _Edge(rank, group, wait, peer, self.awaited(group, peer))
            for rank in self.ranks
            for group in rank.groups
            for wait in group.waits
            if wait.is_blocking and wait.seconds >= _LONG_S and rank.state != "T"
            for peer in wait.awaited
        )
        return [edge for edge in found if not edge.is_past]

    def _why(self, edge: _Edge, hosts: set[str]) -> str:
        """Name the rank that is waited for, and say what it does instead."""
        awaited = edge.awaited
        what = f"{edge.wait.what}{in_group(edge.group, edge.waiter)}"
        if awaited is None:
            is_here = edge.peer.host in hosts
            where = "has ended, or is not to be seen" if is_here else "is on another host: accdp ps there tells of it"
            return f"{_unseen(edge.peer, edge.group, edge.waiter)} in {edge.wait.what}, which {where}"
        who = self.label(awaited)
        there = "" if awaited.host == self._here else f" on {awaited.host}"
        if awaited.state == "T":
            return f"{who}, which is stopped: kill -CONT {awaited.pid}{there} lets it go on"
        if awaited.state == "D":
            return f"{who}, which waits for the kernel (a disk, a network file system)"
        if edge.there and edge.there.failure:
            return f"{who}, for which the group has failed: {edge.there.failure}"
        if edge.is_met:
            return f"{who}, which is at work in {what}"
        late = f"has not {'done its part of' if edge.wait.is_message else 'come to'} {what}"
        if busy := _occupation(awaited):
            return f"{who}, which {late}: it is in {busy}"
        last = min((group.seconds for group in awaited.groups if group.sequence), default=None)
        idle = "in no collective yet" if last is None else f"in no collective for {seconds(last)}"
        return f"{who}, which {late}: {idle} (py-spy dump --pid {awaited.pid}{there} shows where its script is)"


def jobs(ranks: Sequence[Rank], here: str) -> list[Job]:
    """Return the ranks by job: two that share a group are of one. A process without groups is one of its own."""
    found: list[list[Rank]] = []
    for rank in ranks:
        names = {group.group for group in rank.groups}
        joined = [job for job in found if any(group.group in names for one in job for group in one.groups)]
        found = [job for job in found if not any(job is one for one in joined)]
        found.append([*(one for job in joined for one in job), rank])
    return [Job(job, here) for job in found]


def world_of(rank: Rank) -> Membership | None:
    """Return its largest group, of equal ones the first."""
    return max(rank.groups, key=lambda group: group.size, default=None)


def in_group(group: Membership, rank: Rank) -> str:
    """Say which group, where it is not its rank's largest one."""
    return "" if group is world_of(rank) else f" in group {group.name}"


def _number(rank: Rank) -> int:
    world = world_of(rank)
    return world.rank if world else -1


def _occupation(rank: Rank) -> str:
    """Say in which operation its script is, if any."""
    for group in rank.groups:
        if group.is_busy and group.is_blocking:
            return f"{group.call} #{group.sequence}{in_group(group, rank)}"
    for group in rank.groups:
        for wait in group.waits:
            if wait.is_message and wait.is_blocking:
                return f"{wait.what}{in_group(group, rank)}"
    return ""


def _unseen(peer: Peer, group: Membership, waiter: Rank) -> str:
    return f"rank {peer.rank}{in_group(group, waiter)} (pid {peer.pid}, host {peer.host})"


def _circle(edges: Sequence[_Edge]) -> list[_Edge]:
    """Return waits of which each is for the rank of the next, and the last for that of the first; [] if none are.

    Ranks that wait for each other in one call, or for two ends of a message, are no circle: data are on their way. Nor
    counts a wait for a message of any rank, of which one may be enough; nor is it known which of several waits of a
    rank keeps it from coming.
    """
    certain = [edge for edge in edges if not edge.wait.is_for_any]
    waits_of: dict[int, dict[_Place, list[_Edge]]] = {}
    for edge in certain:
        waits_of.setdefault(id(edge.waiter), {}).setdefault(edge.place, []).append(edge)

    def following(edge: _Edge) -> list[_Edge]:
        places = waits_of.get(id(edge.awaited), {})
        if edge.is_met:  # a message then goes its way, whatever its rank waits for
            return [] if edge.wait.is_message else places.get((id(edge.awaited), edge.group.group, False), [])
        return next(iter(places.values())) if len(places) == 1 else []

    for first in certain:
        if first.is_met:
            continue
        before: dict[int, _Edge | None] = {id(first): None}
        queue = [first]
        for edge in queue:
            if any(one is first for one in following(edge)):
                circle: list[_Edge] = []
                at: _Edge | None = edge
                while at is not None:
                    circle.insert(0, at)
                    at = before[id(at)]
                return circle
            for one in following(edge):
                if id(one) not in before:
                    before[id(one)] = edge
                    queue.append(one)
    return []


def seconds(value: float) -> str:
    """Say a time in short: "0.31 s", "42 s", "3 min 5 s", "2 h 10 min"."""
    if value < 10:
        return f"{value:.2g} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
