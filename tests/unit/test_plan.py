"""Plans of shapes that are only imagined: the choice is the cheapest, and costs grow as they must."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from accdp_comm import UsageError, _core, cli, plan, settings

SIZES = [0, 8, 4 << 10, 64 << 10, 1 << 20, 64 << 20, 1 << 30]
SHAPES = ["1x1", "1x4", "2x1", "2x2", "4x1", "3x5", "64x8", "4096x4"]


def found(op: str, nbytes: int, shape: str, link: float = 1.25e8, deterministic: bool | None = None) -> plan.Plan:
    machine = _core.Machine()
    machine.link_bytes_per_s = link
    return plan.plan_of(op, nbytes, plan.declared_shape(shape), machine, "given", deterministic)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", _core.planned_ops())
def test_the_choice_is_the_cheapest(op, shape):
    for nbytes in SIZES:
        it = found(op, nbytes, shape)
        assert it.seconds is not None and it.seconds >= 0, it
        rivals = [way for way in it.others if not way.remark]
        assert all(way.seconds >= it.seconds for way in rivals), it


def test_docs_tell_every_way():
    """Steps and bytes on the wire of each, in a table; and of no other."""
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    named = {name for name, _ in [*_core.reduce_algorithms(), *_core.bcast_algorithms()]}
    for name in named:
        assert name == "auto" or f"\n| {name} | " in page, name
    table = page.partition("\n### What plan() calls them\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| ")]
    told = {(op, name) for ops, name in rows[1:] for op in ops.split(", ")}
    planned = set()
    for op in _core.planned_ops():
        for shape in [*SHAPES, "300x40"]:
            for nbytes in SIZES:
                for deterministic in (False, True):
                    it = found(op, nbytes, shape, deterministic=deterministic)
                    planned |= {(op, way.algorithm) for way in (it.chosen, *it.others)}
    elsewhere = {(op, name) for op in ("allreduce", "reduce", "bcast") for name in named}
    assert planned - elsewhere <= told and told <= planned, (planned - elsewhere) ^ told


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "1x1"])
@pytest.mark.parametrize("op", _core.planned_ops())
def test_more_bytes_never_take_less_time(op, shape):
    seconds = [found(op, nbytes, shape).seconds for nbytes in SIZES]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "1x1"])
@pytest.mark.parametrize("op", ["allreduce", "reduce", "reduce_scatter"])
def test_reductions_in_rank_order(op, shape):
    """Time grows with bytes, and no less is sent than without: every rank's contribution, not its node's."""
    plans = [found(op, nbytes, shape, deterministic=True) for nbytes in SIZES]
    seconds = [it.seconds for it in plans]
    assert seconds == sorted(seconds)
    if plans[0].shape.nodes == 1:
        assert [it.chosen for it in plans] == [found(op, nbytes, shape).chosen for nbytes in SIZES]
        return
    assert {it.algorithm for it in plans} == {"rank_order"}
    nodes, local = plans[0].shape.nodes, plans[0].shape.local_size
    nbytes, sent = SIZES[-1], plans[-1].chosen.wire_bytes
    least = (local + (op == "allreduce")) * nbytes * (nodes - 1) // nodes
    # Sizes, 8 bytes from each rank to each other, for each 4 MiB.
    assert 0.999 * least <= sent < 1.1 * least and plans[-1].seconds >= least / 1.25e8
    usual = found(op, nbytes, shape)
    assert usual.seconds <= plans[-1].seconds and usual.algorithm in {way.algorithm for way in plans[-1].others}


def test_the_setting_asks_for_rank_order():
    with settings.override(deterministic="on", allreduce="ring", baseline="mpi"):
        assert found("allreduce", 4096, "2x2").algorithm == "rank_order"
        assert found("allreduce", 4096, "1x2").algorithm == "flat"  # nor does MPI do it on one node
        assert found("bcast", 4096, "2x2").algorithm == "mpi"


@pytest.mark.parametrize("shape", ["2x1", "2x2", "4x1", "4x2", "16x2"])
def test_long_reductions_keep_the_link_busy(shape):
    """2 S (n-1)/n bytes, and within 10 % the time that they take on the link."""
    it = found("allreduce", 64 << 20, shape)
    nodes = it.shape.nodes
    least = 2 * (64 << 20) * (nodes - 1) // nodes
    assert it.algorithm == "pipeline" and it.chosen.wire_bytes == pytest.approx(least, rel=0.01)
    assert 1 <= it.seconds / (least / 1.25e8) < 1.1


def test_time_per_byte_is_constant():
    for op in _core.planned_ops():
        per_byte = [found(op, nbytes, "2x2").seconds / nbytes for nbytes in (16 << 20, 256 << 20, 1 << 30)]
        assert max(per_byte) / min(per_byte) < 1.1, op


def test_alternatives_say_why_not():
    it = found("allreduce", 64 << 20, "2x2")
    remarks = {way.algorithm: way.remark for way in it.others}
    assert "ACCDP_CHUNK_BYTES" in remarks["direct"] and "* pipeline" in str(it)
    short = found("allreduce", 1024, "2x2")
    assert short.algorithm == "direct"
    assert all(way.remark for way in short.others if way.seconds < short.seconds)


@pytest.mark.parametrize("x", [np.array(1 << 20), np.array([1 << 20]), np.int64(8), 8])
def test_an_array_of_one_number_is_an_array(x):
    assert plan.message_of(x, None)[0] == 8


def test_command(capsys):
    words = ["info", "--plan", "allreduce", "64MiB", "--topology", "2x2", "--link", "1Gbit"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "allreduce of 64 MiB by 4 ranks on 2 nodes of 2" in text and "* pipeline" in text and "0.125 GB/s" in text
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["algorithm"] == "pipeline"
    assert cli.main([*words, "--deterministic"]) == 0
    assert "* rank_order" in capsys.readouterr().out
    assert cli.main(["info", "--plan", "alltoall", "4G", "--topology", "999999x2000"]) == 0
    assert " 36.38 TiB " in capsys.readouterr().out  # 3.725e+04 GiB would touch the column before
    assert cli.main(["info", "--plan", "allreduce", "1k"]) == 0
    text = capsys.readouterr().out
    assert "1 rank" in text and "--topology" in text


@pytest.mark.parametrize("op", ["bcast", "allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_slots_grow_with_the_ranks_of_a_node(capsys, op):
    """A slot has room for each of them, however short chunks are."""
    assert cli.main(["info", "--plan", op, "64MiB", "--topology", "1x20000"]) == 0
    assert "20000 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plan", "allreduce", "64X"], "accdp info: size: expected bytes"),
        (["--plan", "barrier", "64"], "accdp info: rank 0 of 1: op=barrier: expected one of allreduce, "),
        (
            ["--plan", "bcast", "64", "--topology", "99999x99999"],
            "topology: expected at most 2147483647 ranks, got 99999x99999",
        ),
        (["--plan", "bcast", "64", "--topology", "2"], "topology: expected NODESxRANKS, such as 2x4, got '2'"),
        (["--link", "1Gbit"], "--link: expected --plan too"),
        (["--deterministic"], "--deterministic: expected --plan too"),
        (["--markdown", "--plan", "bcast", "64"], "--markdown: expected no --plan"),
    ],
)
def test_mistakes_are_one_line(capsys, words, said):
    assert cli.main(["info", *words]) == 2
    text = capsys.readouterr().err
    assert said in text and text.count("\n") == 1


def test_an_impossible_shape():
    with pytest.raises(UsageError, match="shape: expected at least one node"):
        _core.Shape(nodes=0, local_size=1, slot_bytes=4096, flat_bytes=64)


def test_the_example_of_the_docs_is_what_the_command_prints(capsys):
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
    shown = page.partition("    $ accdp ")[2].partition("\nThe way with the star")[0]
    command, _, expected = shown.partition("\n")
    assert cli.main(command.split()) == 0
    assert capsys.readouterr().out == textwrap.dedent(expected)
