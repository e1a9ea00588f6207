"""What `accdp doctor` makes of what it finds; tests/launch/test_doctor_here.py runs it."""

import json
import resource

import pytest

from accdp_comm import _core, mpi_world, settings
from accdp_comm.doctor import command, findings, gpu, libraries, system
from accdp_comm.doctor.findings import FAIL, OK, WARN, Check, Finding

GIB = 1 << 30


def assert_verdict(found: Finding, verdict: str) -> None:
    assert found.verdict == verdict and found.found, found
    assert bool(found.advice) == (verdict != OK), "what is wrong comes with what to do, and nothing else does"


@pytest.mark.parametrize(
    ("total", "free", "verdict"), [(8 * GIB, 4 * GIB, OK), (64 << 20, 64 << 20, WARN), (8 * GIB, 1 << 20, FAIL)]
)
def test_shared_memory(total, free, verdict):
    assert_verdict(system.judge_shared_memory(total, free), verdict)


def test_shared_memory_that_is_not_there(tmp_path):
    assert_verdict(system.shared_memory(str(tmp_path / "none")), FAIL)


@pytest.mark.parametrize(
    ("limit", "has_rdma", "verdict"),
    [(8 << 20, False, OK), (8 << 20, True, WARN), (resource.RLIM_INFINITY, True, OK), (2 * GIB, True, OK)],
)
def test_locked_memory(limit, has_rdma, verdict):
    assert_verdict(system.judge_locked_memory(limit, has_rdma), verdict)


@pytest.mark.parametrize(
    ("available", "machine", "quota", "ranks", "verdict"),
    [
        (8, 8, None, None, OK),
        (8, 8, None, 8, OK),
        (8, 8, None, 9, WARN),
        (1, 8, None, None, WARN),
        (1, 1, None, None, OK),
        (8, 8, 2.0, None, WARN),
        (4, 8, 8.0, 4, OK),
    ],
)
def test_cores(available, machine, quota, ranks, verdict):
    assert_verdict(system.judge_cores(available, machine, quota, ranks), verdict)


def test_unknown_settings_are_named():
    names = ["ACCDP_CODEC", "ACCDP_CODEK", "ACCDP_TUNED_WORKERS", "HOME"]
    assert system.unknown_variables(names, {"ACCDP_CODEC"}) == ["ACCDP_CODEK"]


def test_settings_that_only_some_calls_look_at(monkeypatch):
    for launchers in ("RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(launchers, raising=False)
    _core.settings()  # else this process, too, finds what follows, and keeps it
    monkeypatch.setenv("ACCDP_CODECS_OFF", "foo")
    with settings.override(topology="foo"):
        rows = {"ACCDP_TOPOLOGY=foo": system.environment(), "ACCDP_CODECS_OFF=foo": libraries.codecs()}
    for said, found in rows.items():
        assert_verdict(found, FAIL)
        assert said in found.found and found.advice == "correct or unset it", found


def test_a_wrong_setting_fails(monkeypatch):
    monkeypatch.setenv("PMI_FD", "999")
    monkeypatch.setenv("PMI_SIZE", "4")
    for name in ("RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert_verdict(system.environment(), FAIL)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, OK),
        ({"here": "2.14.0"}, FAIL),
        ({"here": "2.13.1+cu130", "cuda": "13.0"}, OK),
        ({"distributed": False}, FAIL),
    ],
)
def test_torch(change, verdict):
    found = {"here": "2.13.0", "built": "2.13.0+cpu", "cuda": None, "distributed": True}
    assert_verdict(libraries.judge_torch(found | change), verdict)


def test_torch_that_does_not_load_is_not_accdps_release(monkeypatch):
    def ask(program):
        raise libraries.CannotAsk("no accdp_comm" if "accdp_comm" in program else alone)

    monkeypatch.setattr(libraries, "ask", ask)
    alone = "libtorch_cpu.so is gone"
    assert libraries.torch().found == "torch does not load: libtorch_cpu.so is gone"
    monkeypatch.setattr(libraries, "ask", lambda program: ask(program) if "accdp_comm" in program else 0)
    assert "install it again" in libraries.torch().advice


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({}, OK, "MPICH Version: 5.0.2 (mpich)"),
        ({"thread_level": "serialized"}, WARN, "thread level serialized"),
        ({"thread_level": "could not be initialised: no space"}, FAIL, "MPI could not be initialised: no space"),
        ({"library": "could not be loaded: no file"}, FAIL, "could not be loaded: no file"),
    ],
)
def test_mpi(change, verdict, words):
    found = {"library": "MPICH Version: 5.0.2 MPICH Release", "abi": "mpich", "thread_level": "multiple"}
    judged = libraries.judge_mpi(found | change)
    assert_verdict(judged, verdict)
    assert words in judged.found and ("install it again" in judged.advice) == ("library" in change)


