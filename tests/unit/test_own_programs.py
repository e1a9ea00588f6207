"""What accdp starts for itself is not led astray by modules that lie in the user's folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

from accdp_comm import info, own_programs

PACKAGE = Path(own_programs.__file__).parent
ASTRAY = "raise SystemExit('imported from the folder of the caller')\n"


@pytest.fixture
def astray(tmp_path, monkeypatch):
    for name in ("json", "argparse", "random", "numpy", "mpi4py", "torch", "accdp_comm"):
        (tmp_path / f"{name}.py").write_text(ASTRAY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_folder_would_lead_astray(astray):
    done = subprocess.run([sys.executable, "-c", "import json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "caller" in done.stderr


def test_a_program_of_ours_does_not_see_the_callers_folder(astray):
    command = own_programs.python("import json, accdp_comm; print(json.dumps(accdp_comm.__file__))")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f'"{PACKAGE / "__init__.py"}"\n', done.stderr


def test_a_package_that_is_not_installed_is_found(astray, monkeypatch):
    """Without site-packages nothing but the folder that this package was imported from leads to it."""
    command = own_programs.python("import accdp_comm; print(accdp_comm.__file__)")
    command.insert(1, "-S")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert str(PACKAGE) in done.stdout + done.stderr, done.stderr  # NumPy may be missing behind it


def test_this_version_comes_before_an_installed_one_and_behind_python(astray, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{astray}/site-packages")
    done = subprocess.run(
        own_programs.python("import json; print(json.dumps(sys.path))"), capture_output=True, timeout=60
    )
    path = json.loads(done.stdout)
    stdlib, ours = path.index(str(Path(os.__file__).parent)), path.index(str(PACKAGE.parent))
    packages = [place for place, part in enumerate(path) if part.endswith("-packages")]
    assert packages[0] == path.index(f"{astray}/site-packages") < stdlib < ours < packages[1]


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_a_command_that_starts_ranks(astray, launcher):
    command = own_programs.accdp("run", "-n", "2", "--launcher", launcher, "--", "true")
    done = jobs.run(command, timeout=60.0)
    assert done.returncode == 0, str(done)


def test_a_bench_that_starts_its_ranks(astray):
    command = own_programs.accdp("bench", "barrier", "-n", "2", "-i", "2", "-x", "1")
    done = jobs.run(command, timeout=60.0)
    assert done.returncode == 0, str(done)
    assert "Barrier" in str(done)


def test_what_mpi_says(astray):
    assert "could not" not in info.mpi()["library"]


def test_nothing_else_in_the_package_starts_python_in_the_callers_folder():
    starts = re.compile(r'sys\.executable,(?![^\n]*"-I")[^\n]*"-[cm]"')
    found = [str(path) for path in PACKAGE.rglob("*.py") if starts.search(path.read_text())]
    # A rank that is the user's own module is looked for where the user stands.
    assert sorted(found) == [str(PACKAGE / "launch/programs.py"), str(PACKAGE / "own_programs.py")]
