"""The ranks of a run: who they are, a barrier between calls, and the exchange of what they measured."""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from .operations import Refused, RefusedAlone

# Where launchers write a process's rank, read before there is a world, to let one rank speak for all; and their number.
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID")
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


class World(Protocol):
    """What the harness needs of a set of ranks."""

    rank: int
    size: int
    barrier: Callable[[], object]

    def allgather(self, value: Any) -> list[Any]:
        """Return the value of each rank. Collective."""

    def close(self) -> None:
        """Leave. Collective."""


class AccdpWorld:
    """All ranks of the job, whatever started them, through accdp."""

    barrier: Callable[[], object]

    def __init__(self) -> None:
        from .. import _core
        from ..communicator import Communicator

        try:
            self.comm = Communicator()
        except _core.UsageError as error:  # what this process was told by its environment makes no sense
            raise RefusedAlone(str(error)) from error
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.barrier

    def allgather(self, value: Any) -> list[Any]:
        from .. import _core

        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        try:
            lengths = self.comm.allgather(np.array([mine.size], np.int64)).ravel().tolist()
        except _core.UsageError as error:  # on all ranks: a setting that this group cannot follow
            raise Refused(str(error)) from error
        parts = [np.empty(length, np.uint8) for length in lengths]
        self.comm.allgather(mine, parts)
        return [pickle.loads(part.tobytes()) for part in parts]

    def close(self) -> None:
        self.comm.close()


class MpiWorld:
    """MPI.COMM_WORLD through mpi4py alone."""

    barrier: Callable[[], object]

    def __init__(self) -> None:
        try:
            comm = import_mpi().COMM_WORLD
        except Refused as error:
            raise RefusedAlone(str(error)) from error
        started = max((int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdecimal()), default=1)
        if comm.Get_size() == 1 and started > 1:
            raise Refused(
                f"--backend mpi: MPI sees a world of 1 where there are {started} ranks: start the ranks by the mpiexec "
                "of the MPI that mpi4py loads"
            )
        self.rank, self.size, self.barrier = comm.Get_rank(), comm.Get_size(), comm.Barrier
        self._comm = comm

    def allgather(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    def close(self) -> None:
        pass


def need_core() -> None:
    """Load accdp's core.

    Raises:
        RefusedAlone: It is not there, or does not load.
    """
    try:
        importlib.import_module("accdp_comm._core")
    except ImportError as error:
        raise RefusedAlone(f"accdp's core could not be loaded: {error}") from error


def load_mpi() -> Any:
    """Return mpi4py's module MPI without initialising MPI.

    Raises:
        Refused: mpi4py is missing, or finds no MPI.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Refused(f"--backend mpi: mpi4py is needed: {str(error).splitlines()[0]}") from error
    return MPI


def import_mpi() -> Any:
    """Return mpi4py's module MPI, MPI being initialised.

    Raises:
        Refused: mpi4py is missing, or finds no MPI.
    """
    mpi = load_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        atexit.register(mpi.Finalize)
    return mpi


def early_rank() -> int:
    """Return this process's rank as its launcher says it, 0 where none does."""
    if not is_one_of_several():  # somebody has left a rank's variable in the environment
        return 0
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdecimal()), 0)


def is_one_of_several() -> bool:
    """Whether a launcher says that there are more ranks than this process."""
    return any(os.environ.get(name, "").isdecimal() and int(os.environ[name]) > 1 for name in _SIZES)


def hosts_and_local_rank(world: World) -> tuple[list[str], int]:
    """Return each rank's host, and this rank's number among those of its own. Collective."""
    hosts = world.allgather(socket.gethostname())
    return hosts, hosts[: world.rank].count(hosts[world.rank])


def agree(world: World, problem: str | None) -> None:
    """Raise Refused on all ranks if one has a problem. Collective."""
    problems = world.allgather(problem)
    for rank, text in enumerate(problems):
        if text is not None:
            raise Refused(text if set(problems) == {text} else f"rank {rank} of {world.size}: {text}")
