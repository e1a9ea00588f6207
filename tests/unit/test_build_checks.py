"""What the build says when a part of the machine is missing or does not work: one sentence that says what to do."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accdp_comm import procfs

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import make_env  # noqa: E402  (found only after the line above)
import toolchain  # noqa: E402


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine whose only programs, headers and packages are those that a test puts into ``tmp_path``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda kind, **_: str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    for name in ("CXX", "MPICC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def sentence(finder, *args) -> str:
    with pytest.raises(SystemExit) as stopped:
        finder(*args)
    text = stopped.value.code
    assert isinstance(text, str) and "\n" not in text and text.startswith("accdp cannot be built: "), text
    return text


@pytest.mark.parametrize(
    ("finder", "missing", "advice"),
    [
        (toolchain.find_compiler, "no C++ compiler was found", "install g++ 11"),
        (toolchain.python_include, "Python.h is not in", "python3-dev"),
        (toolchain.pybind11_include, "pybind11 is not installed", "pip install"),
        (toolchain.find_torch, "torch is not installed", "pip install torch=="),
        (lambda: toolchain.find_mpi("c++"), "no MPI was found", "pip install mpich=="),
        (toolchain.find_cmake, "cmake was not found", "pip install"),
        (toolchain.find_ninja, "ninja was not found", "pip install"),
    ],
)
def test_missing(bare, finder, missing, advice):
    text = sentence(finder)
    assert missing in text
    assert advice in text


def test_what_no_package_brings_is_missed_before_packages_are_fetched(bare, monkeypatch):
    program(bare, "c++", "exit 0")
    folder = bare / "environment"
    monkeypatch.setattr(sys, "argv", ["make_env.py", str(folder), "run"])
    assert "Python.h is not in" in sentence(make_env.main)
    (bare / "c++").unlink()
    assert "no C++ compiler was found" in sentence(make_env.main)
    assert not folder.exists()


def test_named_compiler_that_does_not_exist(bare, monkeypatch):
    monkeypatch.setenv("CXX", "c++-99")
    assert "CXX=c++-99 is no program" in sentence(toolchain.find_compiler)


def test_compiler_too_old(bare):
    program(bare, "c++", "echo 'c++: error: unrecognized command-line option -std=c++20'; exit 1")
    text = sentence(toolchain.find_compiler)
    assert "does not compile C++20 (c++: error: unrecognized command-line option -std=c++20)" in text


def test_second_compiler_is_taken_if_the_first_is_too_old(bare):
    program(bare, "c++", "exit 1")
    program(bare, "g++", "exit 0")
    assert toolchain.find_compiler() == str(bare / "g++")


def test_torch_too_old(bare):
    (bare / "torch").mkdir()
    (bare / "torch/__init__.py").touch()
    (bare / "torch/version.py").write_text("__version__ = '2.4.1+cpu'\n")
    assert "torch 2.4.1+cpu in" in sentence(toolchain.find_torch)


def test_torch_without_headers(bare):
    (bare / "torch").mkdir()
    (bare / "torch/__init__.py").touch()
    (bare / "torch/version.py").write_text("__version__ = '2.13.0'\n")
    assert "has no C++ headers or libraries" in sentence(toolchain.find_torch)


def test_mpi_wrapper_that_fails(bare):
    program(bare, "mpicc", "echo 'no such option'; exit 1")
    assert f"{bare}/mpicc -show does not say how to compile (status 1)" in sentence(toolchain.find_mpi, "c++")


def test_mpi_without_library(bare, monkeypatch):
    monkeypatch.setenv("PATH", f"{bare}:{os.defpath}")
    (bare / "mpi.h").write_text('#define MPI_VERSION 4\nextern "C" int MPI_Init(int*, char***);\n')
    program(bare, "mpicc", f"echo cc -I{bare} -L{bare} -laccdp_no_such_mpi")
    text = sentence(toolchain.find_mpi, toolchain.find_compiler())
    assert "cannot be compiled and linked against as MPI 3" in text
    assert "accdp_no_such_mpi" in text


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('#define MPICH_VERSION "5.0.2"', "MPICH 5.0.2"),
        ('#define I_MPI_VERSION "2021.18.1"\n#define MPICH_VERSION "3.4a2"', "Intel MPI 2021.18.1"),
        (
            "#define OMPI_MAJOR_VERSION 5\n#define OMPI_MINOR_VERSION 0\n#define OMPI_RELEASE_VERSION 11",
            "Open MPI 5.0.11",
        ),
        ("#define MPI_VERSION 4", "another MPI"),
    ],
)
def test_mpi_is_called_by_its_name(tmp_path, header, name):
    (tmp_path / "mpi.h").write_text(header)
    assert toolchain.mpi_name([str(tmp_path)]) == name


def test_setuptools_too_old():
    assert "setuptools 65.5.0 is older than 77" in sentence(toolchain.require_setuptools, "65.5.0")
    toolchain.require_setuptools("77.0.1")
    wanted = Path(__file__).resolve().parents[2].joinpath("pyproject.toml").read_text()
    assert f'"setuptools>={toolchain.OLDEST_SETUPTOOLS}"' in wanted


def test_mpi_too_old(bare, monkeypatch):
    monkeypatch.setenv("PATH", f"{bare}:{os.defpath}")
    (bare / "mpi.h").write_text('#define MPI_VERSION 2\nextern "C" int MPI_Init(int*, char***);\n')
    program(bare, "mpicc", f"echo cc -I{bare}")
    assert "static assertion failed" in sentence(toolchain.find_mpi, toolchain.find_compiler())


def nvcc(bare, release="13.0", compiles=True, knows="sm_75 sm_80 sm_90 sm_100"):
    compile_ = "exit 0" if compiles else "echo 'nvcc fatal: error: unsupported host'; exit 1"
    answers = f"case $1 in --version) echo release {release};; --list-gpu-code) echo {knows};; *) {compile_};; esac"
    program(bare, "nvcc", answers)


@pytest.fixture
def no_usual_place(bare, monkeypatch):
    monkeypatch.setattr(toolchain, "_USUAL_NVCC", str(bare / "usual/nvcc"))
    for name in ("ACCDP_CUDA", "NVCC"):
        monkeypatch.delenv(name, raising=False)


def test_cuda_is_taken_where_it_works(bare, no_usual_place):
    nvcc(bare)
    cuda, why_not = toolchain.find_cuda("c++")
    assert cuda == toolchain.Cuda(str(bare / "nvcc"), "13.0", "75-real;80-real;90-real;100") and why_not == ""
    nvcc(bare, "12.4", knows="sm_80 sm_90")
    assert toolchain.find_cuda("c++")[0].architectures == "80-real;90"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda bare: None, "nvcc was not found"),
        (lambda bare: nvcc(bare, "11.8"), "is not of CUDA 12.0 or newer"),
        (lambda bare: nvcc(bare, compiles=False), "does not compile with c++ (nvcc fatal: error: unsupported host)"),
        (lambda bare: nvcc(bare, knows="sm_50"), "knows none of sm_75, sm_80, sm_90, sm_100"),
    ],
)
def test_cuda_that_does_not_work(bare, no_usual_place, monkeypatch, prepare, reason):
    prepare(bare)
    cuda, why_not = toolchain.find_cuda("c++")
    assert cuda is None and reason in why_not
    monkeypatch.setenv("ACCDP_CUDA", "on")
    assert "ACCDP_CUDA=on, but " in (text := sentence(toolchain.find_cuda, "c++")) and reason in text


def test_cuda_is_left_out_when_told_so(bare, no_usual_place, monkeypatch):
    nvcc(bare)
    monkeypatch.setenv("ACCDP_CUDA", "off")
    assert toolchain.find_cuda("c++") == (None, "ACCDP_CUDA=off")
    monkeypatch.setenv("ACCDP_CUDA", "yes")
    assert "ACCDP_CUDA=yes: expected auto, on or off" in sentence(toolchain.find_cuda, "c++")
    monkeypatch.setenv("ACCDP_CUDA", "auto")
    monkeypatch.setenv("NVCC", "nvcc-99")
    assert toolchain.find_cuda("c++") == (None, "NVCC=nvcc-99 is no program")


def test_cmake_too_old(bare):
    program(bare, "cmake", "echo cmake version 3.16.3")
    assert "is not CMake 3.22 or newer" in sentence(toolchain.find_cmake)


def test_setup_ends_in_that_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "CXX": "c++-99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    said = "accdp cannot be built: CXX=c++-99 is no program; let it name a C++20 compiler, or unset it."
    assert done.stderr.strip().splitlines()[-1] == said
    assert "Traceback" not in done.stderr


def test_every_requirement_is_pinned_and_says_why():
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert len(files) == 10
    for file in files:
        for line in file.read_text().splitlines():
            assert re.fullmatch(r"[\w-]+==[\w.]+(; python_version (<|>=) \"3\.\d+\")? +# .+", line), f"{file}: {line}"


def test_markers_choose_one_numpy():
    assert [name for name, _ in make_env.pins("run.txt") if name.startswith("numpy")] in (
        [["numpy==2.2.6"]] if sys.version_info < (3, 11) else [["numpy==2.4.6"]]
    )


def test_mpi_of_the_environment_itself_does_not_count_as_already_there(monkeypatch, tmp_path):
    own, other = tmp_path / "venv/bin", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
        program(folder, "mpicc", "exit 0")
    env = make_env.Environment(str(tmp_path / "venv"), [], None)
    monkeypatch.delenv("MPICC", raising=False)
    monkeypatch.setenv("PATH", str(own))
    assert env.mpicc() is None
    monkeypatch.setenv("PATH", f"{own}:{other}")
    assert env.mpicc() == str(other / "mpicc")


def test_one_version_everywhere():
    from accdp_comm import _core, _version

    assert _core.__version__ == _version.__version__ == importlib.metadata.version("accdp")


def test_the_machine_s_packages_may_be_those_of_an_environment(tmp_path):
    """One that is made by an environment's Python to keep what the machine has sees that environment's packages."""
    env = make_env.Environment(str(tmp_path / "venv"), ["--system-site-packages", "--without-pip"], None)
    env.create()
    assert env.has("pytest")
    alone = make_env.Environment(str(tmp_path / "alone"), ["--without-pip"], None)
    alone.create()
    assert not alone.has("pytest")


def test_an_environment_takes_the_machine_s_pip_where_there_is_no_ensurepip(tmp_path, monkeypatch):
    script = f'case " $* " in *" --without-pip "*) exec {sys.executable} "$@";; esac; for last; do :; done'
    script += '; mkdir "$last"; exit 1'
    program(tmp_path, "python", script)
    monkeypatch.setattr(make_env.sys, "executable", str(tmp_path / "python"))
    env = make_env.Environment(str(tmp_path / "venv"), ["--system-site-packages"], None)
    env.create()
    assert env.has("pip")
    alone = make_env.Environment(str(tmp_path / "alone"), [], None)
    with pytest.raises(SystemExit, match="Debian: python3-venv"):
        alone.create()
    assert not alone.folder.exists()


def test_an_environment_of_another_python_is_told(tmp_path):
    env = make_env.Environment(str(tmp_path), [], None)
    Path(env.python).parent.mkdir()
    Path(env.python).touch()
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.8.2\n")
    with pytest.raises(SystemExit, match="is of Python 3.8, not 3.[0-9]+; run 'make distclean' first"):
        env.create()


def test_an_environment_that_was_interrupted_is_begun_again(tmp_path, monkeypatch):
    env = make_env.Environment(str(tmp_path / "venv"), [], None)

    def interrupted(*_, **__):
        Path(env.python).parent.mkdir(parents=True)
        Path(env.python).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(make_env.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.create()
    assert not env.folder.exists()


def test_an_environment_without_pip_gets_one(tmp_path):
    make_env.Environment(str(tmp_path / "venv"), ["--without-pip"], None).create()
    env = make_env.Environment(str(tmp_path / "venv"), [], None)
    assert not env.has("pip")
    env.create()
    assert env.has("pip")


def test_a_folder_of_other_things_stays_where_no_environment_can_be_made(tmp_path, monkeypatch):
    program(tmp_path, "python", "exit 1")
    monkeypatch.setattr(make_env.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="Debian: python3-venv"):
        make_env.Environment(str(tmp_path / "mine"), [], None).create()
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_torch_that_is_there_stays_and_is_told(capsys, monkeypatch):
    env = make_env.Environment("there", [], None)
    monkeypatch.setattr(env, "has", lambda module: True)
    monkeypatch.setattr(env, "version", lambda package: "2.11.0+cpu")
    make_env.install_torch(env, "")
    assert "torch 2.11.0+cpu is there and stays; 'make distclean' first for torch==" in capsys.readouterr().out
    monkeypatch.setattr(env, "version", lambda package: make_env.pins("torch.txt")[0][0].split("==")[1] + "+cpu")
    make_env.install_torch(env, "")
    assert not capsys.readouterr().out


def test_a_python_that_torch_is_not_built_for_is_told_before_packages_are_fetched(monkeypatch):
    class Newer(tuple):
        major, minor = 3, 15

    env = make_env.Environment("there", [], None)
    monkeypatch.setattr(make_env.sys, "version_info", Newer((3, 15, 0, "final", 0)))
    monkeypatch.setattr(env, "has", lambda module: False)
    with pytest.raises(SystemExit, match=r"torch==[0-9.]+ is not built for Python .*make PYTHON=python3.14"):
        make_env.install_torch(env, "")


def test_packages_of_the_user_and_of_the_python_below_are_seen(monkeypatch, tmp_path):
    """As pip's isolated builds hide them: a torch there is the one that what is built will meet."""
    monkeypatch.setattr(toolchain.sys, "prefix", str(tmp_path))
    assert toolchain.site.getusersitepackages() not in toolchain.site_dirs()
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert toolchain.site.getusersitepackages() in toolchain.site_dirs()
    monkeypatch.setattr(toolchain.sys, "base_prefix", str(tmp_path))
    (tmp_path / "pyvenv.cfg").unlink()
    assert toolchain.site.getusersitepackages() in toolchain.site_dirs()


