"""Exchange: small byte strings from every rank of a group to every rank of it, before the group exists."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from . import _core

T = TypeVar("T")

_SETTLE_SECONDS = 3.0
_WITHDRAWN = "-"  # the value of a rank that has given up
_CENSUS_SECONDS = 0.5  # between two looks at whose process has ended


class Exchange(Protocol):
    """How the ranks of a group that is being formed reach each other."""

    rank: int
    size: int
    timeout_s: float

    def allgather(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, by rank. Collective; raises PeerTimeout where some do not come."""

    def settle(self) -> None:
        """Before this rank gives up: wait a moment until the others have got what it knows."""

    def clear(self) -> None:
        """Once the group exists on this rank, remove what was exchanged: all other ranks have read it."""

    def close(self) -> None:
        """Give back what it holds: nothing is exchanged any more."""

    def notices(self, part: str = "") -> object | None:
        """Return where failures of the group are told beside MPI, or of a part of it; None where there is no place."""


class Store(Protocol):
    """The part of a torch Store that is used here."""

    def set(self, key: str, value: str, /) -> Any: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


class Alone:
    """The exchange of a world of one."""

    rank = 0
    size = 1

    def __init__(self, timeout_s: float):
        self.timeout_s = timeout_s

    def allgather(self, data: bytes) -> list[bytes]:
        return [data]

    def settle(self) -> None:
        pass  # nobody else is there

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass

    def notices(self, part: str = "") -> object | None:
        return None


