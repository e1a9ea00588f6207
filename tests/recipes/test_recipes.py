"""Each recipe of examples/recipes trains two ranks as one job; one whose package is not installed is skipped.

The Slurm batch script is tried in tests/hosts/test_slurm.py.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path

import jobs
import pytest

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"
ACCDP_RUN = (sys.executable, "-m", "accdp_comm", "run", "-n", "2")
# Recipe -> the package that it needs, how it is started.
ROWS = {
    "plain_ddp": ("torch", ACCDP_RUN, ()),
    "lightning_digits": ("lightning", ACCDP_RUN, ()),
    "accelerate_digits": ("accelerate", ACCDP_RUN, ()),
    "deepspeed_digits": ("deepspeed", ACCDP_RUN, ()),
    "ray_digits": ("ray", (sys.executable,), ("--ranks", "2")),
}
# Ray would leave a key in the home folder, and tell its makers about this run.
ALONE = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def test_every_recipe_is_tried():
    assert {path.stem for path in RECIPES.glob("*.py")} == {*ROWS, "digits"}


@pytest.mark.timeout(400)  # DeepSpeed compiles an operator the first time
@pytest.mark.parametrize("recipe", ROWS)
def test_two_ranks_train_as_one_job(recipe):
    package, launcher, options = ROWS[recipe]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    result = jobs.run(
        [*launcher, str(RECIPES / f"{recipe}.py"), *options],
        env=ALONE,
        timeout=390.0 if package == "deepspeed" else 110.0,
    )
    assert result.returncode == 0, str(result)
    (line,) = [report for report in result.reports if "recipe" in report]
    assert line["recipe"] == recipe.removesuffix("_digits")
    assert (line["ranks"], line["backend"], line["weights_agree"]) == (2, "accdp", True), line
    assert line["last_loss"] < 0.9 * line["first_loss"], line


def test_a_rank_without_a_whole_batch_says_so():
    environment = ALONE | {"ACCDP_TUNED_BATCH_SIZE": "2048"}
    result = jobs.run([*ACCDP_RUN, str(RECIPES / "plain_ddp.py")], env=environment, timeout=60.0)
    assert result.returncode == 1 and "the share of a rank among 2 is less than one batch" in result.stderr, str(result)


def test_lightning_is_told_how_its_trainer_must_be(monkeypatch):
    pytest.importorskip("lightning", reason="the package lightning is not installed")
    monkeypatch.syspath_prepend(str(RECIPES))
    import lightning_digits
    import torch.distributed as dist

    environment = lightning_digits.OneDeviceEach()
    try:
        assert (environment.global_rank(), environment.world_size(), environment.node_rank()) == (0, 1, 0)
        environment.set_world_size(1)
        with pytest.raises(ValueError, match=r"wants world size 2, but the launcher gave 1: expected devices=1"):
            environment.set_world_size(2)
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def manifest():
    yaml = pytest.importorskip("yaml", reason="the package PyYAML is not installed")
    return yaml.safe_load((RECIPES / "mpijob.yaml").read_text())


@pytest.fixture(scope="module")
def mistakes():
    """What the schema of an MPIJob has against a document."""
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    schema = json.loads(Path(__file__).with_name("mpijob.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return lambda document: [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def test_the_manifest_is_valid(manifest, mistakes):
    assert mistakes(manifest) == []


def test_the_manifests_ranks_fit_into_its_slots(manifest):
    spec = manifest["spec"]
    (launcher,) = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    words = [*launcher["command"], *launcher["args"]]
    assert int(words[words.index("-n") + 1]) == spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    example = Path(words[-1])
    assert (RECIPES / example.name).is_file() and example.parts[-3:-1] == ("examples", "recipes")


CONTAINER = ("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("apiVersion",), "kubeflow.org/v1"),
        (("spec", "slotsPerWorker"), 0),
        (("spec", "mpiImplementation"), "mpich"),
        (("spec", "mpiReplicaSpecs", "Launcher", "replicas"), 2),
        (("spec", "mpiReplicaSpecs", "Worker", "restartPolicy"), "Sometimes"),
        (("spec", "replicas"), 2),
        ((*CONTAINER, "args"), "python"),
        ((*CONTAINER, "resources"), {"limits": {"cpu": 2}}),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_wrong_manifest_is_found(manifest, mistakes, where, value):
    wrong = copy.deepcopy(manifest)
    place = wrong
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    assert len(mistakes(wrong)) == 1
