"""Ranks for tests: plain processes that meet through a ``file://`` store and run functions of test files.

They are forked from one process, the nursery, that has imported torch and nothing else happened in, because importing
torch takes seconds. A rank runs one function after the other (a ``Crew`` keeps its ranks for many tests) and ends as
any Python program ends. Whatever a rank prints is kept and shown if something goes wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import jobs
import rank_process

_START_LIMIT_S = 60.0


class RankFailure(AssertionError):
    """Some rank did not do what it was told; the text names the rank and holds what all of them said."""


@dataclass
class Rank:
    """What the driver knows of one rank."""

    pid: int
    link: connection.Connection
    output: Path
    said: list[dict[str, Any]] = field(default_factory=list)  # in order; see rank_process.say()
    outcome: dict[str, Any] | None = None  # of the task under way: "error" (text or None), "at" (time.monotonic())
    status: int | None = None  # exit status, negative for a signal; None while it lives
    ended_at: float = 0.0
    shown_from: int = 0  # output before this position belongs to earlier tasks

    def printed(self) -> str:
        """What it printed since the task began."""
        with self.output.open(errors="replace") as file:
            file.seek(self.shown_from)
            return file.read()

    def kill(self, number: int = signal.SIGKILL) -> None:
        jobs.kill([self.pid] if self.status is None else [], number)


class Nursery:
    """The process that ranks are forked from. Close it; it takes all of its ranks along."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="accdp-ranks-"))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, rank_process.__file__, str(theirs.fileno())]
        # A session of its own: Ctrl-C at the terminal is pytest's, not the ranks'.
        self._process = subprocess.Popen(
            argv, env=jobs.environment(), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._living: dict[int, Rank] = {}
        self._started = 0
        if not connection.wait([self._control], _START_LIMIT_S):
            raise RankFailure(f"the process that ranks are forked from did not start within {_START_LIMIT_S} s")
        self._receive()

    def start(self, env: Mapping[str, str] | None = None) -> Rank:
        """Fork a rank, which then waits for tasks."""
        ours, theirs = connection.Pipe()
        self._started += 1
        output = self.folder / f"output-{self._started}"
        output.touch()
        order = json.dumps({"env": dict(env or {}), "output": str(output)}).encode()
        socket.send_fds(self._control, [order], [theirs.fileno()])
        theirs.close()
        rank = Rank(-1, ours, output)
        while rank.pid < 0:
            if not connection.wait([self._control], _START_LIMIT_S):
                raise RankFailure(f"no rank was forked within {_START_LIMIT_S} s")
            rank.pid = self._receive() or -1
        self._living[rank.pid] = rank
        return rank

    def _receive(self) -> int | None:
        """Take one message: that a rank was born (its pid is returned), or that one ended."""
        message = json.loads(self._control.recv(1000) or '{"lost": true}')
        if "lost" in message:
            raise RankFailure("the process that ranks are forked from has ended")
        if "ended" in message:
            rank = self._living.pop(message["ended"])
            rank.status, rank.ended_at = message["status"], message["at"]
        return message.get("born")

    def wait(self, ranks: Sequence[Rank], finished: Any, limit_s: float) -> bool:
        """Take what ranks say until ``finished()``; False if that takes longer than ``limit_s``."""
        deadline = time.monotonic() + limit_s
        open_links = {rank.link: rank for rank in ranks if not rank.link.closed}
        while not finished():
            ready = connection.wait([self._control, *open_links], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            for source in ready:
                if source is self._control:
                    self._receive()
                    continue
                rank = open_links[source]
                try:
                    message = source.recv()
                except (EOFError, ConnectionResetError):
                    source.close()
                    del open_links[source]
                    continue
                if "outcome" in message:
                    rank.outcome = message["outcome"]
                else:
                    rank.said.append(message)
        return True

    def others(self) -> list[int]:
        """Living processes of its session that are neither itself nor a rank: children that ranks left behind."""
        mine = {self._process.pid, *self._living}
        return jobs.living(lambda pid: pid not in mine and _session(pid) == self._process.pid)

    def close(self) -> None:
        """End it, and whatever ranks it still has."""
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):  # it has ended
        return -1


def report(ranks: Sequence[Rank], headline: str) -> str:
    """The headline and, rank by rank, how it stands, its error and what it printed."""
    lines = [headline]
    for index, rank in enumerate(ranks):
        state = "runs" if rank.status is None else f"ended with status {rank.status}"
        lines.append(f"---- rank {index} of {len(ranks)} (pid {rank.pid}, {state})")
        lines += [f"said {said}" for said in rank.said]
        if rank.outcome and rank.outcome["error"]:
            lines.append(rank.outcome["error"])
        lines.append(rank.printed())
    return "\n".join(line for line in lines if line)


def stop_overdue(nursery: Nursery, ranks: Sequence[Rank]) -> None:
    """Have ranks that take too long print the stacks of their threads, and kill them."""
    for number, patience_s in ((signal.SIGABRT, 3.0), (signal.SIGKILL, 10.0)):  # faulthandler answers SIGABRT
        for rank in ranks:
            rank.kill(number)
        nursery.wait(ranks, lambda: all(rank.status is not None for rank in ranks), patience_s)


class Crew:
    """Ranks that live as long as all goes well, and run one function after the other together.

    Groups are formed again for each new ``scene``, and after anything failed.
    """

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._ranks: list[Rank] = []
        self._scene: tuple | None = None
        self._groups_made = 0

    def run(self, test_file: str, function: str, arguments: Mapping[str, Any], size: int, scene: Any, limit_s: float):
        """Run a function of a test file on the first ``size`` ranks, each in the default group of these.

        Args:
            test_file: Path of the module.
            function: Its name; called as ``function(rank=..., size=..., **arguments)``.
            arguments: Can be pickled.
            scene: Ranks keep their group from the call before if that had the same one; None: never.
        Raises:
            RankFailure: Some rank raised, ended, or was not ready after ``limit_s``; names the first one.
        """
        while len(self._ranks) < size:
            self._ranks.append(self._nursery.start())
        ranks = self._ranks[:size]
        if scene is None or self._scene != (scene, size):
            self._groups_made += 1
        self._scene = None  # until all went well
        for index, rank in enumerate(ranks):
            rank.outcome, rank.said = None, []
            rank.shown_from = rank.output.stat().st_size
            rank.link.send(
                {
                    "file": test_file,
                    "function": function,
                    "arguments": {"rank": index, "size": size, **arguments},
                    "group": (index, size, str(self._nursery.folder / f"store-{self._groups_made}")),
                }
            )
        in_time = self._nursery.wait(
            ranks, lambda: all(rank.outcome or rank.status is not None for rank in ranks), limit_s
        )
        errors = {index: rank.outcome for index, rank in enumerate(ranks) if rank.outcome and rank.outcome["error"]}
        lost = [index for index, rank in enumerate(ranks) if rank.status is not None]
        if in_time and not errors and not lost:
            self._scene = (scene, size)
            return
        if not in_time:
            late = [index for index, rank in enumerate(ranks) if not rank.outcome]
            stop_overdue(self._nursery, self._ranks)
            headline = f"ranks {late} of {size} were not ready after {limit_s} s"
        elif lost:
            headline = f"rank {lost[0]} of {size} ended with status {ranks[lost[0]].status}"
        else:
            first = min(errors, key=lambda index: errors[index]["at"])
            headline = f"rank {first} of {size} failed first: {errors[first]['error'].rstrip().splitlines()[-1]}"
        text = report(ranks, headline)
        if lost or not in_time:
            stop_overdue(self._nursery, self._ranks)
            self._ranks = []
        raise RankFailure(text)

    def dismiss(self) -> None:
        """Let all ranks end, and see that they do so in good order."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.link.close()
        if not self._nursery.wait(ranks, lambda: all(rank.status is not None for rank in ranks), 20.0):
            stop_overdue(self._nursery, ranks)
        if any(rank.status for rank in ranks):
            raise RankFailure(report(ranks, "not all ranks ended in good order"))
