"""The search, over trials that are made up: levels, early stops, resumption, and what counts as best."""

from dataclasses import replace

import pytest

from accdp_comm import UsageError
from accdp_comm.tune.search import Search
from accdp_comm.tune.space import Batches, Point, points
from accdp_comm.tune.trial import Outcome

GLOBAL = Batches("global", (64,))


class Trials:
    """Trials with these speeds; remembers up to which level each was let go."""

    def __init__(self, speeds, levels=3):
        self.speeds, self.levels, self.reached = speeds, levels, {}

    def __call__(self, point, goes_on):
        speed = self.speeds[point]
        if isinstance(speed, Outcome):
            self.reached[point] = 0
            return speed
        for level in range(self.levels):
            self.reached[point] = level
            outcome = Outcome(point, "ok", samples_per_s=speed, steps_per_s=speed / 64, global_batch=64)
            if level + 1 < self.levels and not goes_on(level, outcome):
                outcome.status = "stopped"
                break
        return outcome


def speeds_of(*values, batches=GLOBAL):
    all_points = points([1, 2, 4, 8, 16][: len(values)], 0, batches)
    return dict(zip(all_points, values, strict=True))


def test_bad_points_are_stopped_at_the_first_level():
    speeds = speeds_of(100, 200, 190, 150)
    trials = Trials(speeds)
    best = Search([*speeds], GLOBAL).run(trials)
    assert best is not None and (best.point.ranks, best.samples_per_s) == (2, 200)
    assert [trials.reached[point] for point in speeds] == [2, 1, 1, 0]  # 190 is within 5 %; both then met again
    assert best.status == "ok"


def drifting(*rates_of_points):
    """Trials whose rates differ from one to the next; remembers who was tried."""
    line = points([1, 2, 4, 8][: len(rates_of_points)], 0, GLOBAL)
    left, tried = dict(zip(line, map(list, rates_of_points), strict=True)), []

    def trial(point, goes_on):
        tried.append(point.ranks)
        outcome = left[point].pop(0)
        return outcome if isinstance(outcome, Outcome) else Outcome(point, "ok", outcome, outcome / 64, 64)

    return line, trial, tried


def test_close_points_meet_again_in_turns():
    """1 rank had the better first trial, 2 ranks are faster; 4 are too far away to matter."""
    line, trial, tried = drifting((247, 210, 236), (236, 250, 245), (200,))
    search, told = Search(line, GLOBAL), []
    best = search.run(trial, after=told.append)
    assert tried == [1, 2, 4, 2, 1, 1, 2]
    assert best is not None and best.point.ranks == 2 and best.rates == [236, 250, 245]
    assert (best.samples_per_s, best.steps_per_s) == (245, pytest.approx(245 / 64))
    assert [one.point.ranks for one in told] == tried
    assert search.outcomes[0].error > 0.02  # what differs between trials, which no trial shows


def test_a_search_cut_short_between_the_last_trials_goes_on_there():
    line, trial, tried = drifting((247, 210, 236), (236, 250, 245))
    told = []
    Search(line, GLOBAL).run(trial, after=told.append)
    for done in range(2, 7):
        past = [one.point.ranks for one in told[:done]]
        _, later, again = drifting((247, 210, 236)[past.count(1) :], (236, 250, 245)[past.count(2) :])
        best = Search(line, GLOBAL).run(later, told[:done])
        assert again == tried[done:] and best is not None and best.rates == [236, 250, 245]


def test_a_point_that_fails_when_it_is_tried_again_is_not_best():
    line = points([1, 2], 0, GLOBAL)
    _, trial, _ = drifting((247, Outcome(line[0], "failed", reason="a rank ended")), (236, 240, 242))
    search = Search(line, GLOBAL)
    best = search.run(trial)
    assert best is not None and best.point == line[1]
    assert (search.outcomes[0].status, search.outcomes[0].reason) == ("failed", "a rank ended")