LIMIT = [sys.executable, str(ROOT / "tools/limit.py")]


def test_a_limit_ends_all_that_runs(tmp_path):
    began = time.monotonic()
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    done = subprocess.run([*LIMIT, "3", "sh", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 124 and "ended after 3 s, its limit: sh -c" in done.stderr
    while procfs.start_time(int((tmp_path / "pid").read_text())):
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert subprocess.run([*LIMIT, "20", "sh", "-c", "exit 3"], timeout=30).returncode == 3


def test_an_interrupt_passes_through_a_limit():
    """make hands it on to none of its children, which have it from the terminal."""
    with subprocess.Popen([*LIMIT, "60", "sh", "-c", "echo ready; exec sleep 60"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


def test_an_interrupt_passes_through_a_limit_that_begins():
    """The command may have begun before whoever started it knows of that."""
    slow = "import os, signal, subprocess, sys, time; sys.path.insert(0, 'tools'); import limit\n"
    slow += "real = subprocess.Popen\n"
    slow += (
        "def popen(*args, **more):\n    made = real(*args, **more); os.kill(os.getpid(), signal.SIGINT); return made\n"
    )
    slow += "subprocess.Popen = popen; sys.argv[1:] = ['60', 'sleep', '60']; sys.exit(limit.main())"
    done = subprocess.run([sys.executable, "-c", slow], cwd=ROOT, timeout=30)
    assert done.returncode == 128 + signal.SIGINT


def test_what_others_were_built_with_is_built_anew(tmp_path):
    """Another compiler, or another environment in the same checkout; and nothing twice."""
    for name in ("Makefile", "tools", "accdp_comm"):
        (tmp_path / name).symlink_to(ROOT / name)

    said = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CXX", "MPICC", "NVCC", "ACCDP_CUDA", "VENV")
    bare = {name: value for name, value in os.environ.items() if name not in said}  # of the make that runs this test

    def made_with(*words: str, **env: str) -> int:
        subprocess.run(["make", "-s", *words, "build/made-with"], cwd=tmp_path, check=True, env={**bare, **env})
        return (tmp_path / "build/made-with").stat().st_mtime_ns

    first = made_with()
    assert made_with() == first
    second = made_with(CXX="clang++")
    assert second > first
    assert made_with("CXX=clang++") == second
    assert made_with("VENV=.venv-gpu", CXX="clang++") > second


def test_a_folder_with_a_space_is_refused(tmp_path):
    folder = tmp_path / "my work"
    folder.mkdir()
    said = subprocess.run(
        ["make", "-n", "-f", str(ROOT / "Makefile"), "build"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2 and f"has a space in it, which make cannot take: {folder}" in said.stderr
