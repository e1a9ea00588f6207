"""Exchange: small byte strings from every rank of a group to every rank of it, before the group exists."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from . import _core

T = TypeVar("T")

_SETTLE_SECONDS = 3.0


class Exchange(Protocol):
    """How the ranks of a group that is being formed reach each other."""

    rank: int
    size: int
    timeout_s: float

    def allgather(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, by rank. Collective; raises PeerTimeout where some do not come."""

    def settle(self) -> None:
        """Before this rank gives up: wait a moment until the others have got what it knows."""

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

    def close(self) -> None:
        pass

    def notices(self, part: str = "") -> object | None:
        return None


class StoreExchange:
    """Exchange through a torch Store: every rank sets its value, rank 0 collects all and publishes the table.

    Args:
        store: Store that the ranks share; keys begin with ``accdp/``.
        rank, size: Place of this rank among those that take part.
        timeout_s: How long a round waits for missing ranks.
        label: Tells apart groups of different members that use one store and one prefix.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, label: str = "world"):
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store = store
        self._rounds = 0
        self._unread = (0, "")  # on rank 0: how many others will read the last table, and where they say that they did
        # A store may outlive a group (torchrun's agent keeps it) and the group may be made again under the same name:
        # each round of arrivals gets its own keys, or ranks would read the cards of the group before.
        prefix = f"accdp/{label}/{size}"
        with self._store_errors():
            arrival = store.add(f"{prefix}/arrivals", 1)
        self._prefix = f"{prefix}/{(arrival - 1) // size}"

    def allgather(self, data: bytes) -> list[bytes]:
        with self._store_errors():
            return self._allgather(data)

    def settle(self) -> None:
        # Rank 0 may serve the store, and takes it along when it ends: the others would never learn why.
        readers, key = self._unread
        deadline = time.monotonic() + _SETTLE_SECONDS
        with self._store_errors():
            while readers and self._store.add(key, 0) < readers and time.monotonic() < deadline:
                time.sleep(0.01)

    def close(self) -> None:
        pass  # the store is others'

    def notices(self, part: str = "") -> object | None:
        try:
            from . import _torch
        except ImportError:  # of another torch than this one; what needs it says so, and this can do without
            return None
        return _torch.notices(self._store, f"{self._prefix}/failure{part}")

    def _allgather(self, data: bytes) -> list[bytes]:
        prefix = f"{self._prefix}/{self._rounds}"
        self._rounds += 1
        self._store.set(f"{prefix}/{self.rank}", data.hex())
        table = f"{prefix}/all"
        arrivals = [f"{prefix}/{rank}" for rank in range(self.size)]
        if self.rank == 0:
            missing = self._await(arrivals, self.timeout_s)
            self._unread = (self.size - 1 - len(missing), f"{prefix}/read")
            if missing:
                self._store.set(table, json.dumps({"missing": missing}))
                raise self._late(missing)
            values = [self._store.get(arrival).decode() for arrival in arrivals]
            self._store.set(table, json.dumps({"values": values}))
        else:
            # Rank 0 may have arrived last and waits as long again for others: its verdict is better than ours.
            if self._await([table], self.timeout_s):
                missing = self._await(arrivals, 0)
                # Without rank 0 all are named: it may itself be waiting for one of the others, in torch's store.
                if 0 in missing or self._await([table], self.timeout_s + 5):
                    raise self._late(missing or [0])
            answer = json.loads(self._store.get(table))
            self._store.add(f"{prefix}/read", 1)
            if "missing" in answer:
                raise self._late(answer["missing"])
            values = answer["values"]
        return [bytes.fromhex(value) for value in values]

    def _await(self, keys: Sequence[str], timeout_s: float) -> list[int]:
        """Wait until the store has all keys; return the indices of those it has not got in time."""
        # Asking again instead of Store.wait(): that cannot be interrupted and each time-out of it logs a warning.
        deadline = time.monotonic() + timeout_s
        pause = 0.0002
        while not self._store.check(list(keys)):
            if time.monotonic() >= deadline:
                return [index for index, key in enumerate(keys) if not self._store.check([key])]
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05 + 0.0002 * self.size)
        return []

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except _core.Error:
            raise
        except RuntimeError as error:  # torch's store errors all are
            text = (f"{error}".splitlines() or ["no reason given"])[0]
            raise _core.PeerDied(
                f"rank {self.rank} of {self.size}: the store through which the group is formed is gone ({text}); "
                "rank 0, which usually serves it, may have ended"
            ) from error

    def _late(self, ranks: Sequence[int]) -> Exception:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
        return _core.PeerTimeout(
            f"rank {self.rank}: {who} of {self.size} did not come within {self.timeout_s:g} s (forming the group)"
        )


class MpiExchange:
    """Exchange through MPI: over all ranks of MPI's world, or over the mpi4py communicator with the given handle."""

    def __init__(self, rank: int, size: int, timeout_s: float, handle: int | None = None):
        from . import _mpi

        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._exchange: _mpi.Exchange | None = _mpi.Exchange(handle)

    def settle(self) -> None:
        pass  # MPI has delivered what it collected

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
        The error of the lowest rank that failed, with its rank, on every rank.
    """
    problem: Exception | None = None
    try:
        message: dict[str, Any] = {"value": step()}
    except Exception as error:  # whatever it is, the other ranks are told, and it is raised below
        problem = error
        message = {"error": f"{error}" or type(error).__name__, "type": type(error).__name__}
    answers = [json.loads(answer) for answer in exchange.allgather(json.dumps(message).encode())]
    if problem is not None:
        raise problem
    for rank, answer in enumerate(answers):
        if "error" in answer:
            kind = getattr(_core, answer["type"], _core.Error)
            if not (isinstance(kind, type) and issubclass(kind, _core.Error)):
                kind = _core.Error
            raise kind(f"rank {rank} of {exchange.size}: {answer['error']}")
    return [answer["value"] for answer in answers]