def test_what_is_not_known_well_is_not_stopped():
    """At the first levels the error of the rate is large."""
    line = points([1, 2], 0, GLOBAL)

    def trial(point, goes_on):
        for level, error in enumerate((0.3, 0.01)):
            rate = 200 if point.ranks == 1 else 150
            outcome = Outcome(point, "ok", samples_per_s=rate, steps_per_s=1, global_batch=64, error=error)
            if not goes_on(level, outcome):
                return Outcome(point, "stopped", samples_per_s=rate, steps_per_s=1, reason=f"at level {level}")
        return outcome

    search = Search(line, GLOBAL)
    search.run(trial)
    assert [one.reason for one in search.outcomes] == ["", "at level 1"]


def test_points_past_the_peak_are_not_started():
    speeds = speeds_of(100, 200, 150, 10)
    trials = Trials(speeds)
    search = Search([*speeds], GLOBAL)
    search.run(trials)
    assert len(trials.reached) == 3
    assert [one.status for one in search.outcomes] == ["ok", "ok", "stopped", "skipped"]


def test_exhaustive_tries_all_to_the_end():
    speeds = speeds_of(200, 100, 50, 300)
    trials = Trials(speeds)
    best = Search([*speeds], GLOBAL, exhaustive=True).run(trials)
    assert [*trials.reached.values()] == [2] * 4
    assert best is not None and best.point.ranks == 8


def test_memory_ends_a_line():
    batches = Batches("rank", (8, 16, 32))
    line = [Point(1, batch_size=size) for size in (8, 16, 32)]
    trials = Trials({line[0]: 100, line[1]: Outcome(line[1], "out of memory"), line[2]: 500})
    search = Search(line, batches)
    best = search.run(trials)
    assert best is not None and best.point == line[0]
    assert [one.status for one in search.outcomes] == ["ok", "out of memory", "skipped"]


def test_an_earlier_run_is_continued():
    speeds = speeds_of(100, 120, 130)
    done = [*speeds]
    before = [
        Outcome(done[0], "ok", samples_per_s=100, steps_per_s=1),
        Outcome(done[1], "failed", reason="the disk was full"),
    ]
    trials, told = Trials(speeds), []
    best = Search(done, GLOBAL).run(trials, before, told.append)
    assert [*trials.reached] == done[1:]  # the failed one again
    assert [one.point.ranks for one in told] == [2, 4, 2, 4, 4, 2]  # those two, and then in turns, being close
    assert best is not None and best.point == done[2]


def test_bad_points_are_stopped_in_a_continued_search_too():
    speeds = speeds_of(200, 100)
    line = [*speeds]
    trials = Trials(speeds)
    Search(line, GLOBAL).run(trials, [Outcome(line[0], "ok", samples_per_s=200, steps_per_s=1)])
    assert trials.reached == {line[1]: 0}


def test_earlier_outcomes_of_other_points_stop_nothing():
    asked, other = (
        speeds_of(*rates, batches=Batches("global", (size,))) for size, rates in ((64, (100, 90)), (256, (900, 800)))
    )
    before = [Outcome(point, "ok", samples_per_s=speed, steps_per_s=1) for point, speed in other.items()]
    trials = Trials(asked)
    best = Search([*asked], Batches("global", (64,))).run(trials, before)
    assert best is not None and (best.point, best.samples_per_s) == (next(iter(asked)), 100)


def test_interruption_keeps_what_is_known():
    speeds = speeds_of(100, 120, 130)

    def trial(point, goes_on):
        if point.ranks == 4:
            raise KeyboardInterrupt
        return Trials(speeds)(point, goes_on)

    search = Search([*speeds], GLOBAL)
    with pytest.raises(KeyboardInterrupt):
        search.run(trial)
    assert search.best().point.ranks == 2 and len(search.outcomes) == 2


def of_script(ranks, batch):
    return Outcome(Point(ranks), "ok", samples_per_s=100 * batch, steps_per_s=100, global_batch=batch)


