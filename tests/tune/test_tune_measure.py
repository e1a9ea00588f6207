"""From logs to rates: warm-up is left out, levels come in order, and short runs are measured as far as they go."""

import numpy as np
import pytest
from made_up_logs import log, log_of, word

from accdp_comm import steps
from accdp_comm.tune.measure import Meter, Plan

PLAN = Plan(budgets_s=(1.0, 3.0), warm_up_s=1.0, warm_up_steps=5, least_steps=10)
STEP = [*word("ab"), steps.OPTIMIZER]


def loop(count: int, step_s: float = 0.03, **more) -> list:
    return [log(STEP * count, every_s=step_s / len(STEP), **more)]


def one_after_another(*logs):
    """What one rank logged, a hundredth of a second between them."""
    joined = logs[0].events.copy()
    for more in (one.events.copy() for one in logs[1:]):
        more["time_ns"] += int(joined["time_ns"][-1] - more["time_ns"][0] + 1e7)
        joined = np.concatenate([joined, more])
    return log_of(joined)


def test_nothing_before_the_warm_up_and_a_window():
    meter = Meter(PLAN)
    assert meter.look([]) is None and not meter.is_warm
    assert meter.look(loop(10)) is None and not meter.is_warm
    assert meter.look(loop(50)) is None and meter.is_warm  # 1.5 s: warm since 1 s
    assert meter.look(loop(60)) is None


def test_levels_come_once_and_in_order():
    meter = Meter(PLAN)
    level, rate = meter.look(loop(70))
    assert level == 0 and rate.steps_per_s == pytest.approx(1 / 0.03, rel=1e-6)
    assert (rate.seen_by, rate.global_batch) == ("optimizer", None)
    assert rate.error < 0.05
    assert meter.look(loop(72)) is None
    level, rate = meter.look(loop(140))
    assert level == 1 and rate.seconds > 3
    assert meter.look(loop(200)) is None


def test_a_late_look_takes_the_last_level_it_passed():
    assert Meter(PLAN).look(loop(500))[0] == 1


def test_slow_steps_get_the_steps_they_need():
    """At 2 s a step the window is longer than the budget: 5 steps of warm-up, a few for the first look, 10 in all."""
    meter = Meter(PLAN)
    assert meter.look(loop(8, step_s=2.0)) is None
    level, rate = meter.look(loop(9, step_s=2.0))
    assert (level, rate.steps) == (0, 3)
    assert meter.look(loop(15, step_s=2.0)) is None
    level, rate = meter.look(loop(16, step_s=2.0))
    assert (level, rate.steps) == (1, 10)


def test_long_steps_that_are_alike_are_seen_to_be():
    """Steps of 0.7 s, 13 in 9 s: whole steps per part would be two or three, and 9 % of error nothing but rounding."""
    plan = Plan(budgets_s=(9.0,), warm_up_s=1.0, warm_up_steps=5, least_steps=10)
    assert Meter(plan).look(loop(30, step_s=0.7))[1].error < 1e-6


def test_a_part_that_is_slower_is_error():
    """One of five parts has half the rate of the others: its steps say so, however long they are."""
    seconds = np.cumsum([0.0, *[0.5] * 17, *[1.0] * 2])
    made = log([steps.OPTIMIZER] * len(seconds)).events.copy()
    made["time_ns"] = (100 + seconds) * 1e9
    rates = np.array([2, 2, 2, 2, 1.0])
    plan = Plan(budgets_s=(9.0,), warm_up_s=0.5, warm_up_steps=1, least_steps=5)
    expected = rates.std(ddof=1) / np.sqrt(5) / rates.mean()
    assert Meter(plan).look([log_of(made)])[1].error == pytest.approx(expected, rel=1e-6)


def test_a_slow_start_is_no_part_of_the_rate():
    plan = Plan(budgets_s=(1.0,), warm_up_s=6.0)
    assert Meter(plan).look([one_after_another(log(STEP * 20, every_s=0.1), log(STEP * 300, every_s=0.01))])[
        1
    ].steps_per_s == pytest.approx(1 / 0.03, rel=0.02)