class StoreExchange:
    """Exchange through a torch Store: every rank sets its value, rank 0 collects all and publishes the table.

    A store may outlive a group (torchrun's agent keeps it), and ranks may try to form one again, each as often as it
    likes. So rank 0 opens a turn for each of its attempts, with keys of its own; the others go to the newest one, or
    wait in the next, until the table of one has the values of this attempt of theirs.

    Args:
        store: Store that the ranks share; keys begin with ``accdp/``.
        rank, size: Place of this rank among those that take part.
        timeout_s: How long a round waits for missing ranks.
        label: Tells apart groups of different members that use one store and one prefix.
        ended: Returns those of the ranks whose processes are known to have ended: nobody waits for them.
        what: For texts.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout_s: float,
        label: str = "world",
        ended: Callable[[], Iterable[int]] = tuple,
        what: str = "forming the group",
    ):
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store, self._ended, self._what = store, ended, what
        self._root = f"accdp/{label}/{size}"
        self._attempt = secrets.token_hex(8)
        self._turn = self._rounds = 0
        self._failure: tuple[type[Exception], str] | None = None  # of a round, which was the last: all ranks know
        self._unread = (0, "")  # on rank 0: how many others will read the last table, and where they say that they did
        if rank == 0:
            with self._store_errors():
                self._turn = store.add(f"{self._root}/turns", 1)

    def allgather(self, data: bytes) -> list[bytes]:
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)
        try:
            with self._store_errors():
                return self._allgather(data)
        except _core.Error as error:
            self._failure = type(error), f"{error}"
            raise

    def settle(self) -> None:
        # Rank 0 may serve the store, and takes it along when it ends: the others would never learn why.
        readers, key = self._unread
        deadline = time.monotonic() + _SETTLE_SECONDS
        with self._store_errors():
            while readers and self._store.add(key, 0) < readers and time.monotonic() < deadline:
                time.sleep(0.01)

    def clear(self) -> None:
        # The store may live as long as the job, and a job may make any number of groups.
        if self.rank:
            return
        with contextlib.suppress(RuntimeError):  # who needs the store next will say what it has, or cannot do
            self._store.set(self._key("all", 0), "{}")  # who makes a group next looks there whether this turn is over
            for round_ in range(self._rounds):
                for name in (*range(self.size), "read", *(["all"] if round_ else [])):
                    self._store.delete_key(self._key(name, round_))

    def close(self) -> None:
        self._ended = tuple  # it holds the group that is asked; the store is others'

    def notices(self, part: str = "") -> object | None:
        try:
            from . import _torch
        except ImportError:  # of another torch than this one; what needs it says so, and this can do without
            return None
        return _torch.notices(self._store, f"{self._root}/{self._turn}/failure{part}")

    def _allgather(self, data: bytes) -> list[bytes]:
        value = f"{self._attempt} {base64.b64encode(data).decode()}"
        answer = self._follow(value) if self.rank else self._collect(value)
        self._rounds += 1
        if answer.get("ended"):
            raise self._died(answer["ended"])
        if "missing" in answer:
            raise self._late(answer["missing"])
        return [base64.b64decode(value.partition(" ")[2]) for value in answer["values"]]

    def _key(self, name: object, round_: int | None = None) -> str:
        return f"{self._root}/{self._turn}/{self._rounds if round_ is None else round_}/{name}"

    def _collect(self, value: str) -> dict[str, Any]:
        """Rank 0's part: wait for the values of all, and publish them, or whose are missing."""
        self._store.set(self._key(0), value)
        values, ended = self._values(self.timeout_s)
        missing = [rank for rank, value in enumerate(values) if value is None]
        self._unread = (self.size - 1 - len({*missing, *ended}), self._key("read"))
        answer = {"missing": missing, "ended": ended} if missing or ended else {"values": values}
        self._store.set(self._key("all"), json.dumps(answer))
        return answer

    def _follow(self, value: str) -> dict[str, Any]:
        """The others' part: say this rank's value, and wait for the table that has it."""
        deadline = time.monotonic() + self.timeout_s
        has_said = has_waited = False
        ended, census = [], self._census()
        try:
            for pause in self._pauses():
                newest = self._newest_turn() if self._rounds == 0 else self._turn
                if self._turn and self._is_over():
                    if answer := self._answer(value):
                        return answer
                    newest = max(newest, self._turn + 1)
                if newest > self._turn:
                    self._turn, has_said = newest, False
                    if self._is_over():
                        continue
                if not has_said:
                    self._store.set(self._key(self.rank), value)
                    has_said = True
                if time.monotonic() >= deadline:
                    # Rank 0 may have arrived last and waits as long again for others: its verdict is better than ours.
                    missing = [rank for rank, value in enumerate(self._values(0)[0]) if value is None]
                    # Without rank 0 all are named: it may itself be waiting for one of the others, in torch's store.
                    if has_waited or 0 in missing:
                        break
                    deadline, has_waited = time.monotonic() + self.timeout_s + 5, True
                # Rank 0 may wait among others, without those that have ended: it comes here no more.
                ended = next(census)
                if 0 in ended or (ended and not self._store.check([self._key(0)])):
                    break
                time.sleep(pause)
        except BaseException:
            # Rank 0 must not count on this attempt, which may be followed by another one.
            if has_said:
                with contextlib.suppress(Exception):  # of the store: the first error counts
                    self._store.set(self._key(self.rank), _WITHDRAWN)
            raise
        self._store.set(self._key(self.rank), _WITHDRAWN)
        # Rank 0 may have read this rank's value a moment ago: then what it is about to say counts.
        until = time.monotonic() + _SETTLE_SECONDS
        while not self._is_over() and 0 not in ended and self._store.check([self._key(0)]) and time.monotonic() < until:
            time.sleep(0.01)
        if self._is_over() and (answer := self._answer(value)):
            return answer
        raise self._died(ended) if ended else self._late(missing or [0])

    def _newest_turn(self) -> int:
        """Return rank 0's newest turn; before its first one the ranks wait in that."""
        return max(1, self._store.add(f"{self._root}/turns", 0))

    def _is_over(self) -> bool:
        """Return whether rank 0 has said how this round went."""
        return self._store.check([self._key("all")])

    def _answer(self, value: str) -> dict[str, Any] | None:
        """Return what rank 0 has said, if it has collected this attempt of ours, or this is to hear of its failure."""
        answer: dict[str, Any] = json.loads(self._store.get(self._key("all")))
        if self._rounds:
            is_ours = True
        elif "missing" in answer:  # once: who tries again has rank 0's next turn to wait for
            is_ours = self._store.add(self._key(f"told/{self.rank}"), 1) == 1
        else:  # that of a group which exists has no values
            is_ours = "values" in answer and answer["values"][self.rank] == value
        if not is_ours:
            return None
        self._store.add(self._key("read"), 1)
        return answer

    def _values(self, timeout_s: float) -> tuple[list[str | None], list[int]]:
        """Wait until the store has the values of all ranks, or one can come no more.

        Returns the values, None for a rank that has not come in time, and who has ended.
        """
        keys = [self._key(rank) for rank in range(self.size)]
        deadline = time.monotonic() + timeout_s
        census, pauses = self._census(), self._pauses()
        while True:
            if self._store.check(keys):
                values = [self._value(key) for key in keys]
                if None not in values:
                    return values, []
            ended = next(census)
            if ended or time.monotonic() >= deadline:
                return [self._value(key) if self._store.check([key]) else None for key in keys], ended
            time.sleep(next(pauses))

    def _value(self, key: str) -> str | None:
        value = self._store.get(key).decode()
        return None if value == _WITHDRAWN else value

    def _pauses(self) -> Iterator[float]:
        """Yield how long to sleep between two looks at the store.

        Store.wait() cannot be interrupted, and each time-out of it logs a warning.
        """
        pause = 0.0002
        while True:
            yield pause
            pause = min(pause * 1.5, 0.05 + 0.0002 * self.size)

    def _census(self) -> Iterator[list[int]]:
        """Yield which ranks have ended, and have for so long that what they said has come to the store."""
        ended: list[int] = []
        seen: list[int] = []
        next_look = time.monotonic() + _CENSUS_SECONDS
        while True:
            if time.monotonic() >= next_look:
                ended, seen = seen, [*self._ended()]
                next_look = time.monotonic() + _CENSUS_SECONDS
            yield ended

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except _core.Error:
            raise
        except RuntimeError as error:  # torch's store errors all are
            text = (f"{error}".splitlines() or ["no reason given"])[0]
            if "pure virtual function" in text:  # of a class of the caller's own
                raise _core.UsageError(
                    f"rank {self.rank} of {self.size}: the store lacks a method ({text}): "
                    "expected set, get, add and check of torch.distributed.Store"
                ) from error
            raise _core.PeerDied(
                f"rank {self.rank} of {self.size}: the store through which the group is formed is gone ({text}); "
                "rank 0, which usually serves it, may have ended"
            ) from error

    def _late(self, ranks: Sequence[int]) -> Exception:
        if self.rank in ranks:
            return _core.PeerTimeout(
                f"rank {self.rank} of {self.size} came after others had waited {self.timeout_s:g} s for it "
                f"({self._what})"
            )
        return _core.PeerTimeout(
            f"rank {self.rank}: {names(ranks)} of {self.size} did not come within {self.timeout_s:g} s ({self._what})"
        )

    def _died(self, ranks: Sequence[int]) -> Exception:
        have = "has" if len(ranks) == 1 else "have"
        return _core.PeerDied(f"rank {self.rank}: {names(ranks)} of {self.size} {have} ended ({self._what})")


