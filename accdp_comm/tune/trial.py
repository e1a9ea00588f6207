"""One trial: start the script by `accdp run`, follow its steps until its speed is known, and end it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import _core, own_programs, steps
from ..launch import last_error
from ..launch.interruption import PARENT_VARIABLE
from . import events
from .load import Sampler
from .measure import Meter, Plan, Rate
from .space import Point

_LOOK_S = 0.1
# What the common allocators say, and `accdp run` of a rank that the kernel's out-of-memory killer found, maybe with its
# whole control group.
_EXHAUSTED = re.compile(
    r"out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|can't allocate memory|Cannot allocate memory"
    r"|std::bad_alloc|MemoryError\b|CUBLAS_STATUS_ALLOC_FAILED|was killed by SIGKILL|lost its guard, which was killed",
)
_ELSEWHERE = b"ACCDP_STEP_LOG="  # in the line of a rank that finds no folder for its log (steps.begin)
_WORDS = re.compile(r"\{(batch_size|global_batch_size|workers|ranks)\}")


@dataclass(frozen=True)
class Job:
    """What all trials have in common.

    Args:
        script: The command as given, with {batch_size} and the like in it.
        folder: For the output of the trials.
        run_options: More options of `accdp run`.
        start_s: Seconds that a script may take to its first step, or do nothing that is logged.
        limit_s: Seconds that a trial may take in all.
        end_s: Seconds that `accdp run` may then take to end its ranks, and MPS.
    """

    script: tuple[str, ...]
    folder: Path
    run_options: tuple[str, ...] = ()
    plan: Plan = field(default_factory=Plan)
    start_s: float = 300.0
    limit_s: float = 900.0
    end_s: float = 30.0


@dataclass
class Outcome:
    """How a trial ended. Rates are of all ranks together; 0 where nothing was measured."""

    point: Point
    status: str  # "ok", "stopped", "out of memory", "failed", "other batch" or "skipped"
    samples_per_s: float = 0.0
    steps_per_s: float = 0.0
    global_batch: float | None = None
    error: float = 0.0  # relative standard error of the rates
    measured_s: float = 0.0
    wall_s: float = 0.0
    seen_by: str = ""
    load: dict[str, float] = field(default_factory=dict)  # per cent, by what was loaded
    reason: str = ""
    rates: list[float] = field(default_factory=list)  # of all trials in samples/s, where there was more than one

    @property
    def first(self) -> float:
        """Samples per second of the first trial."""
        return self.rates[0] if self.rates else self.samples_per_s

    def with_another(self, other: Outcome) -> Outcome:
        """The outcome of this point's trials and one more: their median, or the failure of the last."""
        wall_s = self.wall_s + other.wall_s
        if other.status not in ("ok", "stopped"):
            return replace(other, wall_s=wall_s)
        rates = [*(self.rates or [self.first]), other.samples_per_s]
        middle = statistics.median(rates)
        between = statistics.stdev(rates) / middle / len(rates) ** 0.5
        return replace(
            self,
            samples_per_s=middle,
            steps_per_s=self.steps_per_s * middle / self.samples_per_s,
            error=max(self.error, between),
            wall_s=wall_s,
            rates=rates,
        )

    def bounds(self) -> tuple[float, float]:
        """The least and the most samples per second that it is likely to reach: two standard errors either way."""
        return self.samples_per_s * max(0.0, 1 - 2 * self.error), self.samples_per_s * (1 + 2 * self.error)


def words_of(script: Sequence[str], point: Point) -> list[str]:
    """Return the script's command with a point's values in the places of {batch_size} and the like."""
    values = {
        "batch_size": point.batch_size,
        "global_batch_size": point.global_batch,
        "workers": point.workers,
        "ranks": point.ranks,
    }

    def put(match: re.Match[str]) -> str:
        value = values[match[1]]
        return match[0] if value is None else str(value)

    return [_WORDS.sub(put, word) for word in script]


def open_places(script: Sequence[str], point: Point) -> list[str]:
    """Return the {places} in a command for which a point has no value."""
    return [match[0] for word in words_of(script, point) for match in _WORDS.finditer(word)]


def run_command(job: Job, point: Point) -> list[str]:
    """Return the `accdp run` command line of a point, without the name of the program."""
    how = ["--ranks-per-gpu", str(point.ranks_per_gpu)] if point.ranks_per_gpu else ["-n", str(point.ranks)]
    return ["run", *how, *job.run_options, "--", *words_of(job.script, point)]