@pytest.mark.parametrize("sign", [steps.OPTIMIZER, steps.STEP])
def test_what_comes_before_the_first_step_is_none(sign):
    """Weights are sent layer by layer for 20 s; then a step takes 0.5 s."""
    plan = Plan(budgets_s=(1.0, 3.0))
    meter = Meter(plan)
    before = log(word("a") * 200, every_s=0.1)
    assert meter.look([log_of(before.events[:80])]) is None and not meter.is_warm and meter.has_begun
    assert meter.look([before])[0] == 1 and meter.is_warm
    training = log([*word("ab"), sign] * 20, every_s=0.5 / 3)
    few = log_of(training.events[:6])
    assert meter.look([one_after_another(before, few)]) is None and not meter.is_warm
    level, rate = meter.look([one_after_another(before, training)])
    assert (level, rate.seen_by) == (1, "optimizer" if sign == steps.OPTIMIZER else "step()")
    assert rate.steps_per_s == pytest.approx(2)
    assert Meter(plan).last([one_after_another(before, training)]).steps_per_s == pytest.approx(2)


def test_a_better_sign_is_kept():
    """An evaluation that fills the log is no training, whatever is left of that."""
    meter = Meter(PLAN)
    assert meter.look(loop(70))[0] == 0
    assert meter.look([log(word("v") * 5000)]) is None and meter.last([log(word("v") * 5000)]) is None


def test_collectives_alone_are_looked_at_for_longer():
    plan = Plan(budgets_s=(1.0,))
    assert Meter(plan).look([log(word("ab") * 500, every_s=0.01)]) is None
    level, rate = Meter(plan).look([log(word("ab") * 600, every_s=0.01)])
    assert (level, rate.seen_by) == (0, "collectives") and rate.steps_per_s == pytest.approx(50)


def test_where_no_period_is_left_nothing_is_measured():
    """As between set-up and training."""
    meter = Meter(Plan(budgets_s=(1.0,)))
    before = log(word("a") * 120, every_s=0.1)
    assert meter.look([log_of(before.events[:105])]) is None and meter.is_warm
    odd = np.random.default_rng(0).permutation(np.arange(1, 400))
    assert meter.look([one_after_another(before, log(odd, every_s=0.01))]) is None
    assert meter.last([one_after_another(before, log(odd, every_s=0.01))]) is None


def test_a_log_that_runs_over_is_warm_in_time():
    """8000 collectives a second: the log holds the last 8 s of them."""
    meter = Meter(Plan(budgets_s=(1.0,)))
    whole = log(word("ab") * (steps.CAPACITY // 2), every_s=1 / 8000).events
    levels = []
    for second in range(4):
        slid = whole.copy()
        slid["time_ns"] += second * 10**9
        levels.append(meter.look([log_of(slid)]))
    assert levels[:3] == [None] * 3 and levels[3][1].steps_per_s == pytest.approx(4000)


def test_samples_are_those_of_all_ranks():
    logs = [log([*word("a"), steps.STEP] * 300, samples=8 + rank, rank=rank, size=2) for rank in range(2)]
    assert Meter(PLAN).look(logs)[1].global_batch == 17
    # A rank on another host, whose log is not here, is taken to be like the others.
    assert Meter(PLAN).look(logs[:1])[1].global_batch == 16


def test_a_run_that_ended_early():
    assert Meter(PLAN).last([]) is None
    assert Meter(PLAN).last(loop(15)) is None
    rate = Meter(PLAN).last(loop(20, step_s=0.001))
    assert rate.steps == 14 and rate.steps_per_s == pytest.approx(1000, rel=1e-6)
    # More steps: a fifth is the warm-up.
    assert Meter(PLAN).last(loop(100, step_s=0.001)).steps == 79


def test_an_unsteady_rate_has_a_large_error():
    events = loop(500)[0].events.copy()
    times = events["time_ns"].astype(float)
    halt = times > 105e9
    times[halt] += 3e9  # one long pause
    events["time_ns"] = times
    assert Meter(PLAN).look([log_of(events)])[1].error > 0.1
