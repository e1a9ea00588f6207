"""`accdp run`: start a script on n ranks with the mpiexec that belongs to the MPI accdp was built with.

This process becomes mpiexec (exec), so signals, Ctrl-C, input and exit code are mpiexec's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import _core

_NAMES = ("mpiexec", "mpirun")


def launchers() -> list[str]:
    """Return the mpiexec programs there are: beside this Python first, then along PATH."""
    # Not resolved: in a virtual environment sys.executable is a link, and its mpiexec lies beside the link.
    places = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    found = (shutil.which(name, path=place) for place in places if place for name in _NAMES)
    return list(dict.fromkeys(program for program in found if program))


def flavour(program: str) -> str:
    """Return whose mpiexec this is: "mpich" (Hydra, Intel MPI too), "openmpi" or "other"."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "other"
    text = done.stdout + done.stderr
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "openmpi"
    if "HYDRA" in text or "MPICH" in text or "Intel(R) MPI" in text:
        return "mpich"
    return "other"


def find_mpiexec(built_with: str) -> str:
    """Return the first mpiexec of the MPI family that accdp was built with.

    Raises:
        UsageError: There is none; ranks started by another MPI's launcher would each be a world of one.
    """
    found = launchers()
    for program in found:
        if flavour(program) == built_with:
            return program
    if not found:
        raise _core.UsageError("no mpiexec beside this Python or in PATH: install an MPI, as by `pip install mpich`")
    raise _core.UsageError(
        f"accdp was built with {built_with}, but {found[0]} belongs to another MPI: put the bin folder of {built_with} "
        "first in PATH, or build accdp again with the other MPI"
    )


def command_line(
    program: str, family: str, ranks: int, command: Sequence[str], *, module: bool = False, is_root: bool = False
) -> list[str]:
    """Return the whole command that starts ``ranks`` ranks of ``command``.

    Args:
        program: The mpiexec.
        family: Its flavour().
        ranks: Number of ranks.
        command: Script or program and its arguments.
        module: ``command[0]`` is a Python module, as for ``python -m``.
        is_root: Open MPI refuses to start as root unless told.
    Raises:
        UsageError: The script or program does not exist.
    """
    line = [program, "-n", str(ranks)]
    if family == "openmpi":
        # Ranks often outnumber cores here, and their threads must not all be bound to one.
        line += ["--oversubscribe", "--bind-to", "none"]
        if is_root:
            line.append("--allow-run-as-root")
    first = command[0]
    if module:
        return [*line, sys.executable, "-u", "-m", *command]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise _core.UsageError(f"{first}: no such file")
        return [*line, sys.executable, "-u", *command]
    if shutil.which(first) is None:
        raise _core.UsageError(f"{first}: neither a Python script (*.py) nor a program that can be run")
    return [*line, *command]


def threads_per_rank(ranks: int) -> int:
    """Return how many threads each rank's libraries should use so that all ranks together fill the cores."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def run(ranks: int, command: Sequence[str], *, module: bool = False) -> None:
    """Become the mpiexec that runs ``command`` on ``ranks`` ranks; does not return.

    Raises:
        UsageError: No mpiexec of the right MPI, or no such command.
    """
    from .. import mpi_world

    family = mpi_world.load().abi()
    program = find_mpiexec(family)
    line = command_line(program, family, ranks, command, module=module, is_root=os.geteuid() == 0)
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
    if sys.stdout.isatty():
        # Ranks write into mpiexec's pipes. This is how rich, which draws the progress bars, learns where they end up.
        environment.setdefault("TTY_COMPATIBLE", "1")
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    sys.stdout.flush()
    os.execve(program, line, environment)
