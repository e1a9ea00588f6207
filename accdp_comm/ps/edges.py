"""Waits between ranks, as edges of a graph. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .pages import Membership, Peer, Rank, Wait

_OTHER_END = {"send": "recv", "recv": "send"}

# A wait of a rank: process, group, and whether it is for messages. A rank may be in several at once, by threads.
Place = tuple[int, str, bool]


@dataclass(frozen=True)
class Edge:
    """A rank cannot go on before another one."""

    waiter: Rank
    group: Membership
    wait: Wait
    peer: Peer
    awaited: Rank | None  # None: not among those that were looked at

    @property
    def place(self) -> Place:
        return id(self.waiter), self.group.group, self.wait.is_message

    @property
    def place_of_awaited(self) -> Place:
        """Where the awaited rank waits itself if it is in the same call."""
        return id(self.awaited), self.group.group, False

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
        return any(wait.is_partial for wait in waits) or all(
            _OTHER_END[part] in open_there for part in self.peer.awaits if part != "any"
        )

    @property
    def is_past(self) -> bool:
        """Whether the awaited rank has left that call by now: pages are not read at one time."""
        if self.there is None or self.wait.is_message or self.there.failure:
            return False
        mine, its = self.group.sequence, self.there.sequence
        return its > mine or (its == mine and not self.there.is_busy)


def blocking(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges of waits that hold their rank up, and those that these hang upon: calls may go on in workers."""
    found = [edge for edge in edges if edge.wait.is_blocking]
    behind = {edge.place for edge in edges if not edge.wait.is_blocking}
    for edge in found:
        if edge.is_met and not edge.wait.is_message and edge.place_of_awaited in behind:
            found += [one for one in edges if one.place == edge.place_of_awaited]
            behind.remove(edge.place_of_awaited)
    return found


def circle_in(edges: Sequence[Edge], *, is_certain: bool) -> list[Edge]:
    """Return waits of which each is for the rank of the next, and the last for that of the first; [] if none are.

    Ranks that wait for each other in one call, or for two ends of a message, are no circle: data are on their way. A
    circle is certain where each of its ranks is in one operation alone, or waited for in the call that it is in.
    """
    waits_of: dict[int, dict[Place, list[Edge]]] = {}
    for edge in edges:
        waits_of.setdefault(id(edge.waiter), {}).setdefault(edge.place, []).append(edge)

    def following(edge: Edge) -> list[Edge]:
        places = waits_of.get(id(edge.awaited), {})
        if edge.is_met:  # a message then goes its way, whatever its rank waits for
            return [] if edge.wait.is_message else places.get(edge.place_of_awaited, [])
        if edge.awaited is None or (is_certain and not _is_in_one_place(edge.awaited)):
            return []
        return [one for found in places.values() for one in found if one.wait.is_blocking or not is_certain]

    for first in edges:
        if first.is_met:
            continue
        before: dict[int, Edge | None] = {id(first): None}
        queue = [first]
        for edge in queue:
            if any(one is first for one in following(edge)):
                circle: list[Edge] = []
                at: Edge | None = edge
                while at is not None:
                    circle.insert(0, at)
                    at = before[id(at)]
                return circle
            for one in following(edge):
                if id(one) not in before:
                    before[id(one)] = edge
                    queue.append(one)
    return []


def _is_in_one_place(rank: Rank) -> bool:
    """Whether it is in one operation alone, as far as is seen: what keeps it from coming elsewhere is that one."""
    waits = sum(wait.is_message and wait.is_blocking for group in rank.groups for wait in group.waits)
    return waits + sum(group.is_busy for group in rank.groups) == 1
