"""Libraries that stand before others in a process (``LD_PRELOAD``), compiled from a few lines of C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jobs


def library(folder: Path, code: str) -> Path:
    """A shared library of that code, which may include mpi.h."""
    source, made = folder / "preload.c", folder / "preload.so"
    source.write_text(code)
    mpicc = Path(jobs.mpiexec_command(1)[0]).with_name("mpicc")
    compiler = str(mpicc) if mpicc.exists() else shutil.which("mpicc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made
