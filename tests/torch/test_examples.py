"""The examples, started as the README says: they learn, agree between backends, and end with one JSON line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jobs
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALONE = (sys.executable,)
# Digits: two steps of 64 in each of two epochs. Language: 116 windows for training, one step in each epoch.
TINY_DIGITS = ("train_digits", "--epochs", "2", "--data-limit", "128", "--quiet")
TINY_CHAR_LM = ("train_char_lm", "--epochs", "2", "--steps", "1", "--data-limit", "128", "--quiet")


def torchrun(ranks: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))


def accdp_run(ranks: int) -> tuple[str, ...]:
    command = shutil.which("accdp", path=str(Path(sys.executable).parent)) or shutil.which("accdp")
    assert command, "the command 'accdp' is not installed; run 'make build'"
    return (command, "run", "-n", str(ranks))


def start(launcher: tuple[str, ...], example: str, *options: str, timeout: float = 60.0) -> jobs.Result:
    return jobs.run([*launcher, str(EXAMPLES / f"{example}.py"), *options], timeout=timeout)


def last_line(result: jobs.Result) -> dict:
    """The result of a job that must have gone well."""
    assert result.returncode == 0, str(result)
    return json.loads(result.stdout.splitlines()[-1])


def only_line(result: jobs.Result) -> dict:
    """The result of a ``--quiet`` job, in which no rank may have said anything else."""
    line = last_line(result)
    assert len(result.stdout.splitlines()) == 1, str(result)
    return line


def assert_same_training(one: dict, other: dict) -> None:
    """Ranks and backends may differ by rounding only: the global batches are the same ones."""
    assert one["steps"] == other["steps"] > 0
    assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
    assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-3)
    assert one["weights_agree"] is True and other["weights_agree"] is True


def test_digits_train_alike_alone_and_under_torchrun() -> None:
    alone, two = (only_line(start(launcher, *TINY_DIGITS)) for launcher in (ALONE, torchrun(2)))
    assert [(line["example"], line["backend"]) for line in (alone, two)] == [("train_digits", "accdp")] * 2
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    assert_same_training(alone, two)


def test_char_lm_trains_alike_with_gloo_and_accdp() -> None:
    gloo = only_line(start(accdp_run(2), *TINY_CHAR_LM, "--backend", "gloo"))
    accdp = only_line(start(accdp_run(2), *TINY_CHAR_LM))
    assert [(line["example"], line["ranks"]) for line in (gloo, accdp)] == [("train_char_lm", 2)] * 2
    assert (gloo["backend"], gloo["operations"], accdp["backend"]) == ("gloo", [], "accdp")
    assert accdp["samples_per_s"] > 0 and 0 < accdp["test_loss"] < 6 and 0 <= accdp["test_accuracy"] <= 1
    assert_same_training(gloo, accdp)


@pytest.mark.parametrize("launcher", [torchrun, accdp_run])
def test_an_uneven_batch_is_refused_in_one_sentence(launcher) -> None:
    result = start(launcher(2), *TINY_DIGITS, "--batch-size", "63")
    assert result.returncode != 0 and result.stdout == "", str(result)
    assert result.stderr.count("--batch-size 63 cannot be divided evenly among 2 ranks") == 1, str(result)
    assert 'train_digits.py", line' not in result.stderr, str(result)  # no traceback but the launcher's own


def test_text_that_leaves_no_test_is_refused_in_one_sentence() -> None:
    result = start(ALONE, "train_char_lm", "--data-limit", "9", "--batch-size", "8")
    assert (result.returncode, result.stdout) == (2, ""), str(result)
    assert result.stderr.endswith("train_char_lm.py: --data-limit 9 leaves nothing to test with; 10 or more do\n")


@pytest.mark.timeout(240)
def test_digits_are_learned_as_well_as_with_gloo() -> None:
    """The whole demo, four ranks each: both reach the accuracy that the README promises."""
    said = start(accdp_run(4), "train_digits", timeout=110)
    accdp = last_line(said)
    gloo = last_line(start(torchrun(4), "train_digits", "--backend", "gloo", timeout=110))
    assert [(line["backend"], line["ranks"]) for line in (accdp, gloo)] == [("accdp", 4), ("gloo", 4)]
    assert min(accdp["test_accuracy"], gloo["test_accuracy"]) >= 0.97
    assert accdp["test_accuracy"] == pytest.approx(gloo["test_accuracy"], abs=0.015)
    assert accdp["weights_agree"] is True and gloo["weights_agree"] is True

    lines = said.stdout.splitlines()
    assert sum(text.startswith("epoch ") for text in lines) == accdp["epochs"], str(said)
    assert sum("what the backend did" in text for text in lines) == 1, str(said)
    calls = {row["op"]: row["calls"] for row in accdp["operations"]}
    assert calls["allreduce"] >= accdp["steps"], calls


def test_move_fewer_bytes():
    """Two ranks that pretend to be on two nodes; each line says name, sizes, ratio and codec."""
    script = str(EXAMPLES / "move_fewer_bytes.py")
    result = jobs.run([*accdp_run(2), script, "--layers", "1"], env={"ACCDP_TOPOLOGY": "2x1"}, timeout=60.0)
    assert result.returncode == 0, str(result)
    lines = result.stdout.splitlines()
    ratios = {line[:14].strip(): float(line.split(",")[1].split("x")[0]) for line in lines}
    assert list(ratios) == ["none", "auto", "zhuff", "relative 0.1", "version 1", "version 2", "version 3"], str(result)
    assert 0.99 < ratios["none"] <= 1 and ratios["zhuff"] > 1.3 and ratios["relative 0.1"] > 2, ratios
    assert ratios["version 3"] > 2 * ratios["version 1"], ratios


@pytest.mark.parametrize(
    ("kills", "left"), [(("1@20", "3@30"), 2), (("0@10",), 3), (("0@10", "1@10", "3@10"), 1)], ids=str
)
def test_outlive(kills, left):
    """Ranks are killed, and the others learn on."""
    result = start(ALONE, "outlive", "--steps", "100", "--kill", *kills)
    line = last_line(result)
    assert (line["began"], line["left"]) == (4, left) and line["test_accuracy"] > 0.8, str(result)
    assert f"{left} ranks go on with step " in result.stdout, str(result)
