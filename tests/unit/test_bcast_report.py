"""When bench/bcast_report.py says that auto is over the best fixed choice."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
pytest.importorskip("rich")
pytest.importorskip("torch")

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
    assert bcast_report.median_error(few) == pytest.approx(10 * bcast_report.median_error(many))
    best = row("none", 1.0)
    assert not bcast_report.AutoPoint(few, best).is_over and bcast_report.AutoPoint(many, best).is_over
