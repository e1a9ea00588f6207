"""Where nvCOMP's libraries are looked for."""

import sys

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
    (folder / "libnvcomp.so.6").touch()
    assert nvcomp.find_directory() == str(folder)
