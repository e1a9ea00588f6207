"""From the logs of a running trial to its speed: warm-up, windows, spread, and when it has run long enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .events import SIGNS, Log, Steps, find_steps

_FEW_STEPS = 3  # enough to see that a point is bad
_PARTS = 5  # of a window, whose rates tell how steady it is


@dataclass(frozen=True)
class Plan:
    """How long a trial is measured."""

    budgets_s: tuple[float, ...] = (1.0, 3.0, 9.0)  # after warm-up; at each but the last a bad point is stopped
    warm_up_s: float = 1.0  # and at least
    unsaid_warm_up_s: float = 10.0  # where collectives alone show steps, as those of weights that are sent before
    warm_up_steps: int = 5  # DDP regroups its buckets after the first, allocators and loaders fill
    least_steps: int = 10  # in the last window, whatever its length
    steady: float = 0.01  # standard error of the rate at which a point is known well enough


@dataclass(frozen=True)
class Rate:
    """What a window showed; of all ranks together."""

    steps_per_s: float
    global_batch: float | None  # samples of a step, where the script said so by step(samples=...)
    error: float  # relative standard error of steps_per_s
    steps: int
    seconds: float
    seen_by: str
    ranks: int  # of the world that logged it


class Meter:
    """Follows one trial: feed it the logs as they grow.

    Args:
        plan: How long to measure.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._sign = SIGNS[0]
        self._seen = 0
        self._first_s: float | None = None  # when the first step ended, which a long log does not hold any more
        self._warm_since: float | None = None
        self._level = 0

    def look(self, logs: Sequence[Log]) -> tuple[int, Rate] | None:
        """Return the next level (index into budgets_s) that the trial has reached, and its rate there; else None.

        It begins anew where there is a better sign of steps than before: what seemed to be some was before training.
        """
        steps = self._steps(logs)
        if steps is None or self._level >= len(self.plan.budgets_s) or not self._warm(steps):
            return None
        assert self._warm_since is not None
        # With many events a second the log's oldest are gone: then the part of the window that is there counts.
        inside = steps.seconds >= self._warm_since
        passed = steps.seconds[-1] - self._warm_since
        reached = sum(passed >= budget for budget in self.plan.budgets_s)
        if reached == len(self.plan.budgets_s) and inside.sum() <= self.plan.least_steps:
            reached -= 1  # a slow point may be seen to be one before it is measured well
        if reached <= self._level or inside.sum() <= _FEW_STEPS:
            return None
        self._level = reached
        return reached - 1, _rate(steps, inside, logs)

    def last(self, logs: Sequence[Log]) -> Rate | None:
        """Return the rate of a trial that ended by itself before it was measured to the end, None if it was too short.

        A fifth of its steps is taken for the warm-up where it had not passed yet.
        """
        steps = self._steps(logs)
        if steps is None:
            return None
        since = self._warm_since if self._warm_since is not None else np.inf
        first = max(self.plan.warm_up_steps, len(steps.seconds) // 5)
        if first < len(steps.seconds):
            since = min(since, steps.seconds[first])
        inside = steps.seconds >= since
        return _rate(steps, inside, logs) if inside.sum() > self.plan.least_steps else None

    @property
    def is_warm(self) -> bool:
        return self._warm_since is not None

    @property
    def has_begun(self) -> bool:
        """Whether there were as many steps as warm-up takes, by whatever sign."""
        return self._seen > self.plan.warm_up_steps

    def _steps(self, logs: Sequence[Log]) -> Steps | None:
        steps = find_steps(logs[0].events) if logs else None
        if steps is None or len(steps.seconds) == 0:
            return None
        # The last of a better sign may be lost where a long evaluation has filled the log.
        if SIGNS.index(steps.seen_by) < SIGNS.index(self._sign):
            return None
        if steps.seen_by != self._sign:
            self._sign, self._first_s, self._warm_since, self._level = steps.seen_by, None, None, 0
        self._seen = max(self._seen, len(steps.seconds))
        if self._first_s is None:
            self._first_s = float(steps.seconds[0])
        return steps

    def _warm(self, steps: Steps) -> bool:
        seconds = steps.seconds
        if self._warm_since is None and len(seconds) > self.plan.warm_up_steps:
            least_s = self.plan.unsaid_warm_up_s if steps.seen_by == SIGNS[0] else self.plan.warm_up_s
            assert self._first_s is not None
            after = seconds[self.plan.warm_up_steps :]
            warm = after[after >= self._first_s + least_s]
            if len(warm):
                self._warm_since = float(warm[0])
        return self._warm_since is not None


def _rate(steps: Steps, inside: np.ndarray, logs: Sequence[Log]) -> Rate:
    times = steps.seconds[inside]
    count, seconds = len(times) - 1, times[-1] - times[0]
    # Parts of equal time, not of equal steps: what stalls a loop now and then is in all of them. A step is divided
    # where a part ends within it; whole ones would differ by one among parts, which is much where steps are long.
    parts = np.diff(np.interp(np.linspace(times[0], times[-1], _PARTS + 1), times, np.arange(len(times))))
    error = parts.std(ddof=1) / np.sqrt(_PARTS) / parts.mean()
    batch = None
    if steps.samples is not None:
        # Ranks of other hosts keep their logs there; they are taken to be like those that are seen.
        of_ranks = [_samples_per_step(one) for one in logs]
        batch = float(np.mean([value for value in of_ranks if value is not None])) * logs[0].size
    return Rate(count / seconds, batch, float(error), count, float(seconds), steps.seen_by, logs[0].size)


def _samples_per_step(one: Log) -> float | None:
    steps = find_steps(one.events)
    return None if steps.samples is None else float(steps.samples.mean())
