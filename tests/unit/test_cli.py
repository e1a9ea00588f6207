"""The command line: what is started, what is shown, and one clear line for each mistake."""

import json
import os
import sys

import pytest

from accdp_comm import _core, cli, info, settings
from accdp_comm.launch import run


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


def test_mistakes_are_one_line(capsys):
    assert "required: COMMAND" in fails(capsys)
    assert "invalid choice: 'bogus'" in fails(capsys, "bogus")
    assert "the following arguments are required: -n/--ranks" in fails(capsys, "run", "x.py")
    assert "not allowed with argument" in fails(capsys, "info", "--json", "--markdown")


def test_arguments_after_the_script_are_the_scripts():
    parse = cli._parser().parse_args
    for words in (
        ["run", "-n", "2", "train.py", "-n", "3", "--json"],
        ["run", "-n2", "--", "train.py", "-n", "3", "--json"],
    ):
        options = parse(words)
        assert (options.ranks, options.script, options.arguments) == (2, "train.py", ["-n", "3", "--json"])


def test_scripts_run_under_this_python(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    line = run.command_line("/bin/mpiexec", "mpich", 3, [str(script), "--epochs", "2"])
    assert line == ["/bin/mpiexec", "-n", "3", sys.executable, "-u", str(script), "--epochs", "2"]


def test_modules_and_programs_run_too():
    assert run.command_line("m", "mpich", 1, ["pkg.tool", "a"], module=True)[3:] == [
        sys.executable,
        "-u",
        "-m",
        "pkg.tool",
        "a",
    ]
    assert run.command_line("m", "mpich", 1, ["sh", "-c", "true"]) == ["m", "-n", "1", "sh", "-c", "true"]


def test_open_mpi_is_told_that_ranks_share_cores():
    line = run.command_line("mpirun", "openmpi", 4, ["sh"])
    assert line == ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none", "sh"]
    assert "--allow-run-as-root" in run.command_line("mpirun", "openmpi", 4, ["sh"], is_root=True)
    assert "--allow-run-as-root" not in run.command_line("mpiexec", "mpich", 4, ["sh"], is_root=True)


def test_what_cannot_be_run_is_said(tmp_path):
    with pytest.raises(_core.UsageError, match="nowhere.py: no such file"):
        run.command_line("m", "mpich", 1, [str(tmp_path / "nowhere.py")])
    with pytest.raises(_core.UsageError, match="no-such-program: neither a Python script"):
        run.command_line("m", "mpich", 1, ["no-such-program"])


def program(folder, name: str, says: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("says", "family"),
    [
        ("HYDRA build details:", "mpich"),
        ("Intel(R) MPI Library for Linux* OS", "mpich"),
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("srun 22.05", "other"),
    ],
)
def test_flavours_are_told_apart(tmp_path, says, family):
    assert run.flavour(program(tmp_path / "bin", "mpiexec", says)) == family


def test_mpiexec_of_the_right_family_is_taken(tmp_path, monkeypatch):
    program(tmp_path / "a", "mpiexec", "mpirun (Open MPI) 5")
    right = program(tmp_path / "b", "mpiexec", "HYDRA build details:")
    python = tmp_path / "c" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}{os.pathsep}/bin")
    assert run.find_mpiexec("mpich") == right
    beside = program(tmp_path / "c", "mpiexec", "HYDRA build details:")
    assert run.find_mpiexec("mpich") == beside
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    (tmp_path / "c" / "mpiexec").unlink()
    with pytest.raises(_core.UsageError, match="accdp was built with mpich, but .*/a/mpiexec belongs to another MPI"):
        run.find_mpiexec("mpich")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(_core.UsageError, match="no mpiexec beside this Python or in PATH"):
        run.find_mpiexec("mpich")


def test_threads_fill_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert run.threads_per_rank(1) == cores
    assert run.threads_per_rank(cores * 8) == 1


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

    assert shown(why_not="no NVIDIA driver") == "no: no NVIDIA driver; built with CUDA 13.0"
    assert shown(built=False, why_not="accdp was built without CUDA") == "no: accdp was built without CUDA"
    assert shown(driver_version=13010, devices=2) == "2 GPUs, built with CUDA 13.0, driver for CUDA 13.1"


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
            {"name": "fpk", "home": "own", "exactness": "exact", "datatypes": "float32", "why_not": ""},
            {"name": "lz4", "home": "nvCOMP", "exactness": "exact", "datatypes": "all", "why_not": "not there"},
        ],
        "bcast_algorithms": [{"name": "chain", "meaning": "node to node"}],
        "settings": [{"env": "ACCDP_X", "value": "", "default": "1", "source": "code", "accepts": "text"}],
        "topology": {"ranks": 4, "nodes": 2, "node_of_rank": [0, 0, 1, 1]},
    }
    assert json.loads(info.as_json(found)) == found
    text = info.as_text(found)
    for part in ("1.2.3", "not installed", "MPI thread_level  multiple", "no: no NVIDIA driver", "libnvcomp-cu13 6.0"):
        assert part in text
    assert "not there" in text and "bcast chain" in text
    assert "4 ranks on 2 nodes, node of rank: [0, 0, 1, 1]" in text
    assert "ACCDP_X               -         1         code         text" in text