def environment(point: Point) -> dict[str, str]:
    """Return the variables that a trial of a point has besides this process's own."""
    chosen = steps.environment(point.batch_size, point.global_batch, point.workers)
    return chosen if point.codec is None else chosen | {"ACCDP_CODEC": point.codec}


def run(
    job: Job,
    point: Point,
    goes_on: Callable[[int, Outcome], bool],
    watch: Callable[[str], None] = lambda text: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Try a point.

    Args:
        job, point: What to run.
        goes_on: Called with a level (index into the plan's budgets) and the outcome so far whenever a level is
            reached; False stops the trial there.
        watch: Called with a few words when something changes.
        is_interrupted: Asked ten times a second; True ends the trial.
    Returns:
        The outcome; its status is never "skipped" or "other batch".
    Raises:
        KeyboardInterrupt: is_interrupted() said so; the ranks have been ended.
        SystemCallError: The ranks could not be ended.
    """
    began = time.monotonic()
    name = "-".join(f"{key}{value}" for key, value in _names(point).items() if value is not None)
    with tempfile.TemporaryDirectory(prefix="accdp-tune-") as folder:
        output = job.folder / f"{name}.log"
        trial = _Trial(job, point, Path(folder), output, Sampler())
        try:
            outcome = trial.follow(goes_on, watch, is_interrupted)
        finally:
            trial.end()
        outcome.wall_s = time.monotonic() - began
    return outcome


def _names(point: Point) -> dict[str, object]:
    return {"r": point.density, "b": point.batch_size, "w": point.workers, "c-": point.codec}


class _Trial:
    def __init__(self, job: Job, point: Point, folder: Path, output: Path, sampler: Sampler) -> None:
        self.job, self.point, self.folder, self.output, self.sampler = job, point, folder, output, sampler
        self.meter = Meter(job.plan)
        self.best: Outcome | None = None  # of what was measured so far
        output.parent.mkdir(parents=True, exist_ok=True)
        command = own_programs.accdp(*run_command(job, point))
        variables = os.environ | environment(point) | {"ACCDP_STEP_LOG": str(folder), PARENT_VARIABLE: str(os.getpid())}
        # Behind what earlier trials of the point said, which begins with the command.
        with output.open("a", encoding="utf-8", errors="surrogateescape") as out:
            out.write(f"$ {shlex.join(['accdp', *run_command(job, point)])}\n")
            out.flush()
            self.output_begins = out.tell()
            # A session of its own: Ctrl-C reaches the tuner alone, which then ends the ranks as it always does.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )

    def follow(
        self, goes_on: Callable[[int, Outcome], bool], watch: Callable[[str], None], is_interrupted: Callable[[], bool]
    ) -> Outcome:
        began = time.monotonic()
        watch("starting")
        while True:
            try:
                self.process.wait(_LOOK_S)
                return self._ended()
            except subprocess.TimeoutExpired:
                if is_interrupted():
                    raise KeyboardInterrupt from None
            logs = events.read(self.folder)
            outcome = self._measured(logs, goes_on, watch) or self._overdue(logs, time.monotonic() - began)
            if outcome is not None:
                return outcome

    def _measured(
        self, logs: Sequence[events.Log], goes_on: Callable[[int, Outcome], bool], watch: Callable[[str], None]
    ) -> Outcome | None:
        """Take in what was logged; return the outcome where that is known as well as it has to be."""
        was_warm = self.meter.is_warm
        reached = self.meter.look(logs)
        if not self.meter.is_warm:
            self.best = None  # of what were no steps
        elif not was_warm:
            self.sampler.begin()
            watch("measuring")
        if not reached:
            return None
        level, rate = reached
        self.best = best = self._outcome(rate)
        watch(f"{best.samples_per_s or best.steps_per_s:.4g} {'samples' if best.samples_per_s else 'steps'}/s")
        is_last = level + 1 == len(self.job.plan.budgets_s)
        if best.status == "failed" or is_last or (level > 0 and rate.error < self.job.plan.steady):
            return best
        if goes_on(level, best):
            return None
        best.status = "stopped"
        return best

    def _overdue(self, logs: Sequence[events.Log], passed_s: float) -> Outcome | None:
        """Return what becomes of a script that has taken too long to a step, or in all; None of one that has not."""
        job = self.job
        if passed_s > job.start_s and not logs:
            if _ELSEWHERE in self._said():
                return self._failed(f"no rank ran on this host, whose steps are what is seen {self._all_of_it}")
            what = f"no rank formed a group of the backend accdp within {job.start_s:g} s"
        elif passed_s > job.start_s and not self.meter.has_begun:
            what = f"no more than {job.plan.warm_up_steps} steps within {job.start_s:g} s; see accdp_comm.step()"
        elif self.meter.has_begun and (silent := events.silence(logs)) > job.start_s:
            what = f"logged nothing for {silent:.0f} s: does the script hang, or was its training over?"
        elif passed_s > job.limit_s:
            if self.best:
                return self.best
            what = f"not measured within {job.limit_s:g} s"
        else:
            return None
        return self._failed(f"{what} {self._all_of_it}")

    def end(self) -> None:
        """End the ranks by their launcher, which knows the safe order; by force only where there is no GPU to harm."""
        self.sampler.end()
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.job.end_s)
        except subprocess.TimeoutExpired:
            if self.point.ranks_per_gpu:
                raise _core.SystemCallError(
                    f"accdp run (pid {self.process.pid}) did not end within {self.job.end_s:g} s after SIGTERM; ranks "
                    "on a GPU are not killed, because that may hang the GPU: see what they do, and end them"
                ) from None
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _ended(self) -> Outcome:
        said = self._said()
        if self.process.returncode == 0:
            rate = self.meter.last(events.read(self.folder))
            if rate:
                return self._outcome(rate)
            # Too short for a rate: nothing else went wrong.
            return self.best or self._failed(
                f"ended before {self.job.plan.warm_up_steps + self.job.plan.least_steps} steps were seen: let the "
                "script take more, or call accdp_comm.step()"
            )
        error = last_error.find(said, self._is_labelled())
        if _EXHAUSTED.search(error):
            return Outcome(self.point, "out of memory", reason=_last_words(error, _EXHAUSTED))
        words = _last_words(said.decode(errors="replace"))
        return self._failed(f"exit status {self.process.returncode}: {words} {self._all_of_it}")

    def _said(self) -> bytes:
        return self.output.read_bytes()[self.output_begins :]

    @property
    def _all_of_it(self) -> str:
        return f"(all that it said: {self.output})"

    def _is_labelled(self) -> bool:
        """Whether `accdp run` writes the rank before each line of standard error."""
        words = " ".join(self.job.run_options).replace("--label=", "--label ").split()
        given = words[words.index("--label") + 1] if "--label" in words[:-1] else "auto"
        return given == "always" or (given == "auto" and self.point.ranks > 1)

    def _outcome(self, rate: Rate) -> Outcome:
        if rate.ranks > self.point.ranks:  # fewer are a group of some of them
            return self._failed(f"ran on {rate.ranks} ranks, not on {self.point.ranks}")
        batch = rate.global_batch if rate.global_batch is not None else self.point.global_batch
        outcome = Outcome(
            self.point,
            "ok",
            samples_per_s=rate.steps_per_s * (batch or 0),
            steps_per_s=rate.steps_per_s,
            global_batch=batch,
            error=rate.error,
            measured_s=rate.seconds,
            seen_by=rate.seen_by,
            load=self.sampler.means(),
        )
        expected = self.point.global_batch
        if expected and rate.global_batch and abs(rate.global_batch - expected) > 0.05 * expected:
            outcome.status = "failed"
            outcome.reason = (
                f"worked off batches of {rate.global_batch:g}, not of {expected}: put {{batch_size}} or "
                "{global_batch_size} into the command, or read accdp_comm.tuned() in the script; "
                "accdp_comm.step(samples=...) counts those of its rank"
            )
        return outcome

    def _failed(self, reason: str) -> Outcome:
        return Outcome(self.point, "failed", reason=reason)


def _last_words(text: str, pattern: re.Pattern[str] | None = None) -> str:
    """Return the last line that says something, or the first that matches."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" =|")]
    if pattern:
        lines = [line for line in lines if pattern.search(line)][:1]
    else:
        lines = [line for line in lines if re.search(r"\w*(Error|Exception)\b.*:|^[\w.]+: ", line)] or lines
    return lines[-1][:300] if lines else "no output"
