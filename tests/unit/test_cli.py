"""The command line: what is started, what is shown, and one clear line for each mistake."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from accdp_comm import _core, cli, info, settings


def fails(capsys, *arguments: str) -> str:
    """Return the one line that the command prints when it refuses its arguments."""
    try:
        code = cli.main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", ""])
def test_number_of_ranks_is_checked(capsys, count):
    assert "expected a number of ranks >= 1" in fails(capsys, "run", f"-n{count}" if count else "-n=", "x.py")


@pytest.mark.parametrize("latency", ["-1", "nan", "inf", "soon"])
def test_latency_is_checked(capsys, latency):
    with pytest.raises(SystemExit):
        cli.main(["info", "--plan", "bcast", "1k", f"--latency={latency}"])
    assert f"argument --latency: expected microseconds >= 0, got '{latency}'" in capsys.readouterr().err


def test_link_is_checked(capsys):
    with pytest.raises(SystemExit):
        cli.main(["info", "--plan", "bcast", "1k", "--link", "1"])
    assert "argument --link: expected a rate such as 1Gbit" in capsys.readouterr().err


def test_mistakes_are_one_line(capsys):
    assert "required: COMMAND" in fails(capsys)
    assert "invalid choice: 'bogus'" in fails(capsys, "bogus")
    assert "one of -n/--ranks, --ranks-per-gpu, --hosts, --profile is required" in fails(capsys, "run", "x.py")
    assert "not allowed with argument" in fails(capsys, "info", "--json", "--markdown")


def test_a_profile_without_a_number_of_ranks(capsys, tmp_path):
    (tmp_path / "p.json").write_text('{"workers": 2}')
    said = fails(capsys, "run", "--profile", str(tmp_path / "p.json"), "x.py")
    assert f"--profile {tmp_path}/p.json: has neither ranks nor ranks_per_gpu; -n N gives a number" in said


def test_arguments_after_the_script_are_the_scripts():
    parse = cli._parser().parse_args
    for words in (
        ["run", "-n", "2", "train.py", "-n", "3", "--json"],
        ["run", "-n2", "--", "train.py", "-n", "3", "--json"],
    ):
        options = parse(words)
        assert (options.ranks, options.script, options.arguments) == (2, "train.py", ["-n", "3", "--json"])


def test_settings_page_has_every_setting(capsys):
    assert cli.main(["info", "--markdown"]) == 0
    page = capsys.readouterr().out
    rows = settings.table()
    assert rows and all(f"| `{row.env}` |" in page and row.meaning in page for row in rows)
    assert page.count("\n| `ACCDP_") == len(rows)


def test_why_the_gpu_is_not_used(monkeypatch):
    def shown(**report) -> str:
        usual = {"built": True, "runtime_version": 13000, "driver_version": 0, "devices": 0, "why_not": ""}
        monkeypatch.setattr(_core, "cuda_report", lambda: usual | report)
        return info._present(info._cuda())

    def no_memory():
        raise _core.CudaError("cudaMalloc: out of memory")

    monkeypatch.setattr(_core, "device_codecs", lambda: ["fpk", "bitcomp", "lz4", "qpk"])

    assert shown(why_not="no NVIDIA driver") == "no: no NVIDIA driver; built with CUDA 13.0"
    assert shown(built=False, why_not="accdp was built without CUDA") == "no: accdp was built without CUDA"
    assert shown(driver_version=13010, devices=2) == (
        "2 GPUs, built with CUDA 13.0, driver for CUDA 13.1; "
        "broadcasts of device memory encode fpk, bitcomp, lz4, qpk there"
    )
    monkeypatch.setattr(_core, "device_codecs", no_memory)
    assert shown(driver_version=13010, devices=1).endswith("is not known: cudaMalloc: out of memory")


@pytest.mark.parametrize("setting", ["ACCDP_CODEC=foo", "ACCDP_CODEC=qpk", "ACCDP_TOPOLOGY=zz"])
def test_info_refuses_a_setting_that_only_some_calls_look_at(setting, monkeypatch):
    monkeypatch.setenv(*setting.split("="))
    done = subprocess.run([sys.executable, "-m", "accdp_comm", "info"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(f"accdp info: {setting}: expected "), done
    assert len(done.stderr.splitlines()) == 1, done


def test_info_shows_the_same_as_text_and_json():
    found = {
        "accdp": "1.2.3",
        "python": "3.11",
        "versions": {"torch": "2.13", "mpi4py": None},
        "reductions": "avx2",
        "mpi": {"library": "MPICH", "abi": "mpich", "thread_level": "multiple"},
        "cuda": {"missing": "no NVIDIA driver"},
        "nvcomp": {"found": "nvidia-libnvcomp-cu13 6.0"},
        "codecs": [
            {
                "name": "fpk",
                "home": "own",
                "exactness": "exact",
                "datatypes": "float32",
                "why_not": "",
                "format": 1,
                "library_major": 0,
            },
            {
                "name": "lz4",
                "home": "nvCOMP",
                "exactness": "exact",
                "datatypes": "all",
                "why_not": "not there",
                "format": 2,
                "library_major": 6,
            },
        ],
        "bcast_algorithms": [{"name": "chain", "meaning": "node to node"}],
        "allreduce_algorithms": [{"name": "ring", "meaning": "round and round"}],
        "settings": [
            {"env": "ACCDP_X", "value": "", "default": "1", "source": "code", "accepts": "text"},
            {
                "env": "ACCDP_LONGER_THAN_ALL_OTHERS",
                "value": "/a/folder",
                "default": "",
                "source": "environment",
                "accepts": "y",
            },
        ],
        "topology": {"ranks": 4, "nodes": 2, "node_of_rank": [0, 0, 1, 1], "why_no_single_copy": "ACCDP_CMA=off"},
    }
    assert json.loads(info.as_json(found)) == found
    text = info.as_text(found)
    for part in ("1.2.3", "not installed", "MPI thread_level  multiple", "no: no NVIDIA driver", "libnvcomp-cu13 6.0"):
        assert part in text
    assert "  2.6     exact" in text and "not there" in text and "bcast  chain" in text and "allreduce  ring" in text
    assert "4 ranks on 2 nodes, node of rank: [0, 0, 1, 1]" in text
    assert "single copy       no: ACCDP_CMA=off" in text
    settings_shown = [line.split() for line in text.splitlines() if line.startswith("ACCDP_")]
    assert settings_shown == [
        ["ACCDP_X", "(empty)", "1", "code", "text"],
        ["ACCDP_LONGER_THAN_ALL_OTHERS", "/a/folder", "(empty)", "environment", "y"],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mps", "terminate", "x"], "accdp mps terminate: argument PID: invalid int value: 'x'"),
        (["mps", "status", "x"], "accdp mps status: unrecognized arguments: x (see accdp mps status --help)"),
        (["doctor", "x", "-y"], "accdp doctor: unrecognized arguments: x -y (see accdp doctor --help)"),
        (["mps", "nonsense"], "accdp mps: argument VERB: invalid choice: 'nonsense'"),
        (["doctor", "-n", "0"], "accdp doctor: argument -n/--ranks: expected a number of ranks >= 1, got '0'"),
    ],
)
def test_mistakes_name_the_command(words, said, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    text = capsys.readouterr().err
    assert leaving.value.code == 2 and text.startswith(said) and text.count("\n") == 1


@pytest.mark.parametrize("words", [["info", "--markdown"], ["bench", "allreduce", "-m", "1k"]])
def test_a_reader_that_leaves_ends_the_command_without_a_word(words):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "accdp_comm", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("command", [["info"], ["doctor"], ["bench", "bcast"]])
def test_a_dependency_that_is_missing(command):
    """As after pip install --no-deps."""
    text = f"import sys; sys.modules['numpy'] = None; from accdp_comm import cli; sys.exit(cli.main({command}))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "accdp: numpy is not installed: pip install numpy\n")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (None, "accdp: its core is not built: make build in a checkout"),
        ("_core.cpython-39-x86_64-linux-gnu.so", "accdp: its core is built for another Python (_core.cpython-39-"),
        (f"_core{EXTENSION_SUFFIXES[0]}", "accdp: its core could not be loaded: "),
    ],
)
def test_a_core_that_is_missing(file, said, tmp_path):
    package = tmp_path / "accdp_comm"
    shutil.copytree(Path(cli.__file__).parent, package, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    if file:
        (package / file).write_bytes(b"no library")
    words = [sys.executable, "-S", "-m", "accdp_comm", "info"]  # without what is installed, where the core is, too
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("command", [["info"], ["doctor"]])
def test_a_full_disk_is_told_in_one_line(command):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "accdp_comm", *command]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "accdp: [Errno 28] No space left on device\n")
