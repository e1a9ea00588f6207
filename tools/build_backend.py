"""The build backend of pyproject.toml: setuptools, plus the answer to "what must be there to build?".

pip builds in an environment of its own. It must not bring a torch or an MPI there when the environment that will run
accdp has one: compiled against another release, the module would not load. So they are asked for only if missing.
"""

from __future__ import annotations

import toolchain
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def _native_requirements() -> list[str]:
    needed = [line for line in toolchain.read_requirements("build.txt") if not line.startswith("setuptools")]
    if toolchain.torch_if_any() is None:
        needed += toolchain.read_requirements("torch.txt")
    if toolchain.mpicc_if_any() is None:
        needed += toolchain.read_requirements("mpi.txt")
    return needed


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """What pip installs before it builds a wheel."""
    toolchain.find_compiler()  # before anything is downloaded
    return build_meta.get_requires_for_build_wheel(config_settings) + _native_requirements()


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """What pip installs before ``pip install -e .``."""
    return get_requires_for_build_wheel(config_settings)