def names(ranks: Sequence[int]) -> str:
    """Return what a text calls these ranks."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


class MpiExchange:
    """Exchange through MPI: over all ranks of MPI's world, or over the mpi4py communicator with the given handle."""

    def __init__(self, rank: int, size: int, timeout_s: float, handle: int | None = None):
        from . import _mpi

        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._exchange: _mpi.Exchange | None = _mpi.Exchange(handle)

    def settle(self) -> None:
        pass  # MPI has delivered what it collected

    def clear(self) -> None:
        pass

    def close(self) -> None:
        self._exchange = None  # MPI has room for some 2000 communicators

    def notices(self, part: str = "") -> object | None:
        return None

    def allgather(self, data: bytes) -> list[bytes]:
        assert self._exchange is not None
        try:
            return self._exchange.allgather(data, self.timeout_s)
        except _core.PeerTimeout as error:
            raise _core.PeerTimeout(
                f"rank {self.rank}: some of {self.size} ranks did not come within {self.timeout_s:g} s "
                f"(forming the group): {error}"
            ) from None


def agree(exchange: Exchange, step: Callable[[], T]) -> list[T]:
    """Run a local step on every rank and return the results of all; if it failed somewhere, fail everywhere.

    Without this, a rank that cannot go on (a bad setting, no route to a service) would leave the others waiting for it.

    Args:
        exchange: Reaches the ranks that take part.
        step: Returns something JSON can carry.
    Raises:
        On a rank that failed its own error; on others that of the lowest one that did, with its rank.
    """
    problem: Exception | None = None
    try:
        message: dict[str, Any] = {"value": step()}
    except Exception as error:  # whatever it is, the other ranks are told, and it is raised below
        problem = error
        message = {"error": f"{error}" or type(error).__name__, "type": type(error).__name__}
    try:
        answers = [json.loads(answer) for answer in exchange.allgather(json.dumps(message).encode())]
    except Exception:
        if problem is None:
            raise
    if problem is not None:
        raise problem
    for rank, answer in enumerate(answers):
        if "error" in answer:
            kind = getattr(_core, answer["type"], _core.Error)
            if not (isinstance(kind, type) and issubclass(kind, _core.Error)):
                kind = _core.Error
            raise kind(f"rank {rank} of {exchange.size}: {answer['error']}")
    return [answer["value"] for answer in answers]
