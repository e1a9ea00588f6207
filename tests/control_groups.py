"""Made-up control groups, for what reads limits there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def lay_out(folder: Path, membership: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Write what /proc/self/cgroup says and the groups' files; return the paths of both, as cgroups.groups() takes."""
    (folder / "cgroup").write_text(membership)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "cgroup"), str(folder / "fs")
