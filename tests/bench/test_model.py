"""The simulator of bench/model.py against formulas that can be written down, and a small run of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

pytest.importorskip("matplotlib")
import model  # noqa: E402  (found only after the lines above)
import model_network  # noqa: E402
import model_page  # noqa: E402
from rich.console import Console  # noqa: E402

from accdp_comm import _core, plan  # noqa: E402

S = 1 << 20


def machine() -> _core.Machine:
    """Nothing costs anything but the wire: 100 us and 1 GB/s."""
    made = _core.Machine()
    made.link_bytes_per_s, made.latency_s, made.message_s = 1e9, 100e-6, 0.0
    made.step_s, made.node_bytes_per_s, made.reduce_bytes_per_s = 0.0, 1e18, 1e18
    return made


def seconds(name: str, shape: str, nbytes: int = S) -> float:
    return model_network.seconds_of(name, nbytes, plan.declared_shape(shape), machine())


@pytest.mark.parametrize("nodes", [2, 3, 8, 13, 64])
def test_formulas(nodes):
    alpha, beta = 100e-6, 1e-9
    rounds = (nodes - 1).bit_length()
    whole = nodes == 1 << rounds
    assert seconds("ring", f"{nodes}x1") == pytest.approx(2 * (nodes - 1) * (alpha + S / nodes * beta))
    trees = {"binomial tree": 2 * rounds, "recursive doubling": rounds if whole else rounds + 1}
    for name, ways in trees.items():
        # Of other numbers than powers of two some leaders have their message ready early: its latency is not seen.
        early = 0 if whole else 2 * alpha
        assert ways * (alpha + S * beta) - early <= seconds(name, f"{nodes}x1") * (1 + 1e-6), name
        assert seconds(name, f"{nodes}x1") <= ways * (alpha + S * beta) * (1 + 1e-6), name


@pytest.mark.parametrize("shape", ["2x1", "4x1", "4x2", "32x4", "128x2"])
def test_ours_is_near_the_bytes_that_must_travel(shape):
    nodes = int(shape.split("x")[0])
    least = 2 * 64 * S * (nodes - 1) / nodes * 1e-9
    assert 1.0 <= seconds("accdp", shape, 64 * S) / least < 1.1


@pytest.mark.parametrize("nbytes", [8, 64 << 10, 16 * S])
def test_the_plan_is_near_the_simulation(nbytes):
    """Two descriptions of one algorithm: a formula and the messages one by one."""
    for shape in ("2x1", "2x4", "8x1", "16x4", "256x4"):
        formula = plan.plan_of("allreduce", nbytes, plan.declared_shape(shape), _core.Machine(), "usual").seconds
        played = model_network.seconds_of("accdp", nbytes, plan.declared_shape(shape), _core.Machine())
        assert 0.6 < formula / played < 1.6, (shape, formula, played)


def test_messages_cost_their_nodes_time():
    made = machine()
    made.message_s = 10e-6
    network = model_network.Network(plan.declared_shape("9x1"), made)
    model_network.direct(network, 8)
    # Eight sends and eight receives, the last of which waits for nothing any more.
    assert network.end == pytest.approx(8 * 10e-6 + 80e-6 + 10e-6 + 8e-9, rel=0.05)


def test_command(tmp_path, capsys):
    out, png = tmp_path / "model.jsonl", tmp_path / "model.png"
    argv = [sys.executable, str(BENCH / "model.py"), "--nodes", "8", "--out", str(out), "--png", str(png)]
    done = subprocess.run(argv, env=jobs.environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 3 * 4 * 4 and png.stat().st_size > 10_000
    assert "allreduce of 16 MiB, ms" in done.stdout
    check = {"part": "check", "placement": "2x1", "bytes": S, "algorithm": "pipeline", "lanes": 1, "measured_s": 0.010}
    check |= {"p10_s": 0.009, "p90_s": 0.012, "simulated_s": 0.011, "plan_s": 0.008}
    model.print_check([check], Console(width=150))
    assert "simulated: median error 10%" in (said := capsys.readouterr().out) and "plan: median error 20%" in said
    page = tmp_path / "model.md"
    model_page.write([check | {"date": "1 Jan 2026", "versions": {"commit": "abc"}, "machine": {"cores": 2}}], page)
    assert "| 11 | +10% | 8 | -20% |" in (text := page.read_text()) and "1 Jan 2026, accdp at abc" in text