@pytest.mark.parametrize(("family", "verdict"), [("mpich", OK), ("openmpi", FAIL)])
def test_mpi4py(family, verdict):
    assert_verdict(libraries.judge_mpi4py("MPICH Version:  5.0.2\nMPICH Release", "4.1.2", family), verdict)
    other = {"mpich": "openmpi", "openmpi": "mpich"}[family]
    assert_verdict(libraries.judge_mpi4py("Open MPI v5.0.11, package", "4.1.2", other), verdict)


@pytest.mark.parametrize(("paths", "verdict"), [([], OK), (["/a/libmpi.so.12"], OK), (["/a", "/b"], FAIL)])
def test_libmpi(paths, verdict):
    assert_verdict(libraries.judge_libmpi(paths), verdict)


@pytest.mark.parametrize(
    ("why_not", "wrong", "verdict", "said"),
    [
        ("", "", OK, "2, which all work"),
        ("pip install it", "", WARN, "fpk work, lz4 do not"),
        ("pip install it", "ACCDP_CODEC=lz4 does not work here", FAIL, "ACCDP_CODEC=lz4 does not work here"),
    ],
)
def test_codecs(why_not, wrong, verdict, said):
    found = libraries.judge_codecs([{"name": "fpk", "why_not": ""}, {"name": "lz4", "why_not": why_not}], wrong)
    assert_verdict(found, verdict)
    assert found.found == said
    assert verdict != WARN or found.advice == why_not


@pytest.mark.parametrize(
    ("codec", "verdict", "said"),
    [
        ("auto", WARN, "zstd do not"),
        ("zstd", FAIL, "ACCDP_CODEC=zstd does not work here: it is switched off"),
        ("foo", FAIL, "ACCDP_CODEC=foo: expected auto"),
        ("qpk", FAIL, "expected a lossless codec"),
    ],
)
def test_the_codec_that_is_set_is_looked_at(codec, verdict, said, monkeypatch):
    monkeypatch.setenv("ACCDP_CODECS_OFF", "zstd")
    monkeypatch.setenv("ACCDP_CODEC", codec)
    found = libraries.codecs()
    assert_verdict(found, verdict)
    assert said in found.found


def test_cuda_awareness_matters_with_gpus_only():
    assert_verdict(libraries.cuda_aware(has_gpus=False), OK)


def test_a_process_that_dies_is_an_answer():
    with pytest.raises(libraries.CannotAsk, match="ended with status 3"):
        libraries.ask("raise SystemExit(3)")
    with pytest.raises(libraries.CannotAsk, match="No module named 'nothing_like_it'"):
        libraries.ask("import nothing_like_it")
    assert libraries.ask("print('noise'); print('[1]')") == [1]


def test_findings_are_shown_and_counted():
    def broken() -> Finding:
        raise RuntimeError("oh")

    checks = [Check("a", "by a", lambda: Finding(OK, "fine")), Check("b", "by b", broken)]
    rows = list(findings.run(checks))
    assert [row["verdict"] for row in rows] == [OK, FAIL] and findings.exit_code(rows) == 1
    assert findings.exit_code(rows[:1]) == 0 and json.loads(findings.as_json(rows)) == rows
    assert findings.as_text(rows[0], 80) == "ok    a            fine"
    assert "the check failed: RuntimeError: oh" in findings.as_text(rows[1], 80)
    assert findings.summary(rows) == "1 ok, 0 warn, 1 fail"


def test_each_check_has_a_name_and_says_how():
    checks = command.table()
    assert len({check.name for check in checks}) == len(checks) and all(check.how for check in checks)


def test_an_mpi_that_is_gone_has_one_row_that_says_why(monkeypatch):
    def gone():
        raise _core.UsageError("libmpi.so.12 could not be loaded")

    monkeypatch.setattr(mpi_world, "load", gone)
    monkeypatch.setattr(libraries, "ask", lambda program: {"library": "MPICH Version: 5.0.2", "mpi4py": "4.1.2"})
    assert [finding.advice for finding in (libraries.mpiexec(), libraries.mpi4py())] == ["see the row mpi"] * 2


def test_without_gpus_there_is_no_folder_for_daemons(monkeypatch):
    def fail():
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(gpu.records, "base_directory", fail)
    monkeypatch.setattr(gpu.gpus, "list_gpus", lambda: gpu.gpus.Listing([], "", "none"))
    assert gpu.mps().verdict == "ok"


@pytest.mark.parametrize(
    ("listing", "verdict"),
    [
        (gpu.gpus.Listing([], "", "neither is installed"), "fail"),
        (gpu.gpus.Listing([], "NVML", "CUDA_VISIBLE_DEVICES= hides them all", is_hidden=True), "ok"),
    ],
)
def test_gpus_that_are_hidden_are_no_failure(monkeypatch, listing, verdict):
    monkeypatch.setattr(gpu.gpus, "list_gpus", lambda: listing)
    monkeypatch.setattr(gpu.Path, "glob", lambda self, pattern: [gpu.Path("/dev/nvidia3")])
    found = gpu.devices()
    assert found.verdict == verdict and (verdict == "ok" or "/dev/nvidia3" in found.found), found
