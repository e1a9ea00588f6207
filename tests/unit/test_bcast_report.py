"""What bench/bcast_report.py says: when auto is over the best fixed choice, and which codec reaches a mark."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
pytest.importorskip("rich")
pytest.importorskip("torch")

import auto_mark
import bcast_report


def row(method: str, median_s: float, **other):
    fixed = {"part": "grid", "placement": "2x1", "link_mbit": 1000, "data": "ids", "dtype": "int64", "bytes": 1 << 20}
    return fixed | {"method": method, "median_s": median_s, "codec": "none"} | other


def test_an_interval_misses_the_median_as_seldom_as_it_says():
    # A sample is below the median as often as above it; an interval misses it if too few samples are on one side.
    for count in range(1, 40):
        ranks = auto_mark.ranks_of_interval(count)
        if ranks is None:
            assert 2 * 0.5**count > 0.05
            continue
        low, high = ranks
        assert low + high == count - 1 and low < high

        def missed(fewest: int, count: int = count) -> float:
            return 2 * sum(math.comb(count, below) for below in range(fewest + 1)) / 2**count

        assert missed(low) <= 0.05 < missed(low + 1)


def auto_row(ratios: dict[str, list[float]]) -> dict:
    """auto, of which each sample took so many times that of a fixed choice in the same round."""
    times = {name: [1 / ratio for ratio in found] for name, found in ratios.items()}
    rounds = max(map(len, times.values()))
    found = auto_mark.ratios(times | {"auto": [1.0] * rounds})
    return row("auto", 1.0, over={name: ratio.to_json() for name, ratio in found.items()})


@pytest.mark.parametrize(
    ("ratios", "beyond", "over"),
    [
        ([1.04] * 9, False, False),
        ([1.06] * 9, True, True),
        ([1.06] * 5, True, False),  # five of a kind come by chance
        ([1.2] * 7 + [0.9] * 2, True, False),
        ([1.2] * 8 + [0.9], True, True),
        ([1.2] * 70 + [0.9] * 20, True, True),
    ],
)
def test_a_point_is_over_only_beyond_chance(ratios, beyond, over):
    rows = [row("none", 1.0), row("fpk", 1.2), auto_row({"none": ratios, "fpk": [0.8] * len(ratios)})]
    (point,) = bcast_report.auto_points(rows)["2x1, 1 Gbit/s"]
    assert point.best["method"] == "none" and (point.is_beyond, point.is_over) == (beyond, over)
    assert "none where none is best" in str(point)


def test_samples_are_compared_with_those_of_the_same_round():
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    ratio = auto_mark.ratios({"auto": [1.1 * one for one in drifting], "none": drifting})["none"]
    assert (ratio.rounds, ratio.low) == (6, pytest.approx(1.1))


def test_auto_is_settled_once_chance_cannot_put_it_beyond_any_fixed_choice():
    def settled(**ratios: list[float]) -> bool:
        times = {name: [1 / ratio for ratio in found] for name, found in ratios.items()}
        return auto_mark.is_settled(auto_mark.ratios(times | {"auto": [1.0] * 9}))

    assert settled(none=[1.04] * 9, fpk=[0.5] * 9)
    assert not settled(none=[1.04] * 9, fpk=[1.1] * 2 + [1.0] * 7)  # may be beyond
    assert not settled(none=[1.6] * 9)  # however far: of many points some are so by chance
    assert settled(none=[1.04] * 9, zstd=[2.0] * 3)  # left out long before


def test_auto_is_held_against_fixed_choices_only():
    assert auto_mark.auto_point({"none": row("none", 1.0), "auto": row("auto", 1.0)}) is None
    auto = auto_row({"MPI_Bcast": [2.0] * 9, "none": [0.5] * 9, "zstd": [0.9] * 9})
    point = auto_mark.auto_point({name: row(name, 1.0) for name in ("MPI_Bcast", "none", "zstd")} | {"auto": auto})
    assert point is not None and point.best["method"] == "zstd"


def figures(part: str, *rows: dict) -> dict[str, bcast_report.Figure]:
    placed = [{**row, "part": part, "placement": "4x1", "link_bytes_per_s": 120e6} for row in rows]
    return {figure.what: figure for figure in bcast_report.figures_of(placed)}


def test_reference_names_the_codec_that_reaches_the_ratio():
    def rows(ratio_of_zhuff: float) -> list[dict]:
        data = {"data": "after_6e-05", "dtype": "bfloat16"}
        return [
            row("MPI_Bcast", 1.0, ratio=1.0, **data),
            row("reference", 0.1, ratio=5.0, **data) | {"codec": "fpk"},
            row("reference fpk", 0.1, ratio=5.0, **data) | {"codec": "fpk"},
            row("reference zhuff", 0.2, ratio=ratio_of_zhuff, **data) | {"codec": "zhuff"},
        ]

    reached = figures("reference", *rows(13.0))["reference=: ratio, reached by codec=zhuff"]
    assert reached.reached and reached.value == "auto: fpk 5.00 in 100.0 ms; zhuff 13.00 in 200.0 ms"
    missed = figures("reference", *rows(7.0))["reference=: ratio"]
    assert missed.reached is False and missed.mark == ">= 8.0"


def test_the_mark_of_an_error_bound_is_for_the_fastest_codec():
    data = {"data": "gradients", "dtype": "bfloat16", "bytes": 64 << 20}
    found = figures(
        "figures",
        row("MPI_Bcast", 1.0, ratio=1.0, **data),
        row("qpk 0.01", 0.3, ratio=1.8, **data) | {"codec": "qpk"},
        row("qhuff 0.01", 0.18, ratio=2.5, **data) | {"codec": "qhuff"},
        row("p2p_compressed qhuff 0.01", 0.5, ratio=2.5, **data) | {"codec": "qhuff"},
    )
    best = found["relative(0.01) (qhuff, ratio 2.50): below MPI_Bcast"]
    assert best.reached and best.value == "82.0% (180 ms)"
    assert found["relative(0.01) (qpk, ratio 1.80): below MPI_Bcast"].reached is None
    assert found["relative(0.01) (qhuff, ratio 2.50): below p2p_compressed qhuff 0.01"].reached
