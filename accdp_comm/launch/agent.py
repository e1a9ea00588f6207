"""What a launcher starts in place of each rank: it fetches from `accdp run` what to start, starts it and stays with it.

Run by file, isolated, with the standard library alone, so that it starts in milliseconds: ``python -I -S agent.py``.

Two processes per rank. The stub is the one that mpiexec, srun or torchrun knows; launchers end ranks with SIGKILL, and
that may never hit a client of MPS whose kernels run. So the stub only waits, and its child, the guard, which has a
session of its own, outlives such a kill and ends the rank in the safe order: SIGTERM, MPS's terminate_client, SIGKILL.
Whom SIGTERM ends at once, as it does most scripts, for that one terminate_client comes before it.
The same happens when `accdp run` is gone. Output of the rank goes to `accdp run` over one TCP connection, as it comes.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

if __name__ == "__main__":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_here, os.path.dirname(_here)]  # there is no package where a file is run isolated
    import cpus  # type: ignore[import-not-found]
    import offspring  # type: ignore[import-not-found]
    import procfs  # type: ignore[import-not-found]
    from guard_link import Link, connect  # type: ignore[import-not-found]
    from kinship import adopt_orphans  # type: ignore[import-not-found]
else:
    from .. import cpus, procfs
    from . import offspring
    from .guard_link import Link, connect
    from .kinship import adopt_orphans

CONTROL_VARIABLE = "ACCDP_RUN_CONTROL"
OWNER_VARIABLE = "ACCDP_RUN_OWNER"
_TERMINATE_CLIENT_S = 10.0  # how long MPS may take to end the work of a client
_AFTER_INTERRUPT_S = 1.0  # which a rank that does not heed Ctrl-C has at most after SIGTERM
_AFTER_TERMINATE_S = 0.2  # a rank whose work was ended may still leave by itself
# A launcher ends the job the moment that a rank leaves MPI in disorder, when that one has yet to end, and others to say
# whom they miss: what they end with then is their own.
_AFTER_LAUNCHER_S = 1.0
_KILL_AGAIN_S = 0.05
_ORPHANS_S = 1.0  # what a rank leaves running has so long after SIGTERM
# Of torchrun and of Open MPI's mpirun, which tell the other ranks to terminate as soon as one has failed.
_RANKS_OF_HASTY = ("RANK", "OMPI_COMM_WORLD_RANK")
_CHUNK = 1 << 16
_CUDA = b"/libcuda.so"  # the driver's library, which every client of MPS has in memory, and shells have not

# How far the end of a rank has come.
Step = Literal[
    "run",
    "abandoned",  # the launcher has ended our stub: the rank may still end by itself
    "interrupt",  # it was sent SIGINT
    "family",  # which was enough for it alone: what it has started may go on for what is left of the grace
    "terminate",  # it was sent SIGTERM
    "terminate_client",  # MPS ends the work of all
    "orphans",  # it has ended, and what it had started was sent SIGTERM
    "kill",  # all are sent SIGKILL
    "give up",  # some cannot be killed
]


class Helper(NamedTuple):
    """A command that has MPS end the work of processes, and then sends them a signal, 0 for none."""

    pids: list[int]
    signal: int
    until: float  # from then on nobody waits for it: MPS does not answer


class Guard:
    """Starts the rank, relays what it prints, ends it when told or when nobody is there to tell."""

    def __init__(self, link: Link, stub_life: int, rank: int):
        self._link, self._rank = link, rank
        self._stub_life: int | None = stub_life  # read end: readable when the stub has ended
        adopt_orphans()  # of the rank, to find and end them
        self._wakeup, write_end = os.pipe()
        for end in (self._wakeup, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*offspring.STOPPING, *offspring.PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # the number arrives through the pipe
        self._pid = 0
        self._status: int | None = None  # as os.waitpid gives it
        self.has_failed = False  # by itself, and not well
        self._streams: dict[int, bytes] = {}  # read end -> kind of message
        self._orders: dict[str, Any] = {}
        self._helpers: dict[int, Helper] = {}  # that run, by pid
        self._has_helped = False  # there was one for all, as there is once
        self._has_ended_work = False  # or for some: with what they end then is our doing
        self._is_silent = False  # one had no answer in time: MPS is not asked again
        self._owner = 0  # pid of the owner of MPS on this host, if this guard has started one and it lives
        self._has_children = True
        self._step: Step = "run"
        self._deadline = math.inf
        self._last, self._killed = math.inf, set[int]()  # of killing: until when at least, and whom

    def start_owner(self, order: dict[str, Any], control: str) -> None:
        """Start the owner of MPS on this host. It calls `accdp run` by itself, and ends its daemons after all ranks."""
        self._owner = os.fork()
        if self._owner == 0:
            try:
                os.setsid()
                signal.set_wakeup_fd(-1)
                offspring.close_launcher_fds()
                offspring.set_variables(order["env"] | {CONTROL_VARIABLE: control, OWNER_VARIABLE: order["wish"]})
                os.execv(order["argv"][0], order["argv"])
            finally:
                os._exit(127)

    def start(self, orders: dict[str, Any]) -> None:
        """Start the rank as ordered.

        Args:
            orders: ``argv``; ``env``: variables to set, or to remove where None; ``cpus``: to bind to, all if empty;
                ``grace_s``: seconds between the first signal and what follows; ``stdin``: where it is to be had, empty
                for what the launcher gives; ``terminate_client``: command that takes pids and ends their work on the
                GPU, empty without MPS.
        """
        self._orders = orders
        ends = {kind: os.pipe() for kind in (b"o", b"e")}
        failed, failure = os.pipe()
        guard = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            offspring.become_rank(
                guard, self._rank, orders, {kind: write for kind, (_, write) in ends.items()}, failure
            )
        os.close(failure)
        for kind, (read, write) in ends.items():
            os.close(write)
            self._streams[read] = kind
        offspring.close_launcher_fds()
        # At once: `accdp run` ends what a guard leaves that ends before its rank.
        self._link.tell(event="started", pid=self._pid, start_time=procfs.start_time(self._pid))
        trouble = os.read(failed, 1000).decode(errors="replace")
        os.close(failed)
        if trouble:
            self._link.tell(event="not_started", reason=trouble)

    def run(self) -> int:
        """Relay and watch until the rank and all it started have ended; return its wait status."""
        while self._step != "give up" and (self._status is None or self._streams or self._has_children):
            left = self._wakes_at() - time.monotonic()
            limit = None if left == math.inf else max(0.0, left)
            ready, _, _ = select.select(self._sources(), [], [], limit)
            for source in ready:
                if source is self._link:
                    self.obey(self._link.receive())
                elif source == self._stub_life:
                    self._stub_life = None
                    self._leave_alone()
                elif source == self._wakeup:
                    self._signals(os.read(self._wakeup, 256))
                else:
                    self._relay(source)
            if self._link.lost:  # found by who reads or by who writes
                self.stop()
            if time.monotonic() >= self._wakes_at():
                self._pass_on()
        return self._status if self._status is not None else signal.SIGKILL

    def await_owner(self) -> None:
        """Wait until the owner of MPS has ended: launchers may kill what a rank's process leaves behind."""
        while self._owner:
            select.select([self._wakeup], [], [])
            os.read(self._wakeup, 256)
            while self._reap():
                pass

    def _sources(self) -> list[Any]:
        others = (None if self._link.lost else self._link, self._stub_life)
        return [self._wakeup, *self._streams, *(source for source in others if source is not None)]

    def obey(self, orders: Sequence[dict[str, Any]]) -> None:
        for order in orders:
            if order["order"] == "stop":
                self._orders["grace_s"] = order["grace_s"]
                self.stop(order["number"], again=True)
            elif order["order"] == "signal" and self._pid and self._status is None:
                offspring.send_signal(self._pid, order["number"])

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in offspring.STOPPING:
                self.stop()
            elif number in offspring.PASSED_ON and self._status is None:
                offspring.send_signal(self._pid, number)
            elif number == signal.SIGCHLD:
                while self._reap():
                    pass

    def _reap(self) -> bool:
        """Take one child that has ended, if there is one."""
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            self._has_children = False
            return False
        if pid and pid == self._owner:
            self._owner = 0
        if self._owner and not self._family():
            self._has_children = False  # but for the owner, which is waited for by itself
        if pid in self._helpers:
            self._helper_ended(self._helpers.pop(pid), status)
        elif pid and pid == self._pid:  # both are 0 while none has begun
            self._rank_ended(status)
        return pid > 0

    def _helper_ended(self, helper: Helper, status: int) -> None:
        if status != 0:
            self._tell_after(helper)
        soon = time.monotonic() + (_AFTER_TERMINATE_S if self._status is None else _ORPHANS_S)
        self._deadline = soon if self._step == "terminate_client" else max(self._deadline, soon)

    def _rank_ended(self, status: int) -> None:
        """Tell `accdp run` how; what the rank has left running is to end, too."""
        self._status = status
        number = os.WTERMSIG(status) if offspring.killed(status) else 0
        # Told to terminate, it ends by that signal or by itself; any other one was somebody else's.
        was_told = (
            self._has_ended_work
            or self._step not in ("run", "abandoned", "interrupt", "terminate")
            or (self._step in ("interrupt", "terminate") and number in (0, signal.SIGINT, signal.SIGTERM))
        )
        self.has_failed = status != 0 and not was_told
        self._link.tell(event="ended", code=offspring.exit_code(status), signal=number, was_told=was_told)
        if self._step == "interrupt" and self._family():
            self._step = "family"  # a shell's script may be about to save
        elif self._step == "terminate" and self._family():
            # A shell that was told to terminate does so at once; its programs have what is left of the grace.
            self._deadline = max(self._deadline, time.monotonic() + _ORPHANS_S)
            self._tell(self._family(), signal.SIGTERM)
        elif self._step == "terminate_client" and self._helpers:  # it may have others yet, and is waited for
            for pid in self._family():
                if procfs.heeds(pid, signal.SIGTERM):
                    offspring.send_signal(pid, signal.SIGTERM)
        else:
            self._end_orphans()

    def _family(self, *spared: int) -> list[int]:
        """Return the rank and what it started: all below us but helpers, and the owner of MPS, who goes last.

        One look at the process table for all: what one of the ``spared`` started between two looks would be in one of
        them alone.
        """
        us = os.getpid()
        others = [pid for pid in (self._owner, *self._helpers, *spared) if pid]
        return [pid for pid, root in procfs.descendants([*others, us]).items() if root == us and pid != us]

    def _tell(self, pids: Sequence[int], number: int) -> None:
        """Send a signal, in this order. Of clients that it ends at once MPS ends the work before; a helper sends it."""
        exposed = [
            pid for pid in pids if self._may_help() and procfs.maps(pid, _CUDA) and not procfs.heeds(pid, number)
        ]
        for pid in pids:
            if pid not in exposed:
                offspring.send_signal(pid, number)
        if exposed:
            self._start_helper(exposed, number)

    def _tell_after(self, helper: Helper) -> None:
        """Send the signal of a helper that failed, or is late, to whom is there."""
        if helper.signal:
            for pid in set(helper.pids).intersection(self._family()):
                offspring.send_signal(pid, helper.signal)

    def _end_orphans(self) -> None:
        self._step = "orphans"
        self._deadline = time.monotonic() + _ORPHANS_S
        self._tell(self._family(), signal.SIGTERM)

    def _leave_alone(self) -> None:
        """The launcher has ended our stub: the rank may end by itself, for a moment."""
        if self._status is None and self._step == "run":
            self._step = "abandoned"
            self._deadline = time.monotonic() + _AFTER_LAUNCHER_S

    def stop(self, number: int = signal.SIGTERM, again: bool = False) -> None:
        """Begin to end the rank by a signal; ``again`` takes a shorter grace into account that came in the meantime.

        A rank that Ctrl-C is to end hears of it as it would without a launcher, with its process group: scripts save
        what they have where KeyboardInterrupt comes.
        """
        while self._reap():
            pass  # it may have ended just now, which is why we are called
        if self._status is None and self._step in ("run", "abandoned"):
            self._deadline = time.monotonic() + self._orders["grace_s"]
            if number == signal.SIGINT:
                self._step = "interrupt"
                self._interrupt()
            else:
                self._terminate()
        elif again and self._step in ("interrupt", "family", "terminate"):
            self._deadline = min(self._deadline, time.monotonic() + self._orders["grace_s"])

    def _interrupt(self) -> None:
        if self._may_help():
            self._tell([pid for pid, it in procfs.processes().items() if it.group == self._pid], signal.SIGINT)
        else:
            offspring.send_signal(-self._pid, signal.SIGINT)

    def _terminate(self) -> None:
        self._step = "terminate"
        self._tell([self._pid], signal.SIGTERM)

    def _wakes_at(self) -> float:
        """Return when there is something to do: while helpers run no next step is taken."""
        return min((helper.until for helper in self._helpers.values()), default=self._deadline)

    def _pass_on(self) -> None:
        now = time.monotonic()
        for pid, helper in list(self._helpers.items()):
            if helper.until <= now:
                del self._helpers[pid]
                self._is_silent = True
                self._tell_after(helper)
                if helper.signal:
                    self._deadline = max(self._deadline, now + _ORPHANS_S)
        if not self._helpers and now >= self._deadline:
            self._next_step()

    def _next_step(self) -> None:
        """The deadline of the present step has passed: take the next one."""
        if self._step == "abandoned":
            self.stop()
        elif self._step == "family":
            self._end_orphans()
        elif self._step == "interrupt":
            self._deadline = time.monotonic() + min(_AFTER_INTERRUPT_S, self._orders["grace_s"])
            self._terminate()
        elif self._step in ("terminate", "orphans") and self._may_help() and not self._has_helped:
            self._has_helped = True
            self._step = "terminate_client"
            self._start_helper(self._family(), 0)
        elif self._step in ("terminate", "terminate_client", "orphans"):
            self._step, self._last = "kill", time.monotonic() + _ORPHANS_S
            self._kill()
        elif self._step != "kill" or not self._kill():
            # It sleeps in the kernel, or became another user's: nothing more can be done, so do not wait either.
            self._step = "give up"

    def _kill(self) -> bool:
        """End the family, and soon again what one of it had begun before its own turn came; whether to go on."""
        before = len(self._killed)
        for pid in (family := self._family()):
            offspring.send_signal(pid, signal.SIGKILL)
        self._killed.update(family)
        self._deadline = time.monotonic() + _KILL_AGAIN_S
        return len(self._killed) > before or time.monotonic() < self._last

    def _may_help(self) -> bool:
        return bool(self._orders["terminate_client"]) and not self._is_silent

    def _start_helper(self, pids: list[int], number: int) -> None:
        self._has_ended_work = True
        helper = os.fork()
        if helper == 0:
            try:
                signal.set_wakeup_fd(-1)
                argv = [*self._orders["terminate_client"], "--signal", str(int(number)), *map(str, pids)]
                os.execv(argv[0], argv)
            finally:
                os._exit(127)
        self._helpers[helper] = Helper(pids, number, time.monotonic() + _TERMINATE_CLIENT_S)

    def _relay(self, stream: int) -> None:
        data = os.read(stream, _CHUNK)
        if data:
            self._link.send(self._streams[stream], data)
        else:
            os.close(stream)
            del self._streams[stream]


