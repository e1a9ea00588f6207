"""nvCOMP: tells the core where the libraries of NVIDIA's wheel are. Nothing is loaded before a codec of it is used."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
from pathlib import Path
from typing import Any

from . import _core

_LIBRARY = "libnvcomp.so.6"  # the major version that the core calls (csrc/codec/nvcomp_api.hpp)


def find_directory() -> str | None:
    """Return the folder of the package nvidia-libnvcomp that has _LIBRARY, or None where that is not installed."""
    # Not by the import system: where another wheel of NVIDIA's makes `nvidia` a package, the folders of the rest are
    # none of it.
    for entry, name in itertools.product(filter(_is_path, sys.path), ("lib64", "lib")):
        folder = Path(entry, "nvidia", "libnvcomp", name)
        with contextlib.suppress(OSError):  # one that must not be searched
            if (folder / _LIBRARY).exists():  # not an older one's, which may come first and cannot be used
                return str(folder.resolve())
    return None


def _is_path(entry: object) -> bool:
    return isinstance(entry, str)  # the import system passes over all else, too


_ON_DEVICE = ("ANS", "Bitcomp", "Cascaded", "LZ4", "Zstd")
_STEPS = (
    "CompressGetMaxOutputChunkSize",
    "CompressGetTempSize",
    "CompressAsync",
    "DecompressGetTempSize",
    "DecompressAsync",
)


def device_codecs() -> tuple[list[str], str]:
    """Return the codecs whose batched functions for a GPU are in nvCOMP's library, and why there are none.

    The library is opened, which needs neither a GPU nor a driver. The core calls those of ANS, LZ4 and Bitcomp
    (csrc/codec/cuda_nvcomp.cu).
    """
    try:
        found = library()
    except OSError as error:
        return [], f"nvCOMP's {_LIBRARY} could not be opened ({error})"
    have = [name for name in _ON_DEVICE if all(hasattr(found, f"nvcompBatched{name}{step}") for step in _STEPS)]
    return have, "" if have else f"{found._name} has none of nvcompBatched{{{','.join(_ON_DEVICE)}}}*"


def library() -> ctypes.CDLL:
    """Open nvCOMP's library for devices; raises OSError."""
    directory = find_directory()
    return ctypes.CDLL(f"{directory}/{_LIBRARY}" if directory else _LIBRARY)


def codecs() -> list[dict[str, Any]]:
    """Return the core's table of codecs. Each opens what it needs, for good: so nobody else asks the core for it."""
    find()
    return _core.codecs()


def missing_codecs() -> dict[str, str]:
    """Return the codecs that do not work in this process, with what is missing and how to install it."""
    return {row["name"]: row["why_not"] for row in codecs() if row["why_not"]}


def check_works(codec: str) -> None:
    """Raise UsageError: the codec does not work in this process; the message says how to install what is missing."""
    if why_not := missing_codecs().get(codec):
        raise _core.UsageError(f"codec={codec} does not work here: {why_not}")


@functools.cache
def find() -> None:
    """Tell the core, once; without the wheel the loader's own paths are tried."""
    if directory := find_directory():
        _core.set_nvcomp_directory(directory)
