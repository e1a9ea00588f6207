"""MPS for one job: decides whether it is used, owns one daemon per GPU, watches the ranks, and stops the daemons."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from ... import _core
from ..environment import MpsShare
from ..gpus import Gpu
from ..interruption import undisturbed
from . import daemon as daemons
from . import records
from .attachment import Attachment, Member
from .refusals import AS_IT_IS, somebody_elses, why_not


class Session:
    """The daemons of one job.

    Args:
        is_required: ``--mps on``: what goes wrong ends the job instead of being said once.
        say: Writes a line for the user.
    """

    def __init__(self, is_required: bool, say: Callable[[str], None]):
        self._is_required = is_required
        self._say = say
        self._daemons: dict[str, daemons.Daemon] = {}
        self._owned: list[daemons.Daemon] = []
        self._attachment: Attachment | None = None
        self._has_warned = False

    def start(self, gpus: Sequence[Gpu]) -> None:
        """Clean up after owners that crashed, then start a daemon for each GPU, unless `accdp mps start` keeps one.

        Raises:
            MpsError: One did not start; none is left running.
        """
        daemons.adopt_daemons()
        base = records.base_directory()
        with records.locked(base):
            for line in daemons.clean(base):
                self._say(f"MPS: {line}")
            found = daemons.find_all(base)
            kept = {one.record.gpu: one for one in found if one.record.is_kept}
            for gpu in gpus:
                if gpu.uuid in kept:
                    self._daemons[gpu.uuid] = kept[gpu.uuid]
                    kept[gpu.uuid].control().servers()  # now, while nothing waits for it: does it answer?
                    continue
                for one in (one for one in found if one.record.gpu == gpu.uuid and one.record.daemon_lives()):
                    self._say(
                        f"MPS: GPU {gpu.index} is used by another job of yours (pid {one.record.owner_pid}), too: the "
                        "two take turns on it, and each divides all of its memory among its ranks; `accdp mps start` "
                        "keeps a daemon for both"
                    )
                started = daemons.start(base, gpu.uuid, is_kept=False)
                self._owned.append(started)
                self._daemons[gpu.uuid] = started

    def share(self, gpu: Gpu, thread_percentage: int, memory_limit_bytes: int) -> MpsShare:
        """Return what a rank on this GPU needs to be a client."""
        found = self._daemons[gpu.uuid]
        return MpsShare(found.pipe_directory, found.log_directory, thread_percentage, memory_limit_bytes)

    def expect(self, ranks: Sequence[int]) -> None:
        """Say which ranks should become clients."""
        self._attachment = Attachment(self._daemons, ranks, self._say)

    def watch(self, members: Sequence[Member]) -> str:
        """Look after the clients; return why the job must end, empty if it need not."""
        for found in self._daemons.values():
            records.refresh(found.folder)
        trouble = self._attachment.watch(members) if self._attachment else ""
        if trouble and not self._is_required and not self._has_warned:
            self._has_warned = True
            self._say(f"MPS: {trouble}")
        return trouble if self._is_required else ""

    def stop(self) -> list[str]:
        """Stop the daemons that this job owns, after their clients; return what there is to say of it."""
        lines = []
        if self._attachment is not None and self._attachment.missing():
            names = ", ".join(map(str, self._attachment.missing()))
            lines.append(f"MPS: rank {names} was never seen as a client: it ended early, or did not use its GPU")
        # Without the lock: nobody else touches them while we live, and a GPU that is stuck must not hold up other jobs.
        for found in self._owned:
            lines += [f"MPS: {line}" for line in daemons.stop(found)]
        self._owned.clear()
        return lines


def kept() -> dict[str, str]:
    """Return the pipe directory of each living daemon that `accdp mps start` keeps, by the UUID of its GPU."""
    base = records.existing_directory()
    living = [one for one in daemons.find_all(base) if one.record.daemon_lives()] if base else []
    return {one.record.gpu: one.pipe_directory for one in living if one.record.is_kept}


@contextlib.contextmanager
def session(mode: str, gpus: Sequence[Gpu], ranks_per_gpu: int, say: Callable[[str], None]) -> Iterator[Session | None]:
    """Own MPS for the length of a with-block; None where it is not used.

    Args:
        mode: "on", "auto" (where ranks share a GPU, or `accdp mps start` keeps daemons for all; a warning where that
            cannot be) or "off" (nothing is touched).
        gpus: Of the job, on this node.
        ranks_per_gpu: Most ranks on one of them.
        say: Writes a line for the user.
    Raises:
        UsageError: With "on": why it cannot be used.
    """
    if mode == "off" or (mode == "auto" and not gpus):
        yield None
        return
    if not gpus:
        raise _core.UsageError("--mps on: there are no GPUs for it")
    stays = kept()
    if mode == "auto" and ranks_per_gpu < 2 and not {gpu.uuid for gpu in gpus} <= stays.keys():
        yield None
        return
    if theirs := somebody_elses(os.environ, stays.values()):
        if mode == "on":
            raise _core.UsageError(f"--mps on: {theirs}")
        say(f"no MPS is started, and ranks {AS_IT_IS}: {theirs}")
        yield None
        return
    reason = why_not(gpus, ranks_per_gpu)
    ours = Session(mode == "on", say)
    try:
        if not reason:
            try:
                ours.start(gpus)
            except (_core.Error, OSError) as error:  # of a folder that is somebody else's, or cannot be made, too
                reason = str(error)
        if reason and mode == "on":
            raise _core.UsageError(f"--mps on: {reason}")
        if reason:
            say(f"no MPS is started, and ranks that share a GPU take turns on it: {reason}")
        yield None if reason else ours
    finally:
        lines = undisturbed(ours.stop)
        for line in lines:  # only now: who reads may have left, or not read
            say(line)