def hold_port() -> socket.socket:
    """Return a socket bound to a free port, which a listener with SO_REUSEADDR (torch's store) may yet take."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder


def guard(control: dict[str, Any], rank: int, stub_life: int) -> int:
    """Be the guard of one rank; return the exit code for the stub."""
    link = Link(connect(control["addresses"], control["port"], control["token"]))
    holder = hold_port() if rank == 0 else None
    link.tell(
        event="hello",
        rank=rank,
        host=socket.gethostname(),
        node=procfs.node_key(),
        cores=cpus.cores(),
        quota=cpus.quota(),
        gpus=offspring.ask_gpus(control["ask_gpus"]),
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        port=holder.getsockname()[1] if holder else 0,
    )
    ranks_guard = Guard(link, stub_life, rank)
    try:
        while not link.lost:
            orders = link.receive()
            for number, order in enumerate(orders):
                if order["order"] == "own":
                    ranks_guard.start_owner(order, json.dumps(control))
                    continue
                if order["order"] != "start":
                    return 1  # the job was given up before it began
                ranks_guard.start(order)
                ranks_guard.obey(orders[number + 1 :])
                code = offspring.exit_code(ranks_guard.run())
                link.part()
                if order["keep_going"]:
                    return 0  # any other one ends the others by their launcher
                if ranks_guard.has_failed and control["rank_variable"] in _RANKS_OF_HASTY:
                    time.sleep(_AFTER_LAUNCHER_S)
                return code
        return 1
    finally:
        ranks_guard.await_owner()


def main() -> NoReturn:
    if CONTROL_VARIABLE not in os.environ:
        sys.exit(f"accdp run: {CONTROL_VARIABLE} is not set: the launcher hands no environment on to what it starts")
    control = json.loads(os.environ.pop(CONTROL_VARIABLE))
    text = os.environ.get(control["rank_variable"], "")
    if not text.isdecimal():
        sys.exit(f"accdp run: {control['rank_variable']} is not set: the launcher did not start this process as a rank")
    stub_life, held_by_stub = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held_by_stub)
        os.setsid()
        os._exit(guard(control, int(text), stub_life))
    os.close(stub_life)
    offspring.close_launcher_fds()
    for number in (*offspring.STOPPING, *offspring.PASSED_ON):
        signal.signal(number, lambda number, _: offspring.send_signal(pid, number))
    sys.exit(offspring.exit_code(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
