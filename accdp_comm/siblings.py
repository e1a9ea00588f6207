"""The ranks that the launcher started on this host: has one ended, or left MPI, without ever coming to us?

MPI says nothing of a rank that ends before MPI_Init, nor of one that is in MPI_Finalize: it waits for them without end.
Other hosts are not seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from . import _core
from .launcher import rank_variable
from .procfs import processes

# How many ranks of this host the launcher started, by the variable of a rank.
_COUNTS = {"PMI_RANK": "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE"}
# Programs whose children are the ranks that those variables count, as the kernel calls them. Below anything else, a
# starter of containers for one, not all of them can be seen.
_LAUNCHERS = ("hydra_pmi", "prte", "orted", "mpirun", "mpiexec")
_LEFT = "accdp_left_mpi"
_joined = False


def say_left() -> None:
    """Let other ranks of this host see that this process, whose MPI is mpi4py's, leaves without having joined them.

    To be called at exit. A nameless file says it as long as the process lasts: it needs nobody to read it, and leaves
    nothing behind.
    """
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or _joined or not mpi4py.Is_initialized() or mpi4py.Is_finalized():
        return
    if mpi4py.COMM_WORLD.Get_size() > 1:
        _core.nameless_memory(_LEFT)


def say_joined() -> None:
    """Note that this process has begun to join the others; MPI_Finalize then ends well, or the launcher ends all."""
    global _joined
    _joined = True


class Siblings:
    """The ranks of this job on this host, as seen from one of them."""

    def __init__(self) -> None:
        self._variable = rank_variable()
        count = os.environ.get(_COUNTS.get(self._variable, ""), "")
        self._count = int(count) if count.isdecimal() else 0
        self._launcher = self._find_launcher()
        if not _name(self._launcher).startswith(_LAUNCHERS):
            self._count = 0
        self._seen: set[str] = set()
        # By pid and start. A process may write a title of its own where its variables were (setproctitle).
        self._known: dict[tuple[int, int], str] = {}
        self._suspected = ""

    def gone(self) -> str:
        """Say which rank cannot come any more, or "". Two looks in a row must miss it: ranks start one by one."""
        if not self._launcher:
            return ""
        ranks = self._ranks()
        if ranks is None:
            self._suspected = ""
            return ""
        self._seen |= ranks.keys()
        left = sorted(rank for rank, pids in ranks.items() if any(map(_has_left, pids)))
        ended = sorted(self._seen - ranks.keys())
        found = ""
        if left:
            found = f"rank {left[0]} (pid {ranks[left[0]][0]}) has left MPI"
        elif ended:
            found = f"rank {ended[0]} has ended"
        elif len(ranks) < self._count:
            found = f"{self._count - len(ranks)} of the {self._count} ranks on this host have ended"
        before, self._suspected = self._suspected, found
        return found if found == before else ""

    def _ranks(self) -> dict[str, list[int]] | None:
        """The living processes of each rank; None where one below the launcher does not show whose it is."""
        running = processes()
        ranks: dict[str, list[int]] = {}
        for pid, it in running.items():
            above = pid
            while above in running and above != self._launcher:
                above = running[above].parent
            if above != self._launcher or pid == above:
                continue
            try:
                variables = os.environ if pid == os.getpid() else _environment(pid)
            except PermissionError:
                return None
            if self._variable in variables:  # another one than before, perhaps: that was its launcher's, before exec
                self._known[pid, it.started] = variables[self._variable]
            elif (pid, it.started) not in self._known:
                # One that the launcher has just begun, and that is not yet the program that it is to be.
                if it.parent == self._launcher and (not variables or _name(pid) == _name(self._launcher)):
                    return None
                continue
            ranks.setdefault(self._known[pid, it.started], []).append(pid)
        return ranks

    def _find_launcher(self) -> int:
        """The nearest process above that is not of this rank; 0 if there is none to be seen."""
        if not self._variable:
            return 0
        running, pid = processes(), os.getpid()
        while pid in running:
            pid = running[pid].parent
            try:
                if _environment(pid).get(self._variable) != os.environ[self._variable]:
                    return pid
            except PermissionError:
                return pid
        return 0


def _environment(pid: int) -> Mapping[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except (FileNotFoundError, ProcessLookupError):  # it ended in the meantime
        return {}
    found = (entry.partition("=") for entry in entries)
    return {name: value for name, equals, value in found if equals and name.isidentifier()}  # a title may have "="


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:  # there is no launcher to be seen
        return ""


def _has_left(pid: int) -> bool:
    try:
        return any(_LEFT in os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False
