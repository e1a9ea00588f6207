"""nvCOMP: tells the core where the libraries of NVIDIA's wheel are. Nothing is loaded before a codec of it is used."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from . import _core


def find_directory() -> str | None:
    """Return the folder of libnvcomp.so.* of the package nvidia-libnvcomp, or None where that is not installed."""
    try:
        package = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:  # there is no package nvidia at all
        return None
    for folder in (package.submodule_search_locations or []) if package else []:
        for name in ("lib64", "lib"):
            if list(Path(folder, name).glob("libnvcomp.so.*")):
                return str(Path(folder, name))
    return None


def missing_codecs() -> dict[str, str]:
    """Return the codecs that do not work in this process, with what is missing and how to install it."""
    find()
    return {row["name"]: row["why_not"] for row in _core.codecs() if row["why_not"]}


@functools.cache
def find() -> None:
    """Tell the core, once; without the wheel the loader's own paths are tried."""
    if directory := find_directory():
        _core.set_nvcomp_directory(directory)
