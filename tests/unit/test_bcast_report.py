"""What bench/bcast_report.py says: when auto is over the best fixed choice, and which codec reaches a mark."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
pytest.importorskip("rich")
pytest.importorskip("torch")

import auto_mark
import bcast_report


def row(method: str, median_s: float, spread_s: float = 0.0, samples: int = 9, **other):
    fixed = {"part": "grid", "placement": "2x1", "link_mbit": 1000, "data": "ids", "dtype": "int64", "bytes": 1 << 20}
    times = {"median_s": median_s, "p10_s": median_s - spread_s / 2, "p90_s": median_s + spread_s / 2}
    return fixed | times | {"method": method, "samples": samples, "codec": "none"} | other


@pytest.mark.parametrize(
    ("auto_s", "spread_s", "beyond", "over"),
    [
        (1.04, 0.0, False, False),
        (1.06, 0.01, True, True),
        (1.06, 0.50, True, False),  # nine samples that lie this far apart have medians that do
        (1.60, 0.50, True, True),
    ],
)
def test_a_point_is_over_only_beyond_its_spread(auto_s, spread_s, beyond, over):
    rows = [row("none", 1.0, spread_s), row("fpk", 1.2), row("auto", auto_s, spread_s)]
    (point,) = bcast_report.auto_points(rows)["2x1, 1 Gbit/s"]
    assert point.best["method"] == "none" and (point.is_beyond, point.is_over) == (beyond, over)
    assert f"{auto_s:.2f}, none where none is best" in str(point)


def test_more_samples_have_a_steadier_median():
    few, many = row("auto", 1.06, 0.2, samples=4), row("auto", 1.06, 0.2, samples=400)
    assert auto_mark.median_error(few) == pytest.approx(10 * auto_mark.median_error(many))
    best = row("none", 1.0)
    assert not auto_mark.AutoPoint(few, best).is_over and auto_mark.AutoPoint(many, best).is_over


@pytest.mark.parametrize(
    ("auto_s", "spread_s", "settled"),
    [
        (1.04, 0.0, True),
        (1.04, 0.10, False),  # may be beyond
        (1.00, 0.10, True),
        (1.06, 0.10, False),  # may be within
        (1.60, 0.10, False),  # however far: of many points some are so by chance
    ],
)
def test_a_point_is_settled_once_chance_cannot_put_it_beyond(auto_s, spread_s, settled):
    point = auto_mark.auto_point({"fpk": row("fpk", 1.0, spread_s), "auto": row("auto", auto_s, spread_s)})
    assert point is not None and point.is_settled == settled


def test_auto_is_held_against_fixed_choices_only():
    rows = {name: row(name, seconds) for name, seconds in (("MPI_Bcast", 0.5), ("none", 2.0), ("zstd", 1.0))}
    assert auto_mark.auto_point(rows) is None
    point = auto_mark.auto_point(rows | {"auto": row("auto", 1.0)})
    assert point is not None and point.best["method"] == "zstd"
    assert auto_mark.auto_point({"MPI_Bcast": rows["MPI_Bcast"], "auto": row("auto", 1.0)}) is None


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
