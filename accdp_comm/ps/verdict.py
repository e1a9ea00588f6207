"""Jobs, and who holds one up: what follows from what its ranks wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .edges import Edge, blocking, circle_in
from .pages import Membership, Peer, Rank, Wait

# Ranks wait for each other all the time; what lasts longer is worth a word.
_LONG_S = 1.0
_MOST_OF_CIRCLE = 8  # waits that are said


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

    def label(self, rank: Rank) -> str:
        """Name a rank that was looked at, with its process."""
        return f"rank {_number(rank)} (pid {rank.pid}{self._on(rank)})"

    def verdict(self, hosts: Iterable[str]) -> list[str]:
        """Say who holds the job up, a line each; nothing where nobody has waited for long.

        Args:
            hosts: Those that were looked at, as they call themselves.
        """
        seen = set(hosts)
        every = self._edges()
        edges = [edge for edge in every if not edge.is_past]
        certain = blocking(edges)
        lines = self._holders(certain, seen) + self._for_any() + self._circle(circle_in(certain, is_certain=True), "")
        behind = {id(edge.waiter) for edge in edges if not edge.wait.is_blocking}
        if not lines or any(id(edge.awaited) in behind for edge in certain):
            # Nobody is held up for sure, or by what goes on in a worker: a script may wait in ways that are not seen.
            perhaps = self._holders(edges, seen)
            perhaps += self._circle(circle_in(edges, is_certain=False), ", if their scripts wait for that")
            lines += [line for line in perhaps if line not in lines]
        return lines or self._together(edges) + self._for_any(of_waiters=True) or self._on_their_way(every)

    def _waits(self) -> Iterator[tuple[Rank, Membership, Wait]]:
        """Yield those that are long, and upon which somebody's going on may hang."""
        for rank in self.ranks:
            for group in rank.groups:
                for wait in group.waits:
                    if rank.state != "T" and wait.seconds >= _LONG_S and (wait.is_blocking or not wait.is_message):
                        yield rank, group, wait

    def _blocked(self) -> set[int]:
        """Return who cannot go on: not for waits that others have left, which end soon, or never for another reason."""
        found = {id(edge.waiter) for edge in self._edges() if edge.wait.is_blocking and not edge.is_past}
        return found | {id(rank) for rank, _, wait in self._waits() if wait.is_blocking and wait.is_for_any}

    def _edges(self) -> list[Edge]:
        found = (
            Edge(rank, group, wait, peer, self.awaited(group, peer))
            for rank, group, wait in self._waits()
            for peer in wait.awaited
            if peer.awaits != ("any",)
        )
        return list(found)

    def _holders(self, edges: Sequence[Edge], hosts: set[str]) -> list[str]:
        """Name ranks that are waited for and do not wait."""
        waiters = self._blocked() or {id(edge.waiter) for edge in edges}
        places = {edge.place for edge in edges}
        held_by: dict[object, list[Edge]] = {}
        for edge in edges:
            is_in_same_call = edge.is_met and not edge.wait.is_message and edge.place_of_awaited in places
            if edge.awaited is None or not (is_in_same_call or id(edge.awaited) in waiters):
                who = id(edge.awaited) if edge.awaited else (edge.group.group, edge.peer.rank)
                held_by.setdefault(who, []).append(edge)
        return [f"{self._who(held)} for {self._why(held[0], hosts)}" for held in held_by.values()]

    def _who(self, held: Sequence[Edge]) -> str:
        background = "" if any(edge.wait.is_blocking for edge in held) else " in the background"
        count = len({id(edge.waiter) for edge in held})
        return f"{f'{count} ranks wait' if count > 1 else f'{self.label(held[0].waiter)} waits'}{background}"

    def _why(self, edge: Edge, hosts: set[str]) -> str:
        """Name the rank that is waited for, and say what it does instead."""
        awaited = edge.awaited
        what = f"{edge.wait.what}{in_group(edge.group, edge.waiter)}"
        if awaited is None:
            is_here = edge.peer.host in hosts
            where = "has ended, or is not to be seen" if is_here else "is on another host: accdp ps there tells of it"
            return f"{_unseen(edge.peer, edge.group, edge.waiter)} in {edge.wait.what}, which {where}"
        who = self.label(awaited)
        if awaited.state == "T":
            return f"{who}, which is stopped: kill -CONT {awaited.pid}{self._on(awaited)} lets it go on"
        if awaited.state == "t":
            return f"{who}, which a debugger holds"
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
        if awaited.not_shown:
            idle = "in no group that it shows"
        for group in awaited.groups:
            if group.failure:
                idle = f"its group {group.name} has failed ({group.failure}), {idle}"
        where = f"py-spy dump --pid {awaited.pid}{self._on(awaited)} shows where its script is"
        return f"{who}, which {late}: {idle} ({where})"

    def _for_any(self, *, of_waiters: bool = False) -> list[str]:
        """Name ranks that wait for a message which several ranks may send: one of them does not wait, or all do."""
        waiters = self._blocked()
        lines = []
        for rank, group, wait in self._waits():
            peers = [peer for peer in wait.awaited if "any" in peer.awaits]
            all_wait = all(id(self.awaited(group, peer)) in waiters for peer in peers)
            if not peers or all_wait != of_waiters or (of_waiters and wait.is_partial):
                continue
            names = ", ".join(self.name(rank, group, peer) for peer in peers)
            more = " or others" if wait.is_partial else ""
            too = ", which all wait themselves" if of_waiters else ""
            lines.append(
                f"{self.label(rank)} waits in {wait.what}{in_group(group, rank)} for any of {names}{more}{too}"
            )
        return lines

    def _circle(self, circle: Sequence[Edge], reservation: str) -> list[str]:
        if not circle:
            return []
        said = [
            f"{self.label(edge.waiter)} in {edge.wait.what}{in_group(edge.group, edge.waiter)} "
            f"for {self.name(edge.waiter, edge.group, edge.peer)}"
            for edge in circle[:_MOST_OF_CIRCLE]
        ]
        more = len(circle) - len(said)
        return [f"these wait for each other{reservation}: {'; '.join(said)}{f'; and {more} more' if more else ''}"]

    def _together(self, edges: Sequence[Edge]) -> list[str]:
        """Name calls whose ranks have all come."""
        ranks: dict[str, set[int]] = {}
        for edge in edges:
            if edge.is_met and not edge.wait.is_message:
                what = f"{edge.wait.what}{in_group(edge.group, edge.waiter)}"
                ranks.setdefault(what, set()).update((id(edge.waiter), id(edge.awaited)))
        return [
            f"{len(members)} ranks are in {what} and wait for each other's data: on their way, or not arriving"
            for what, members in ranks.items()
        ]

    def _on_their_way(self, edges: Sequence[Edge]) -> list[str]:
        """Name waits for data of ranks that have done their part."""
        lines = []
        for edge in edges:
            if edge.is_past or (edge.is_met and edge.wait.is_message):
                what = f"{edge.wait.what}{in_group(edge.group, edge.waiter)}"
                name = self.name(edge.waiter, edge.group, edge.peer)
                done = "has left it" if edge.is_past else "has begun the other end"
                where = "on their way, or not arriving"
                lines.append(f"{self.label(edge.waiter)} waits in {what} for data of {name}, which {done}: {where}")
        return lines

    def _on(self, rank: Rank) -> str:
        return "" if rank.host == self._here else f" on {rank.host}"


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
    """Say in which operation it is, if any: its script first, then what runs in the background."""
    for group in sorted(rank.groups, key=lambda group: not group.is_blocking):
        for wait in group.waits:
            if wait.is_message and wait.is_blocking:
                return f"{wait.what}{in_group(group, rank)}"
        if group.is_busy:
            background = "" if group.is_blocking else " in the background"
            return f"{group.call} #{group.sequence}{in_group(group, rank)}{background}"
    return ""


def _unseen(peer: Peer, group: Membership, waiter: Rank) -> str:
    return f"rank {peer.rank}{in_group(group, waiter)} (pid {peer.pid}, host {peer.host})"


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
