"""Ranks that are made to fail, and a watch on what they leave behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jobs
import pytest
import ranks

SCENES = str(Path(__file__).with_name("scenes.py"))
SHM = Path("/dev/shm")


@pytest.fixture(scope="session")
def nursery():
    made = ranks.Nursery()
    yield made
    made.close()


class Play:
    """One scene, played by ranks that do what a function of scenes.py says, until all of them have ended."""

    def __init__(self, nursery: ranks.Nursery, folder: Path):
        self._nursery, self._folder = nursery, folder
        self.cast: list[ranks.Rank] = []
        self._store = folder / "store"
        self.cause_at = 0.0  # time.monotonic() of what went wrong

    def start(
        self,
        scene: str,
        size: int,
        *,
        env: Mapping[int, Mapping[str, str]] | None = None,
        file: str = SCENES,
        **arguments: Any,
    ) -> None:
        """Start ``scene(rank=..., size=..., store=..., **arguments)`` of a file; ``env``: variables of some ranks.

        A scene that has ended may be played again.
        """
        assert all(player.status is not None for player in self.cast)
        if self.cast:
            self._store = self._store.with_name(self._store.name + "_again")
        self.cast = [self._nursery.start((env or {}).get(rank)) for rank in range(size)]
        store = str(self._store)
        for rank, player in enumerate(self.cast):
            given = {"rank": rank, "size": size, "store": store, **arguments}
            player.link.send({"file": file, "function": scene, "arguments": given, "last": True})

    def until(self, event: str, who: list[int], limit_s: float = 50.0) -> None:
        """Wait until these ranks have said that."""
        self._wait(lambda: all(self.facts(rank, event) for rank in who), limit_s, f"ranks {who} say {event!r}")

    def kill(self, rank: int) -> None:
        """Kill a rank, and leave the mark "killed" once it has ended."""
        self.cause_at = time.monotonic()
        self.cast[rank].kill()
        self._wait(lambda: self.cast[rank].status is not None, 50.0, f"rank {rank} ends")
        Path(f"{self._store}-killed").touch()

    def end(self, limit_s: float = 50.0) -> None:
        """Wait until all ranks have ended."""
        self._wait(lambda: all(player.status is not None for player in self.cast), limit_s, "all ranks end")

    def facts(self, rank: int, event: str) -> list[dict[str, Any]]:
        return [said for said in self.cast[rank].said if said["event"] == event]

    def pid(self, rank: int) -> int:
        return self.cast[rank].pid

    def raised(self, rank: int) -> dict[str, Any]:
        """The first error of a rank. It must have ended in good order and soon afterwards."""
        found = self.facts(rank, "raised")
        assert found, ranks.report(self.cast, f"rank {rank} raised nothing")
        player = self.cast[rank]
        assert player.status == 0, ranks.report(self.cast, f"rank {rank} ended with status {player.status}")
        lingered = player.ended_at - max(said["at"] for said in player.said)
        assert lingered < jobs.SOON_S, ranks.report(self.cast, f"rank {rank} took {lingered:.1f} s to end")
        return found[0]

    def after(self, rank: int) -> float:
        """Seconds from the cause to the first error of a rank."""
        return self.raised(rank)["at"] - self.cause_at

    def _wait(self, finished: Callable[[], bool], limit_s: float, what: str) -> None:
        if not self._nursery.wait(self.cast, finished, limit_s):
            ranks.stop_overdue(self._nursery, self.cast)
            pytest.fail(ranks.report(self.cast, f"within {limit_s} s it did not happen that {what}"), pytrace=False)


@pytest.fixture
def play(nursery, tmp_path):
    """A scene. At the end no process and no file in /dev/shm may be left of it."""
    before = set(os.listdir(SHM))
    made = Play(nursery, tmp_path)
    yield made
    alive = [player for player in made.cast if player.status is None]
    ranks.stop_overdue(nursery, alive)
    assert not alive, f"the test did not wait for pids {[player.pid for player in alive]}"
    stayed = jobs.until_empty(nursery.others)
    assert not stayed, f"processes stayed: {jobs.describe(stayed)}"
    files = jobs.until_empty(lambda: unmapped(set(os.listdir(SHM)) - before))
    assert not files, f"stayed in {SHM}: {files}"


def unmapped(names: set[str]) -> list[str]:
    """Those that no living process maps: other programs use /dev/shm too."""
    maps = []
    for pid in jobs.living(lambda pid: True) if names else []:
        try:
            maps.append(Path(f"/proc/{pid}/maps").read_text())
        except OSError:  # ended in the meantime, or another user's
            continue
    return sorted(name for name in names if (SHM / name).exists() and not any(f"{SHM}/{name}" in text for text in maps))


@pytest.fixture
def record(play):
    """Add a row to the failure table, if ACCDP_FAILURE_TABLE names a file for it (table.py makes Markdown of it)."""

    def write(done: str) -> None:
        path = os.environ.get("ACCDP_FAILURE_TABLE")
        if not path:
            return
        rows = []
        for rank, player in enumerate(play.cast):
            errors = play.facts(rank, "raised")
            rows.append(
                {
                    "rank": rank,
                    "said": f"{errors[0]['type']}: {errors[0]['text']}" if errors else "",
                    "after_s": round(errors[0]["at"] - play.cause_at, 3) if errors else None,
                    "status": player.status,
                }
            )
        with open(path, "a") as file:
            file.write(json.dumps({"done": done, "ranks": rows, "at": time.time()}) + "\n")

    return write
