"""How trials talk to the script: words of its command, variables, and `tuned()`."""

import pytest

from accdp_comm import UsageError, step, steps, tuned
from accdp_comm.tune.space import Point
from accdp_comm.tune.trial import environment, open_places, words_of

POINT = Point(4, 2, 16, 1, "auto")


def test_places_are_filled():
    script = ["train.py", "--batch={batch_size}", "{global_batch_size}", "--workers", "{workers}", "x{ranks}"]
    assert words_of(script, POINT) == ["train.py", "--batch=16", "64", "--workers", "1", "x4"]
    assert open_places(script, POINT) == []
    assert open_places(script, Point(4)) == ["{batch_size}", "{global_batch_size}", "{workers}"]


def test_other_braces_stay():
    script = ["train.py", '{"a": {batch_size}}', "{}", "{lr}"]
    assert words_of(script, POINT) == ["train.py", '{"a": 16}', "{}", "{lr}"]


def test_tuned_reads_what_a_trial_sets(monkeypatch):
    for name, value in environment(POINT).items():
        monkeypatch.setenv(name, value)
    assert (tuned("batch_size", 1), tuned("global_batch_size", 1), tuned("workers", 0)) == (16, 64, 1)
    assert tuned("workers", "0") == "1"


def test_a_profile_states_the_batch_of_a_rank(monkeypatch):
    monkeypatch.setenv("ACCDP_TUNED_BATCH_SIZE", "16")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert tuned("global_batch_size", 1) == 16
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert tuned("global_batch_size", 1) == 48


def test_a_point_without_values_sets_nothing(monkeypatch):
    assert environment(Point(4)) == {}
    assert tuned("batch_size", 32) == 32


def test_wrong_use_of_tuned_and_step(monkeypatch):
    with pytest.raises(UsageError, match="name='batch', expected batch_size"):
        tuned("batch", 1)
    monkeypatch.setenv("ACCDP_TUNED_WORKERS", "many")
    with pytest.raises(UsageError, match="ACCDP_TUNED_WORKERS=many: expected a value like 2"):
        tuned("workers", 2)
    with pytest.raises(UsageError, match="samples=-1"):
        step(samples=-1)


def test_step_outside_of_a_trial_does_nothing(monkeypatch):
    monkeypatch.setattr(steps._core, "log_event", lambda *event: pytest.fail(f"{event} was logged"))
    step(samples=8)