def test_a_script_with_another_global_batch_does_not_count():
    line = [Point(1), Point(2)]

    def trials():
        return Trials({line[0]: of_script(1, 32), line[1]: of_script(2, 64)})

    search = Search(line, Batches())
    assert search.run(trials()).point == line[0]
    assert search.outcomes[1].status == "other batch" and "64 instead of 32" in search.outcomes[1].reason
    assert Search(line, Batches(), any_global_batch=True).run(trials()).point == line[1]


def test_what_does_not_count_stops_nothing():
    line = [Point(1, workers=0), Point(2, workers=0), Point(1, workers=2)]
    rates, batches = (100, 200, 140), (8, 16, 8)

    def trial(point, goes_on):
        place = line.index(point)
        outcome = Outcome(point, "ok", samples_per_s=rates[place], steps_per_s=10, global_batch=batches[place])
        return outcome if goes_on(0, outcome) else replace(outcome, status="stopped")

    search = Search(line, Batches())
    assert search.run(trial).point == line[2]
    assert [one.status for one in search.outcomes] == ["ok", "other batch", "ok"]


def test_a_trial_that_fails_in_the_end_stops_nothing():
    line = points([1, 2], 0, GLOBAL)

    def trial(point, goes_on):
        rate = 200 if point.ranks == 1 else 100
        outcome = Outcome(point, "ok", samples_per_s=rate, steps_per_s=1, global_batch=64)
        if not goes_on(0, outcome):
            return replace(outcome, status="stopped")
        return outcome if point.ranks == 2 else Outcome(point, "out of memory")

    best = Search(line, GLOBAL).run(trial)
    assert best is not None and best.point == line[1]


def test_whether_another_global_batch_counts_may_change_from_run_to_run():
    line, searches = [Point(1), Point(2)], []
    for any_batch in (False, True, False):
        trials = Trials({line[0]: of_script(1, 32), line[1]: of_script(2, 64)})
        before = searches[-1].outcomes if searches else ()
        searches.append(Search(line, Batches(), any_global_batch=any_batch))
        best = searches[-1].run(trials, before)
        assert best is not None and best.point == line[any_batch], any_batch
    assert [one.outcomes[1].status for one in searches] == ["other batch", "ok", "other batch"]


def test_an_earlier_outcome_has_the_batch_of_what_is_asked_now():
    """Which point comes first, and so says what all have, may be another one."""
    before = [of_script(2, 64)]
    search = Search([Point(1), Point(2)], Batches())
    search.run(Trials({Point(1): of_script(1, 32)}), before)
    assert [one.status for one in search.outcomes] == ["ok", "other batch"] and before[0].status == "ok"


@pytest.mark.parametrize(("batch", "status"), [(104, "ok"), (106, "other batch")])
def test_a_short_last_batch_makes_no_other_global_batch(batch, status):
    """What is seen is a mean over the steps of a trial."""
    line = [Point(1), Point(2)]
    search = Search(line, Batches())
    search.run(Trials({line[0]: of_script(1, 100), line[1]: of_script(2, batch)}))
    assert search.outcomes[1].status == status


def test_who_did_not_meet_again_does_not_win_by_the_time_of_day():
    """The machine slows down after the first trials, and the slowest of four close points has no other trial."""
    line, trial, _ = drifting([100, 94, 94], [99, 93, 93], [98, 92, 92], [97])
    best = Search(line, GLOBAL).run(trial)
    assert best is not None and (best.point, best.samples_per_s) == (line[0], 94)


def test_while_not_all_have_met_again_first_trials_count():
    """Ctrl-C in between: who has not met yet has a rate of a faster time."""
    line, trial, tried = drifting([100], [101, 90, 90], [98, 89, 89])

    def interrupted(point, goes_on):
        if tried.count(line[0].ranks) and point == line[0]:
            raise KeyboardInterrupt
        return trial(point, goes_on)

    search = Search(line, GLOBAL)
    with pytest.raises(KeyboardInterrupt):
        search.run(interrupted)
    assert [len(one.rates) for one in search.outcomes] == [0, 0, 2]
    best = search.best()
    assert best is not None and best.point == line[1]


