"""Which MPI launcher started this process, read from the environment alone: no MPI is loaded here."""

from __future__ import annotations

import os
import select
import socket
import struct
from dataclasses import dataclass

from . import _core

# What says that this process is an MPI rank: (variable, who sets it, variable with the number of ranks or "").
_SIGNS = (
    ("PMI_FD", "mpiexec (MPICH family) or srun --mpi=pmi2", "PMI_SIZE"),
    ("PMI_PORT", "mpiexec (MPICH family)", "PMI_SIZE"),
    ("PMI_RANK", "mpiexec (MPICH family)", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "a PMIx launcher", ""),
)
# Everything a launcher says to MPI: hidden while ranks that it did not start form a world of their own.
LAUNCHER_VARIABLES = (
    *("PMI_FD", "PMI_PORT", "PMI_ID", "PMI_RANK", "PMI_SIZE", "PMI_SPAWNED", "PMI_JOBID"),
    *("PMIX_RANK", "PMIX_NAMESPACE"),
)


@dataclass(frozen=True)
class Launcher:
    """The launcher that started this process as one of its ranks."""

    name: str
    size: int  # number of ranks; 0 where the environment does not tell
    minds_deaths: bool = True  # ends all ranks when one dies or leaves without MPI_Finalize


def is_launcher_variable(name: str) -> bool:
    """Whether a launcher tells its ranks something by this variable."""
    return name in LAUNCHER_VARIABLES or name.startswith(("PMIX_", "OMPI_", "PRTE_"))


def find_launcher() -> Launcher | None:
    """Return the MPI launcher of which this process is a rank, or None.

    A child of a rank (a worker of torchrun under mpiexec, a test's subprocess) inherits the variables without being a
    rank itself: torchrun says so by its own variable, and MPICH's connection is closed in a child.

    Raises:
        UsageError: The variables name several ranks, but the connection to the launcher is not open here.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    _, name, size = _sign()
    if not _reaches_pmi() and not _is_below_open_mpi():
        if "RANK" in os.environ or size <= 1:
            return None
        raise _core.UsageError(
            f"PMI_FD={os.environ['PMI_FD']} is not open in this process, so it cannot reach the launcher that "
            f"started {size} ranks: start Python directly by mpiexec or srun, or unset PMI_FD, PMI_RANK, PMI_SIZE"
        )
    return Launcher(name, size, minds_deaths=not is_srun_pmi2()) if name else None


def ranks_started() -> int:
    """Return how many ranks the launcher started of which this is one, or a child of one; 0 where nothing tells."""
    return _sign()[2]


def rank_variable() -> str:
    """Return which variable tells the launcher's ranks apart; empty where none does."""
    found = _sign()[0]
    name = "PMI_RANK" if found.startswith("PMI_") else found
    return name if name in os.environ else ""


def _sign() -> tuple[str, str, int]:
    """Return what says that this is a rank or the child of one, who started that, and how many; "" and 0 if nobody."""
    outer = "PMI_" if _is_below_open_mpi() else "none"
    for variable, name, size_variable in _SIGNS:
        if variable in os.environ and not variable.startswith(outer):
            return variable, name, _number(size_variable) or _number("SLURM_STEP_NUM_TASKS")
    return "", "", 0


def _is_below_open_mpi() -> bool:
    """Whether mpirun of Open MPI is the nearest launcher: it hands on what one around it said, such as srun's PMI_*."""
    return "OMPI_COMM_WORLD_RANK" in os.environ and ("MPI_LOCALNRANKS" not in os.environ or not _reaches_pmi())


def _reaches_pmi() -> bool:
    """Whether this process has the connection to a launcher of MPICH's kind, where one is named."""
    return "PMI_FD" not in os.environ or _is_launchers(os.environ["PMI_FD"])


def seat() -> str:
    """Return which of the launcher's ranks this process is, or is a child of; empty where no variable says it."""
    # Both: a launcher within a step of another hands on what that said.
    return "/".join(os.environ[name] for name in ("PMIX_RANK", "PMI_RANK") if name in os.environ)


def refuse_srun_without_mpi() -> None:
    """Raise UsageError in a Slurm step of several tasks without MPI: each task would be a world of its own."""
    tasks = _number("SLURM_STEP_NUM_TASKS")
    if tasks > 1 and find_launcher() is None:
        raise _core.UsageError(
            f"srun started {tasks} tasks without an MPI plug-in, so they cannot find each other: use srun --mpi=pmi2 "
            "(MPICH), srun --mpi=pmix (Open MPI), or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )


def is_srun_pmi2() -> bool:
    """Whether srun --mpi=pmi2 started this rank: unless Slurm is told otherwise, it lets ranks survive each other.

    A mpiexec inside a task of srun hands srun's PMI_JOBID on, and adds what only MPICH's family or Open MPI sets.
    """
    inner = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_RANK"}
    return {"PMI_JOBID", "PMI_FD"} <= os.environ.keys() and inner.isdisjoint(os.environ)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process (0: of another namespace) and the user that made the other end of a socket of Unix's kind."""
    process, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def _is_launchers(text: str) -> bool:
    """Whether a descriptor can be the connection to the launcher, and not another one that has got its number since.

    srun closes its end when a rank has finalised MPI, so what a shell starts after the first is alone. Those of
    mpiexec and srun are of Unix's own kind, and made by them; a rank's child makes its own, for asyncio and
    multiprocessing among others, and connects to other programs by the network.
    """
    try:
        number = int(text)
        is_blocking = os.get_blocking(number)
        connection = socket.socket(fileno=number)
    except (ValueError, OSError, OverflowError):
        return False
    is_made_by_others = connection.family == socket.AF_UNIX and peer_of(connection)[0] != os.getpid()
    connection.detach()
    os.set_blocking(number, is_blocking)  # socket.setdefaulttimeout() changes it
    return is_made_by_others and not _is_hung_up(number)


def _is_hung_up(connection: int) -> bool:
    """Whether the other end has been closed."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))
