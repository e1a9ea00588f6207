"""One job from its start to its end: the launcher process, the guards of its ranks, signals, failures, exit code."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .agent import CONTROL_VARIABLE
from .control import Connection, Listener, has_news
from .interruption import only_wake, stopping
from .mps.owners import Owners
from .offspring import PASSED_ON, STOPPING
from .output import ERR, OUT, Output, Sink
from .programs import Program
from .ranks import GUARD_S, Rank, Stop, exit_code, explain, first_failure, in_words, some_of
from .standard_input import is_for_others, make_lender
from .unguarded import end_unguarded

# The others notice a failed rank within a second and say so; then they are told to end.
_AFTER_FAILURE_S = 1.0
_START_LIMIT_S = 120.0  # from the first rank's call until the last one's
_FIRST_CALL_LIMIT_S = 300.0  # until the first one's; srun may have to wait for an allocation, as long as it takes
_LAUNCHER_END_S = 10.0  # which the launcher may take when all its ranks have ended
# Which ranks have when it is gone: to say how they ended, and what before, as long as they say something.
_AFTER_LAUNCHER_S, _AFTER_LAUNCHER_AT_MOST_S = 2.0, 10.0
_WATCH_S = 0.5
_PATIENCE_S = 15.0  # of somebody who waits for ranks to start and sees nothing
_TERM = signal.SIGTERM
_AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agent.py")


class Job:
    """Runs a job; :meth:`run` returns its exit code.

    Args:
        program: Starts the processes.
        ranks: How many.
        addresses: Where guards on other hosts reach us; empty if there are none.
        orders: Called once when all ranks have called, with them in order; returns each one's order to start.
        labels: Whether lines carry the rank, by OUT and ERR.
        grace_s: Seconds that ranks have between the first signal and what follows.
        watch: Called every half second with the ranks that run; a text it returns ends the job with that reason.
        terminate_clients: Ends what processes of this node do on their GPUs, by pid, before they get SIGKILL.
        ask_gpus: Command that lists the GPUs of a node; what it prints comes with each rank's hello.
        prepare: Called with the ranks before ``orders``; may ask owners, whose answers are waited for.
        owners: Of MPS on other hosts.
        keep_going: A rank that fails is told of, and does not end the job.
    """

    def __init__(
        self,
        program: Program,
        ranks: int,
        addresses: list[str],
        orders: Callable[[Sequence[Rank]], list[dict[str, Any]]],
        labels: dict[str, bool],
        grace_s: float,
        watch: Callable[[Sequence[Rank]], str | None] | None = None,
        terminate_clients: Callable[[Sequence[int]], None] | None = None,
        ask_gpus: Sequence[str] = (),
        prepare: Callable[[Sequence[Rank]], None] | None = None,
        owners: Owners | None = None,
        keep_going: bool = False,
    ):
        self._program, self._size, self._orders, self._grace_s = program, ranks, orders, grace_s
        self._watch, self._terminate_clients, self._ask_gpus = watch, terminate_clients, ask_gpus
        self._prepare, self._owners, self._keep_going = prepare, owners, keep_going
        self._wakeup, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        sinks = {kind: Sink(fd, self._wakeup, self._on_signals) for kind, fd in ((OUT, 1), (ERR, 2))}
        same = os.fstat(1)[:2] == os.fstat(2)[:2]
        self.output = Output(ranks, sinks, labels, {OUT: os.isatty(1), ERR: os.isatty(2)}, same)
        self._listener = Listener(addresses, ranks)
        self._lender = make_lender() if program.launcher == "mpiexec" and not addresses else None
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, Rank] = {}
        self._launcher: subprocess.Popen[bytes] | None = None
        self._is_started = self._is_interrupted = self._goes_on = False
        self._first_call: float | None = None
        self._began = time.monotonic()
        self._next_word = self._began + _PATIENCE_S
        self._stop: Stop | None = None
        self._reason = ""  # why we ended the job, where no rank failed
        self._failures: list[Rank] = []
        self._next_watch = 0.0
        self._too_early: list[str] = []  # signals to be told of, not in the middle of what is being written
        self._all_left_at: float | None = None
        self._outstayed = False  # the launcher, all of whose ranks had ended
        # Since when the launcher is gone, and since when no rank has said anything, while some are there.
        self._alone_since: float | None = None
        self._silent_since = 0.0
        self._unguarded: list[Rank] = []  # whose guard was killed

    def run(self) -> int:
        """Start the job, wait for its end, and say how it failed if it did."""
        before = {number: signal.getsignal(number) for number in (*stopping(), *PASSED_ON, signal.SIGCHLD)}
        old_fd = signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, only_wake)
        try:
            self._start_launcher()
            while not self._is_over():
                self._wait()
            return self._conclude()
        except BaseException:
            self._goes_on = False
            self._give_up()  # guards end their ranks when they hear nothing more
            raise
        finally:
            self._listener.close()
            self.output.close()
            if self._lender:
                self._lender.close()
            signal.set_wakeup_fd(old_fd)
            # Who has pressed Ctrl-C more often than needed is not to see it end what says how the job did.
            for number, handler in () if self._is_interrupted else before.items():
                signal.signal(number, handler)
            for end in (self._wakeup, self._wakeup_write):
                os.close(end)
            self._selector.close()
            for pipe in (self._launcher.stdout, self._launcher.stderr) if self._launcher else ():
                assert pipe is not None
                pipe.close()

    # -- starting ---------------------------------------------------------------------------------------------------

    def _start_launcher(self) -> None:
        asked = os.environ | self._program.environment
        environment = {name: value for name, value in asked.items() if value is not None}
        environment[CONTROL_VARIABLE] = self._listener.invitation(self._program.rank_variable, self._ask_gpus)
        command = [*self._program.command, sys.executable, "-I", "-S", _AGENT]
        # A session of its own: Ctrl-C at the terminal is ours, and launchers answer it with SIGKILL.
        self._launcher = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL if self._lender or is_for_others() else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._launcher.stdout is not None and self._launcher.stderr is not None
        for kind, pipe in ((OUT, self._launcher.stdout), (ERR, self._launcher.stderr)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, kind)
        self._selector.register(self._wakeup, selectors.EVENT_READ, "wakeup")
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        if self._lender:
            self._selector.register(self._lender, selectors.EVENT_READ, "lender")

    def _hello(self, connection: Connection, message: dict[str, Any]) -> None:
        number = int(message["rank"])
        if number in self._ranks or number >= self._size:
            connection.close()
            self.end(f"the launcher started rank {number} twice, or more ranks than {self._size}", 1)
            return
        self._ranks[number] = Rank(number, connection, message)
        self._first_call = self._first_call or time.monotonic()
        if self._stop is not None:
            connection.order(order="stop", grace_s=0.0, number=_TERM)
        elif len(self._ranks) == self._size:
            if self._prepare:
                self._prepare(self._members())
            self._start_ranks()

    def _members(self) -> list[Rank]:
        return [self._ranks[number] for number in range(self._size)]

    def _start_ranks(self) -> None:
        """Give the order to start, once what ranks need is there."""
        if self._is_started or self._stop or self._failures or len(self._ranks) < self._size:
            return  # one that has failed called, and was killed since: its script may not even begin
        if self._owners and (self._owners.trouble or not self._owners.are_ready()):
            return
        members = self._members()
        for rank, order in zip(members, self._orders(members), strict=True):
            stdin = self._lender.address if self._lender and rank.rank == 0 else ""
            rank.connection.order(
                order="start", grace_s=self._grace_s, stdin=stdin, keep_going=self._keep_going, **order
            )
        self._is_started, self._goes_on = True, self._keep_going
        self._listener.leave(self._selector)  # all who were to call have

    # -- events -----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        for key, _ in self._selector.select(self._limit()):
            if key.data == "wakeup":
                self._on_signals()
            elif key.data == "listener":
                if not self._is_started:  # what else has come may just have completed the ranks
                    self._listener.accept(self._selector)
            elif key.data == "lender":
                assert self._lender is not None
                self._lender.lend()
            elif isinstance(key.data, Connection):
                self._on_connection(key.data)
            else:
                self._on_launcher_output(key)
        self._on_time()

    def _limit(self) -> float | None:
        """Return how many seconds may pass until something is due."""
        now = time.monotonic()
        times = [due - now for due, _ in self._timers()]
        if self._is_abandoned():
            times.append(self._abandoned_until() - now)
        if (stale := self.output.flush_stale()) is not None:
            times.append(stale)
        return max(0.0, min(times)) if times else None

    def _timers(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield when something is due, as things stand, and what; the next follows from what that has changed."""
        if self._stop:
            yield self._stop.deadline, self._give_up
        elif self._failures and not self._goes_on:
            yield self._failures[0].ended_at + _AFTER_FAILURE_S, lambda: self.end("", 1)
        elif self._is_started and self._watch:
            yield self._next_watch, self._look_at_ranks
        elif not self._is_started and (limit := self._start_limit()) is not None:
            yield limit, self._end_for_missing
        if not (self._is_started or self._stop):
            yield self._next_word, self._say_how_many
        if self._all_left_at is not None:
            yield self._all_left_at + _LAUNCHER_END_S, self._end_idle_launcher

    def _start_limit(self) -> float | None:
        if self._first_call:
            return self._first_call + _START_LIMIT_S
        return None if self._program.launcher == "srun" else self._began + _FIRST_CALL_LIMIT_S

    def _on_time(self) -> None:
        while self._too_early:
            name = self._too_early.pop(0)
            self.output.say(f"accdp run: {name} came before the ranks had begun, and is not passed on")
        if self.output.is_closed and self._stop is None:
            self.end(self.output.trouble, 1 if self.output.trouble else 128 + signal.SIGPIPE)
        for due, action in self._timers():
            if time.monotonic() >= due:
                action()

    def _end_for_missing(self) -> None:
        if has_news(self._selector):
            return
        missing = [f"rank {rank}" for rank in range(self._size) if rank not in self._ranks]
        missing += [f"MPS on {host}" for host in self._owners.missing()] if self._owners and not missing else []
        what = f"{_START_LIMIT_S:g} s of the first rank" if self._first_call else f"{_FIRST_CALL_LIMIT_S:g} s"
        self.end(f"{some_of(missing)} did not start within {what}", 1)

    def _look_at_ranks(self) -> None:
        assert self._watch is not None
        self._next_watch = time.monotonic() + _WATCH_S
        if trouble := self._watch([rank for rank in self._ranks.values() if rank.code is None]):
            self.end(trouble, 1)

    def _say_how_many(self) -> None:
        self._next_word = time.monotonic() + _PATIENCE_S
        self.output.say(f"accdp run: {self._program.launcher} has started {len(self._ranks)} of {self._size} ranks")

    def _end_idle_launcher(self) -> None:
        self._outstayed = self._launcher is not None and self._launcher.poll() is None
        self._end_launcher()

    def _on_signals(self) -> None:
        try:
            numbers = os.read(self._wakeup, 256)
        except BlockingIOError:
            return
        for number in numbers:
            if number in STOPPING:
                # Asked again, the user has waited enough; the order of ending stays.
                grace = self._grace_s if self._stop is None else 0.0
                self.output.hurry()
                self._is_interrupted = True
                # As without a launcher Ctrl-C is KeyboardInterrupt in a script; the others, mostly, just end it.
                said = f"ended by {signal.Signals(number).name}"
                self.end(said, 128 + number, grace, number=number if number == signal.SIGINT else _TERM)
            elif number in PASSED_ON and not self._is_started:
                self._too_early.append(signal.Signals(number).name)
            elif number in PASSED_ON:
                for rank in self._ranks.values():
                    rank.connection.order(order="signal", number=number)

    def _on_connection(self, connection: Connection) -> None:
        self._silent_since = time.monotonic()
        for kind, message in connection.receive():
            if kind == "j" and message["event"] == "hello":
                self._hello(connection, message)
            elif self._owners and kind == "j" and message["event"].startswith("owner"):
                self._owners.hear(connection, message)
                self._start_ranks()
            elif (rank := self._rank_of(connection)) is not None:  # else it was turned away
                self._hear(rank, kind, message)
        if connection.is_closed:
            self._on_lost(connection)
        if self._owners and self._owners.trouble and self._stop is None:
            self.end(self._owners.trouble, 1 if self._is_started else 2)

    def _hear(self, rank: Rank, kind: str, message: Any) -> None:
        """What a rank printed, or its guard says."""
        if kind != "j":
            self.output.feed(rank.rank, kind, message)
        elif message["event"] == "started":
            rank.pid, rank.start_time = message["pid"], message["start_time"]
            if self._owners:
                self._owners.started(rank.rank, rank.pid)
        elif message["event"] == "not_started":
            self.output.feed(rank.rank, ERR, f"{message['reason']}\n".encode())
        elif message["event"] == "ended":
            rank.code, rank.signal, rank.ended_at = message["code"], message["signal"], time.monotonic()
            if self._owners:
                self._owners.ended(rank.rank)
            # One that was told to end, by us or by the launcher, is not where the trouble began.
            is_ending = self._stop is not None and not self._stop.is_launchers
            if rank.code != 0 and not message["was_told"] and not is_ending:
                self._failures.append(rank)

    def _rank_of(self, connection: Connection) -> Rank | None:
        return next((rank for rank in self._ranks.values() if rank.connection is connection), None)

    def _on_lost(self, connection: Connection) -> None:
        connection.leave(self._selector)
        if self._owners:
            self._owners.lost(connection)
        rank = self._rank_of(connection)
        if rank is None:
            return
        self.output.finish(rank.rank)
        if rank.code is None:
            rank.code, rank.is_lost, rank.ended_at = 128 + signal.SIGKILL, True, time.monotonic()
            self._unguarded.append(rank)
            if self._stop is None:
                self._failures.append(rank)
            if self._owners:  # of MPS, who ends in the safe order what such a rank left
                self._owners.ended(rank.rank, is_lost=True)
        if self._goes_on and rank.code and (rank in self._failures or self._stop is None):
            explain(rank, list(self._ranks.values()), self.output)
        if self._is_started and all(rank.connection.is_closed for rank in self._ranks.values()):
            end_unguarded(self._unguarded, self._grace_s, self._terminate_clients)
            self._all_left_at = time.monotonic()

    def _on_launcher_output(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self.output.launcher_said(key.data, data)
        else:
            self._selector.unregister(key.fileobj)

    # -- ending -----------------------------------------------------------------------------------------------------

    def end(
        self, reason: str, code: int, grace_s: float | None = None, is_launchers: bool = False, number: int = _TERM
    ) -> None:
        """End the job in the safe order, ``number`` being ranks' first signal; called again, only hurry."""
        grace = self._grace_s if grace_s is None else grace_s
        deadline = time.monotonic() + grace + GUARD_S
        if self._stop is None:
            self._stop = Stop(code, deadline, is_launchers)
            self._reason = reason
        self._stop.deadline = min(self._stop.deadline, deadline)
        for rank in self._ranks.values():
            rank.connection.order(order="stop", grace_s=grace, number=number)
        if not self._is_started and self._owners:
            self._owners.release()
        if not self._is_started and self._launcher is not None:
            self._launcher.terminate()  # no rank has begun anything

    def _is_over(self) -> bool:
        assert self._launcher is not None
        if self._launcher.poll() is None:
            return False
        living = [rank for rank in self._ranks.values() if not rank.connection.is_closed]
        if self._alone_since is None:
            self._alone_since = self._silent_since = time.monotonic()
        if self._is_abandoned() and time.monotonic() >= self._abandoned_until():
            status = self._launcher.returncode
            self.end(f"{self._program.launcher} ended {in_words(status)}", exit_code(status) or 1, is_launchers=True)
        return not living

    def _is_abandoned(self) -> bool:
        """Whether the launcher has ended, and not all ranks: nobody but us will end these."""
        is_ending = self._alone_since is None or self._stop is not None or bool(self._failures and not self._goes_on)
        return not is_ending and any(rank.code is None for rank in self._ranks.values())

    def _abandoned_until(self) -> float:
        """Return until when such ranks may end by themselves."""
        assert self._alone_since is not None
        return min(self._silent_since + _AFTER_LAUNCHER_S, self._alone_since + _AFTER_LAUNCHER_AT_MOST_S)

    def _give_up(self) -> None:
        """Guards have not finished in time (a host is gone, a process sleeps in the kernel): leave without them."""
        for rank in self._ranks.values():
            if not rank.connection.is_closed:
                rank.connection.close()
                self._on_lost(rank.connection)
        if self._owners:
            self._owners.close()
        self._end_launcher()

    def _end_launcher(self) -> None:
        self._all_left_at = None
        if self._launcher is None:
            return
        self._launcher.terminate()
        try:
            self._launcher.wait(_LAUNCHER_END_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()

    def _conclude(self) -> int:
        """Drain what the launcher said, tell what failed first, and return the exit code."""
        assert self._launcher is not None
        for key in list(self._selector.get_map().values()):
            if key.data in (OUT, ERR):
                self._on_launcher_output(key)
        ranks = list(self._ranks.values())
        is_launchers = self._stop is None or self._stop.is_launchers
        is_its_end = is_launchers and self._launcher.returncode != 0
        was_cut = is_its_end and any(rank.code and rank not in self._failures for rank in ranks)
        if self._goes_on and self._stop is None and not was_cut and any(rank.code == 0 for rank in ranks):
            return 0
        # Where ranks were to go on, no failure is why we end the job, or why the launcher ended some of them.
        blamed = self._failures if not self._goes_on or (is_launchers and not was_cut) else []
        if (first := first_failure(blamed, ranks, self.output, is_its_end)) is not None:
            explain(first, ranks, self.output)
            # One that had failed, and was told to end before it had left, has no code of its own.
            return int(first.code or 1) if first in self._failures else 1
        if self._stop is not None:
            if self._reason:
                self.output.say(f"accdp run: {self._reason}")
            return self._stop.code
        status = self._launcher.returncode
        if self._outstayed and all(rank.code == 0 for rank in ranks):
            self.output.say(f"accdp run: {self._program.launcher} did not end after its ranks, and was ended")
            return 0
        if status == 0 and not self._is_started:
            self.output.say(f"accdp run: {self._program.launcher} ended before all ranks had begun")
            return 1
        if status != 0:
            why = ": a rank left without MPI_Finalize, or called MPI_Abort" if self._is_started and status > 0 else ""
            self.output.say(f"accdp run: {self._program.launcher} ended the job {in_words(status)}{why}")
        return exit_code(status) or next((int(rank.code) for rank in ranks if rank.code), 0)
