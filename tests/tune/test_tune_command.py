"""The command line of `accdp tune`: mistakes are one line, and options become points."""

import pytest

from accdp_comm import cli, settings
from accdp_comm.launch import gpus as devices
from accdp_comm.tune import asked, load
from accdp_comm.tune.space import Point


def fails(capsys, *arguments: str) -> str:
    """Return the one line that the command prints when it refuses its arguments."""
    try:
        code = cli.main(["tune", *arguments])
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def have(monkeypatch, count: int) -> None:
    """Let there be so many GPUs."""
    found = [devices.Gpu(index, f"GPU-{index}", "Stand-in", 80 << 30, 9.0, False, "") for index in range(count)]
    listing = devices.Listing(found, "nvidia-smi", "" if found else "nvidia-smi lists none")
    monkeypatch.setattr(devices, "list_gpus", lambda: listing)


@pytest.fixture
def no_gpu(monkeypatch):
    have(monkeypatch, 0)


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.py", "train.py"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "0", "x.py"], "expected numbers >= 1 with commas between them, got '0'"),
        (["--ranks", "1,,2", "x.py"], "got '1,,2'"),
        (["--workers=-1", "x.py"], "expected numbers >= 0"),
        (["--workers", "1,x", "x.py"], "expected numbers >= 0"),
        (["--codec", "none,", "x.py"], "expected names with commas"),
        (["--codec", "none,foo", "x.py"], "codec=foo: expected auto, none, fpk"),
        (["--codec", "qpk", "x.py"], "codec=qpk: expected an error_bound, because it is lossy"),
        (["--measure", "0", "x.py"], "expected seconds, more than 0"),
        (["--measure", "nan", "x.py"], "expected seconds, more than 0"),
        (["--ranks", "1", "--ranks-per-gpu", "1", "x.py"], "not allowed with argument"),
        (["--global-batch", "8", "--batch-size", "1", "x.py"], "not allowed with argument"),
        ([], "the following arguments are required: SCRIPT"),
        (["--ranks-per-gpu", "2", "x.py"], "--ranks-per-gpu: no GPUs here: nvidia-smi lists none; use --ranks"),
        (["--gpus", "0", "x.py"], "--gpus 0: no GPUs here: nvidia-smi lists none"),
        (["--ranks", "2", "--global-batch", "3", "x.py"], "no point is left"),
        (["--ranks", "1", "--run=-n 3 --mps off", "x.py"], "--run -n 3 --mps off: expected other options than --ranks"),
        (["--ranks", "1", "--run=--gpus 0", "x.py"], "expected other options than --gpus, which trials set"),
        (["--ranks", "1", "--run=mps on", "x.py"], "--run mps on: expected options of accdp run alone"),
        (["--ranks", "1", "--run=--mps of", "x.py"], "argument --mps: invalid choice: 'of'"),
        (["--ranks", "1", "none.py"], "none.py: no such file"),
        (["--ranks", "1", "no-such-program"], "no-such-program: neither a Python script (*.py) nor a program"),
        (["--ranks", "1", "x.py", "{workers}"], "{workers} in the command: expected --workers"),
        (["--ranks", "1", "x.py", "--b={batch_size}"], "expected --global-batch or --batch-size"),
    ],
)
def test_mistakes(capsys, no_gpu, arguments, said):
    assert said in fails(capsys, *arguments)


def plan(*arguments: str):
    return asked.settle(cli._parser().parse_args(["tune", *arguments]))


def test_ranks_without_gpus(no_gpu, monkeypatch):
    monkeypatch.setattr(load, "cores", lambda: 3)
    found = plan("train.py")
    assert (found.batches.kind, found.points) == ("script", [Point(1), Point(2), Point(4)])
    monkeypatch.setattr(load, "cores", lambda: 96)
    assert [point.ranks for point in plan("train.py").points] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_hosts_without_gpus_have_more_cores(no_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(load, "cores", lambda: 2)
    hosts = tmp_path / "hosts"
    for text, most in (("a\nb\nc\nd\n", 16), ("a:3\nb:2\n", 4)):
        hosts.write_text(text)
        assert plan("--run", f"--hosts {hosts}", "true").points[-1].ranks == most


def test_ranks_per_gpu(monkeypatch):
    have(monkeypatch, 2)
    monkeypatch.setattr(load, "cores", lambda: 9)
    assert [(one.ranks_per_gpu, one.ranks) for one in plan("train.py").points] == [(1, 2), (2, 4), (4, 8)]
    have(monkeypatch, 1)
    assert [one.ranks_per_gpu for one in plan("train.py").points] == [1, 2, 4, 8]
    have(monkeypatch, 4)
    found = plan("--gpus", "0,1,2", "--ranks-per-gpu", "2", "--run", "--mps off", "train.py")
    assert found.points == [Point(6, 2)]
    assert found.job.run_options == ("--gpus", "0,1,2", "--mps", "off")


def test_modules_are_looked_for_when_they_run(no_gpu):
    assert plan("--ranks", "1", "--run=-m", "pkg.train").job.script == ("pkg.train",)


def test_what_follows_the_script_is_its_own(no_gpu):
    job = plan("--ranks", "1", "--", "train.py", "--ranks", "7", "--measure", "x").job
    assert job.script == ("train.py", "--ranks", "7", "--measure", "x")
    assert job.plan.budgets_s == (1.0, 3.0, 9.0)
    assert plan("--exhaustive", "--ranks", "1", "--measure", "2", "train.py").job.plan.budgets_s == (2.0,)


def test_a_trial_may_take_what_its_parts_may(no_gpu):
    assert plan("--ranks", "1", "train.py").job.limit_s == 900
    job = plan("--ranks", "1", "--start-limit", "1200", "--measure", "100", "train.py", "--", "-1").job
    assert (job.start_s, job.limit_s, job.script) == (1200, 1400, ("train.py", "--", "-1"))


def test_a_codec_named_twice_is_tried_once(no_gpu):
    points = plan("--ranks", "2", "--codec", "none,none", "train.py").points
    assert [point.codec for point in points] == ["none"]


def test_a_codec_that_does_not_work_here_is_refused(capsys, no_gpu):
    with settings.override(codecs_off="fpk"):
        assert "codec=fpk does not work here: it is switched off" in fails(capsys, "--codec", "none,fpk", "x.py")
