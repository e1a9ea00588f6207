"""The search: which points are tried, which trials are stopped early, and which point is best.

Every point starts a job, and starting is often the most expensive part of a short trial. So points are not started
again for a longer look, as successive halving in rounds would; its stopping variant is used: a trial is measured for
1, 3 and 9 s, and at each but the last it must be among the best third of those that got there, or not clearly slower
than the best: by more than `tolerance` and what the measurement does not know. Besides, points that cannot be better
are not started at all (space.needless), and workers and codecs are varied at the best point only (space.next_point).

At the end the points whose rates are close meet again, in turns: between two trials of one point, minutes apart, the
rate of a shared machine drifts by more than what a trial knows of its own error, and that must not choose the winner.
Source: stopping variant of ASHA, Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .. import _core
from .space import Batches, Point, needless, next_point
from .trial import Outcome

_KEPT = 3  # one in so many goes on at each level
_DRIFT = 0.15  # of the best rate: who is not further away meets it again
_FINALISTS = 3  # at most
_TURNS = 2  # trials that each of them has besides its first
_FINAL_LEVEL = 1  # up to which these are measured


@dataclass
class Search:
    """Tries points one after another.

    Args:
        points: In the order in which they are tried.
        batches: Whose batch sizes they have.
        tolerance: A trial goes on if it may be slower than the best at its level by no more than this share.
        exhaustive: Try every point, and measure each to the end: the baseline for what searching saves.
        any_global_batch: Points count whatever global batch the script makes of them.
    """

    points: Sequence[Point]
    batches: Batches
    tolerance: float = 0.05
    exhaustive: bool = False
    any_global_batch: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    _levels: dict[int, list[Outcome]] = field(default_factory=dict)
    _earlier: list[Outcome] = field(default_factory=list)
    _finalists: list[int] = field(default_factory=list)  # places of their outcomes

    def run(
        self,
        trial: Callable[[Point, Callable[[int, Outcome], bool]], Outcome],
        before: Iterable[Outcome] = (),
        after: Callable[[Outcome], None] = lambda outcome: None,
    ) -> Outcome | None:
        """Try all points that are worth it.

        Args:
            trial: trial.run() of the job, with its last argument bound or left away.
            before: Outcomes of an earlier run: their points are not tried again.
            after: Called with each new outcome; again with that of a point that has had another trial.
        Returns:
            best().
        Raises:
            UsageError: Nothing tells how many samples a step has.
        """
        again = ("skipped", "failed", *(["other batch"] if self.any_global_batch else []))
        known = {outcome.point: replace(outcome) for outcome in before if outcome.status not in again}
        # What was measured at points that nobody asks for now, as of another batch size, is no reason to stop these.
        asked = set(self.points)
        self._earlier = [one for one in known.values() if one.status == "ok" and one.point in asked]
        untried = list(self.points)
        while untried:
            point = self._next(untried)
            if point is None:
                for left in untried:
                    outcome = Outcome(left, "skipped", reason="not next to the best point")
                    self.outcomes.append(outcome)
                    after(outcome)
                break
            untried.remove(point)
            if point in known and self._still_holds(known[point]):
                self.outcomes.append(known[point])
                continue
            reason = "" if self.exhaustive else needless(point, self.batches, self.rates(), self._exhausted())
            outcome = Outcome(point, "skipped", reason=reason) if reason else trial(point, self._goes_on)
            self._check_samples(outcome)
            self._check_batch(outcome)
            self._forget(point, outcome.seen_by if outcome.status in ("ok", "stopped") else None)
            self.outcomes.append(outcome)
            after(outcome)
        if not self.exhaustive:
            self._play_off(trial, after)
        return self.best()

    def _play_off(
        self,
        trial: Callable[[Point, Callable[[int, Outcome], bool]], Outcome],
        after: Callable[[Outcome], None],
    ) -> None:
        # By their first trials, so that a search that was cut short in between goes on with the same.
        first = {place: one.first for place, one in enumerate(self.outcomes) if one.status == "ok"}
        near = [place for place, rate in first.items() if rate >= (1 - _DRIFT) * max(first.values())]
        places = self._finalists = sorted(near, key=lambda place: -first[place])[:_FINALISTS]
        for turn in range(_TURNS if len(places) > 1 else 0):
            for place in places if turn % 2 else reversed(places):  # what drifts one way favours nobody
                one = self.outcomes[place]
                if one.status == "ok" and len(one.rates) < turn + 2:  # else it failed, or an earlier run got so far
                    again = trial(one.point, lambda level, _: level < _FINAL_LEVEL)
                    self.outcomes[place] = one.with_another(again)
                    after(self.outcomes[place])

    def _next(self, untried: Sequence[Point]) -> Point | None:
        if self.exhaustive:
            return untried[0]
        best = self.best()
        return next_point(untried, best.point if best else None, self.points[0], self.batches)

    def rates(self) -> dict[Point, tuple[float, float]]:
        """The least and the most samples per second that each measured point is likely to reach."""
        return {one.point: one.bounds() for one in self.outcomes if one.status in ("ok", "stopped")}

    def best(self) -> Outcome | None:
        """The fastest point that was measured to the end; None if there is none.

        Of those that met again, where some did: the others' rates are of another time, when the machine may have been
        faster. While not all of them have, by their first trials.
        """
        good = [one for one in self.outcomes if one.status == "ok"]
        met = [self.outcomes[place] for place in self._finalists if self.outcomes[place].status == "ok"]
        have_met = all(one.rates for one in met)
        return max(met or good, key=lambda one: one.samples_per_s if have_met else one.first, default=None)

    def _exhausted(self) -> list[Point]:
        return [one.point for one in self.outcomes if one.status == "out of memory"]

    def _goes_on(self, level: int, outcome: Outcome) -> bool:
        self._forget(outcome.point, outcome.seen_by)
        seen = self._levels.setdefault(level, [*self._earlier])
        seen.append(replace(outcome))
        if self.exhaustive:
            return True
        place = sum(other.samples_per_s > outcome.samples_per_s for other in seen)
        best = max(other.bounds()[0] for other in seen)
        return place < max(1, len(seen) // _KEPT) or outcome.bounds()[1] >= (1 - self.tolerance) * best

    def _forget(self, point: Point, seen_by: str | None) -> None:
        """Let what was seen of a point while its trial ran, before it was known not to count, stop no other.

        Where it counts that is what was seen by another sign of steps, before the trial began anew.
        """
        for seen in self._levels.values():
            seen[:] = [one for one in seen if one.point != point or (seen_by is not None and one.seen_by == seen_by)]

    def _check_samples(self, outcome: Outcome) -> None:
        if outcome.steps_per_s and not outcome.samples_per_s:
            raise _core.UsageError(
                f"{outcome.steps_per_s:.4g} steps/s, seen by {outcome.seen_by}, but nothing tells how many samples a "
                "step has: give --global-batch or --batch-size, or call accdp_comm.step(samples=...) in the script"
            )

    def _still_holds(self, known: Outcome) -> bool:
        """Judge what an earlier search found: which batch is another one depends on the point that comes first."""
        was_other = known.status == "other batch"
        if was_other:
            known.status = "stopped"  # at the latest
        self._check_batch(known)
        return known.status == "other batch" or not was_other

    def _check_batch(self, outcome: Outcome) -> None:
        """Points of a script that has its own batch size count only where all ranks together have the same one."""
        if self.batches.kind != "script" or self.any_global_batch or outcome.status not in ("ok", "stopped"):
            return
        first = next((one.global_batch for one in self.outcomes if one.status in ("ok", "stopped")), None)
        if first and outcome.global_batch and abs(outcome.global_batch - first) > 0.05 * first:
            outcome.status = "other batch"
            outcome.reason = f"a global batch of {outcome.global_batch:g} instead of {first:g}"
