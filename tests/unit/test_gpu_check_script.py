"""bench/gpu_check.sh: what it says of a wrong option, what it runs, and how it goes on without nvCOMP."""

import os
import shutil
import subprocess
from pathlib import Path

import jobs
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_the_script_names_a_wrong_option():
    done = subprocess.run(
        ["bash", str(BENCH / "gpu_check.sh"), "--wheel"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    expected = "expected --wheels FOLDER, --out FILE, --seconds N, --only STEP,... or --after FILE"
    assert done.stderr == f"gpu_check.sh: --wheel: {expected}\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """gpu_check.sh in a tree of its own, in which `make` and the Python of .venv-gpu only say what they are asked."""
    for folder in ("tree/bench", "tree/requirements", "bin", "elsewhere/wheels"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(BENCH / "gpu_check.sh", tmp_path / "tree" / "bench")
    for file, text in (
        ("build", "ninja==1 # runs\n"),
        ("run", "numpy==2; x < 1\nnvidia-libnvcomp-cu13==6\n"),
        ("mpi", "mpich\n"),
    ):
        (tmp_path / "tree" / "requirements" / f"{file}.txt").write_text(text)
    python = tmp_path / "tree" / ".venv-gpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    jobs.write_program(python, 'echo "python $*"', 'case "$*" in *libnvcomp*) exit 1;; esac')
    jobs.write_program(tmp_path / "bin" / "make", 'echo "make $*"', 'case "$*" in *stamps/run) exit "$CANNOT";; esac')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("MPICC", "sh")  # there is an MPI

    def call(cannot, *arguments):
        done = subprocess.run(
            ["bash", str(tmp_path / "tree" / "bench" / "gpu_check.sh"), *arguments],
            cwd=tmp_path / "elsewhere",
            env={**os.environ, "CANNOT": str(cannot)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return call


def test_paths_of_the_script_are_the_callers(script, tmp_path):
    said, _ = script(0, "--wheels", "wheels", "--out", "x.json")
    here = tmp_path / "elsewhere"
    flags = f"make VENV=.venv-gpu VENV_FLAGS=--system-site-packages WHEELS={here}/wheels"
    assert said[:2] == [f"{flags} .venv-gpu/stamps/run", f"{flags} -o .venv-gpu/stamps/run build"]
    assert said[2].startswith(f"python bench/gpu_check.py --out {here}/x.json --seconds 5")
    said, _ = script(0)
    assert f" --out {tmp_path}/tree/bench/results/gpu_check.json " in said[-1]


def test_the_script_goes_on_without_nvcomp(script, tmp_path, monkeypatch):
    said, errors = script(1, "--wheels", "wheels")
    install = f"python -m pip install --quiet --no-index --find-links {tmp_path}/elsewhere/wheels"
    assert said[1:4] == [f"{install} {package}" for package in ("ninja", "numpy", "nvidia-libnvcomp-cu13")]
    assert said[4].endswith(" -o .venv-gpu/stamps/run build") and "gpu_check.py" in said[5]
    assert errors == "gpu_check.sh: goes on without: nvidia-libnvcomp-cu13\n"
    monkeypatch.setenv("MPICC", "no-such-mpicc")
    assert "python -m pip install --quiet mpich" in script(1)[0]