def test_where_no_one_that_met_again_is_left_another_is_best():
    failed = Outcome(Point(1), "failed", reason="no")
    line, trial, _ = drifting([100, failed, failed], [99, failed, failed], [98, failed, failed], [97])
    best = Search(line, GLOBAL).run(trial)
    assert best is not None and best.point == line[3]


def test_which_batch_is_another_one_is_not_kept():
    """The next search may have another first point, by which it is told."""
    line = [Point(1), Point(2)]
    first = Search(line, Batches())
    first.run(Trials({line[0]: of_script(1, 100), line[1]: of_script(2, 200)}))
    assert [one.status for one in first.outcomes] == ["ok", "other batch"]
    best = Search(line[1:], Batches()).run(Trials({line[1]: of_script(2, 200)}), first.outcomes)
    assert best is not None and best.point == line[1]
    again, trials = Search(line, Batches()), Trials({})
    again.run(trials, first.outcomes)
    assert not trials.reached and [one.status for one in again.outcomes] == ["ok", "other batch"]


def test_steps_without_samples_are_refused():
    outcome = Outcome(Point(1), "ok", steps_per_s=7, seen_by="optimizer")
    with pytest.raises(
        UsageError, match=r"7 steps/s, seen by optimizer, but nothing tells how many samples.*--global-batch"
    ):
        Search([Point(1)], Batches()).run(lambda point, goes_on: outcome)


def test_nothing_worked():
    search = Search([Point(1)], Batches())
    assert search.run(lambda point, goes_on: Outcome(point, "failed", reason="no")) is None


def test_where_the_first_workers_never_work_others_are_tried():
    line = points([1, 2], 0, Batches(), workers=[0, 1, 2])
    failed = {point: Outcome(point, "failed", reason="needs workers") for point in line if point.workers == 0}
    trials = Trials({point: 100.0 * point.ranks + point.workers for point in line} | failed)
    best = Search(line, Batches(), any_global_batch=True).run(trials)
    assert best is not None and best.point == Point(2, workers=2)


def test_workers_are_varied_at_the_best_point():
    """And once other workers are better, what is next to them."""
    batches = Batches()
    line = points([1, 2, 4], 0, batches, workers=[0, 1, 2])
    speeds = {point: 100.0 * point.ranks + 30 * (point.workers == 1) for point in line}
    speeds[Point(2, workers=1)] = 900.0
    trials = Trials(speeds)
    search = Search(line, batches, any_global_batch=True)
    best = search.run(trials)
    tried = [(point.ranks, point.workers) for point in trials.reached]
    assert tried == [(1, 0), (2, 0), (4, 0), (4, 1), (1, 1), (2, 1), (2, 2)]
    assert best is not None and best.point == Point(2, workers=1)
    assert len(search.outcomes) == len(line) and {one.status for one in search.outcomes} == {"ok", "stopped", "skipped"}


def test_workers_that_are_worse_at_the_best_point_are_not_tried_elsewhere():
    line = points([1, 2, 4], 0, Batches(), workers=[0, 1, 2])
    trials = Trials({point: 100.0 * point.ranks / (1 + point.workers) for point in line})
    best = Search(line, Batches(), any_global_batch=True).run(trials)
    assert [(point.ranks, point.workers) for point in trials.reached] == [(1, 0), (2, 0), (4, 0), (4, 1)]
    assert best is not None and best.point == Point(4, workers=0)


def test_what_seemed_to_be_steps_stops_nobody():
    """The first point's trial began anew: at first its set-up was taken for training, and was fast."""
    line = points([1, 2], 0, GLOBAL)
    went_on = []

    def trial(point, goes_on):
        if point.ranks == 1:
            for level in range(2):
                goes_on(level, Outcome(point, "ok", 9000, 9000 / 64, 64, seen_by="collectives"))
        found = Outcome(point, "ok", 100 * point.ranks, point.ranks, 64, seen_by="optimizer")
        # The first level that a few long steps reach may be the last.
        went_on.extend(goes_on(level, found) for level in range(0 if point.ranks == 1 else 2))
        return found

    best = Search(line, GLOBAL).run(trial)
    assert went_on[:2] == [True] * 2 and best.point.ranks == 2
