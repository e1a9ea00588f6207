"""Which points there are, and which need no trial."""

import pytest

from accdp_comm.tune.space import Batches, Point, needless, points, undivided

GLOBAL = Batches("global", (64, 96))
RANK = Batches("rank", (8, 16, 32))


def test_the_global_batch_is_kept():
    found = points([1, 2, 4], 0, GLOBAL)
    assert [(one.ranks, one.batch_size) for one in found] == [(1, 64), (2, 32), (4, 16), (1, 96), (2, 48), (4, 24)]
    assert {one.global_batch for one in found} == {64, 96}
    assert all(one.ranks_per_gpu is None for one in found)


def test_ranks_per_gpu_on_several_gpus():
    found = points([1, 4], 3, GLOBAL)
    assert [(one.ranks, one.ranks_per_gpu, one.batch_size) for one in found] == [(3, 1, 32), (12, 4, 8)]
    assert undivided([1, 4], 3, GLOBAL) == ["64 among 3 ranks", "64 among 12 ranks"]


def test_batches_of_each_rank_and_of_the_script():
    assert [(one.ranks, one.global_batch) for one in points([1, 2], 0, RANK)] == [
        (1, 8), (2, 16), (1, 16), (2, 32), (1, 32), (2, 64),
    ]  # fmt: skip
    assert points([1, 2], 0, Batches()) == [Point(1), Point(2)]
    assert undivided([3], 0, RANK) == []


def test_all_axes():
    found = points([1, 2], 0, GLOBAL, workers=[0, 2], codecs=["none", "auto"])
    assert len(found) == len(set(found)) == 16


@pytest.mark.parametrize("batches", [GLOBAL, RANK, Batches()])
def test_what_it_means_is_said(batches):
    words = {"global": "stays 64, 96", "rank": "grows with the ranks", "script": "script's own"}
    assert words[batches.kind] in batches.says()


def test_past_the_peak():
    rates = {Point(1, batch_size=64): (99.0, 101.0), Point(2, batch_size=32): (79.0, 81.0)}
    assert "2 ranks was slower than 1" in needless(Point(4, batch_size=16), GLOBAL, rates, [])
    for not_by_much in ((94.0, 96.0), (60.0, 95.0)):
        rates[Point(2, batch_size=32)] = not_by_much
        assert needless(Point(4, batch_size=16), GLOBAL, rates, []) == ""


def test_a_peak_holds_for_its_own_line_only():
    rates = {Point(1, batch_size=64): (99.0, 101.0), Point(2, batch_size=32): (79.0, 81.0)}
    assert needless(Point(4, batch_size=24), GLOBAL, rates, []) == ""  # of the global batch 96
    assert needless(Point(4, batch_size=16, workers=1), GLOBAL, rates, []) == ""
    assert needless(Point(4, batch_size=16, codec="auto"), GLOBAL, rates, []) == ""


def test_workers_and_batches_are_axes_too():
    rates = {Point(2, workers=count): rate for count, rate in ((0, (99, 101)), (1, (49, 51)))}
    assert "workers" in needless(Point(2, workers=2), Batches(), rates, [])
    rates = {Point(2, batch_size=count): rate for count, rate in ((8, (99, 101)), (16, (49, 51)))}
    assert "samples" in needless(Point(2, batch_size=32), RANK, rates, [])


def test_memory():
    exhausted = [Point(2, batch_size=16)]
    assert "ran out of it" in needless(Point(2, batch_size=32), RANK, {}, exhausted)
    assert "ran out of it" in needless(Point(4, batch_size=16), RANK, {}, exhausted)
    assert needless(Point(1, batch_size=32), RANK, {}, exhausted) == ""
    assert needless(Point(4, batch_size=8), RANK, {}, exhausted) == ""
    many = [Point(2, batch_size=16, workers=8, codec="none")]  # of these each takes memory, too
    assert needless(Point(2, batch_size=16, workers=0, codec="none"), RANK, {}, many) == ""
    assert needless(Point(2, batch_size=16, workers=8, codec="fpk"), RANK, {}, many) == ""
    assert "ran out of it" in needless(Point(2, batch_size=16, workers=9, codec="none"), RANK, {}, many)
    assert needless(Point(4), Batches(), {}, [Point(2)]) == ""  # nobody knows what the script makes of it
