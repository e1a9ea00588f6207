"""Whether every rank is a client of its GPU's daemon. CUDA says nothing when it runs without MPS instead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ... import procfs
from .. import gpus
from .control import MpsError
from .daemon import Daemon

# A context may appear a moment before its process is listed as a client.
_LOOKS_OUTSIDE = 3
# And a server that is starting may not answer for its clients.
_LOOKS_REFUSED = 3
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 2.0


@dataclass(frozen=True)
class Member:
    """One rank that should be a client."""

    rank: int
    pid: int
    gpu: gpus.Gpu


class Attachment:
    """Looks, in a thread of its own, until all ranks are clients; asking takes the tools of NVIDIA up to a second.

    Args:
        daemons: By UUID of their GPU.
        ranks: All ranks that should become clients.
        say: Gets one line when all are attached.
    """

    def __init__(self, daemons: Mapping[str, Daemon], ranks: Sequence[int], say: Callable[[str], None]):
        self._daemons = daemons
        self._missing = set(ranks)
        self._count = len(self._missing)
        self._say = say
        self._outside: dict[int, int] = {}  # rank -> looks in a row that found it on the GPU, but not as a client
        self._thread: threading.Thread | None = None
        self._refused = 0  # looks in a row
        self._trouble = ""
        self._has_said = False
        # NVIDIA's tools cost the ranks time: they are asked less often where nothing changes.
        self._pause_s, self._next_look = 0.0, 0.0

    def missing(self) -> list[int]:
        """Return the ranks that were never seen as clients."""
        return sorted(self._missing)

    def watch(self, members: Sequence[Member]) -> str:
        """Look again, without waiting for what is found; return what is wrong, found by an earlier look."""
        if self._thread is not None and self._thread.is_alive():
            return ""
        if trouble := self._trouble or self._dead_daemon():
            return trouble
        if self._count and not self._missing and not self._has_said:
            self._has_said = True
            self._say(f"MPS: all {self._count} ranks are attached")
        if self._missing.isdisjoint(member.rank for member in members) or time.monotonic() < self._next_look:
            return ""
        self._thread = threading.Thread(target=self._look_safely, args=(list(members),), daemon=True)
        self._thread.start()
        return ""

    def _dead_daemon(self) -> str:
        dead = [daemon for daemon in self._daemons.values() if not daemon.record.daemon_lives()]
        return f"the MPS daemon of {dead[0].record.gpu} (pid {dead[0].record.daemon_pid}) has died" if dead else ""

    def _look_safely(self, members: list[Member]) -> None:
        before = len(self._missing)
        try:
            self.look(members)
            self._refused = 0
            is_same = len(self._missing) == before and not any(self._outside.values())
            self._pause_s = min(2 * self._pause_s + _PAUSE_S, _LONGEST_PAUSE_S) if is_same else 0.0
            self._next_look = time.monotonic() + self._pause_s
        except MpsError as error:
            self._refused += 1
            self._trouble = self._dead_daemon() or (str(error) if self._refused >= _LOOKS_REFUSED else "")
        except Exception as error:  # in a thread: it must reach the one who asks
            self._trouble = f"MPS could not be watched: {type(error).__name__}: {error}"

    def look(self, members: Sequence[Member]) -> None:
        """Look once; blocks. Sets what watch() returns."""
        # In this order: what uses the GPU now and is no client afterwards is not about to become one.
        on_gpu = gpus.processes([member.gpu for member in members])
        clients = {uuid: set(daemon.control().clients()) for uuid, daemon in self._daemons.items()}
        tree = procfs.descendants([member.pid for member in members])
        below: dict[int, set[int]] = {}
        for pid, root in tree.items():
            below.setdefault(root, set()).add(pid)
        for uuid, found in clients.items():
            here = [member for member in members if member.gpu.uuid == uuid]
            # A daemon of this job has no other clients: where it numbers them as another namespace does, count them.
            is_ours = not self._daemons[uuid].record.is_kept
            if here and is_ours and sum(not os.path.exists(f"/proc/{pid}") for pid in found) >= len(here):
                self._missing -= {member.rank for member in here}
        for member in members:
            own = below.get(member.pid, set())
            if own & clients.get(member.gpu.uuid, set()):
                self._missing.discard(member.rank)
            is_outside = member.rank in self._missing and own & on_gpu.get(member.gpu.uuid, set())
            self._outside[member.rank] = self._outside.get(member.rank, 0) + 1 if is_outside else 0
        outside = [rank for rank, looks in self._outside.items() if looks >= _LOOKS_OUTSIDE]
        if outside:
            names = ", ".join(map(str, sorted(outside)))
            self._trouble = (
                f"rank {names} uses its GPU without MPS: CUDA runs so, silently, where it cannot reach the daemon "
                "(another CUDA_MPS_PIPE_DIRECTORY in the script, a container without that folder)"
            )
