"""Where nvCOMP's libraries are looked for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import accdp_comm
from accdp_comm import nvcomp


def test_beside_another_wheel_that_makes_nvidia_a_package(monkeypatch, tmp_path):
    """The import system then knows only that one's folder."""
    other, own = tmp_path / "other", tmp_path / "own"
    (other / "nvidia").mkdir(parents=True)
    (other / "nvidia" / "__init__.py").touch()
    folder = own / "nvidia" / "libnvcomp" / "lib64"
    folder.mkdir(parents=True)
    nowhere = [str(tmp_path / "none"), "x" * 5000, None, b"bytes"]  # too long for a path; no paths
    monkeypatch.setattr(sys, "path", [str(other), *nowhere, str(own)])
    assert nvcomp.find_directory() is None  # there is a folder, but no library
    (folder / "libnvcomp.so.5").touch()
    assert nvcomp.find_directory() is None  # one that cannot be used may come before one that can
    (folder / "libnvcomp.so.6").touch()
    assert nvcomp.find_directory() == str(folder)


@pytest.mark.skipif(not nvcomp.find_directory(), reason="nvCOMP is not installed")
def test_whoever_asks_first_finds_the_codecs_that_are_installed():
    """The core opens a library once, and remembers that it was not found."""
    first = "bcast.check_codec('lz4')"  # as `accdp info` and `accdp tune` begin
    script = f"from accdp_comm import bcast, nvcomp; {first}; print(nvcomp.missing_codecs())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{nvcomp.missing_codecs()}\n"
    assert "lz4" not in nvcomp.missing_codecs()


def test_only_this_module_asks_the_core_for_its_codecs():
    package = Path(accdp_comm.__file__).parent
    asking = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"_core\.codecs\(", path.read_text())
    ]
    assert asking == ["nvcomp.py"]
