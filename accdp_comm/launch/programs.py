"""The programs that start ranks: finding the one that belongs to our MPI, and its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import _core, own_programs
from ..launcher import is_launcher_variable
from .agent import CONTROL_VARIABLE
from .hosts import Host

LAUNCHERS = ("mpiexec", "srun", "torchrun")
_NAMES = ("mpiexec", "mpirun")
# How each family is kept on this host. Inside an allocation it would use all of it, and start its helpers there by
# programs of the scheduler that a container may not have.
_LOCAL = {
    "mpich": {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user", "I_MPI_HYDRA_BOOTSTRAP": "fork"},
    "openmpi": {
        "PRTE_MCA_ras": "^slurm,pbs,lsf,gridengine,flux",
        "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine,loadleveler",  # of version 4, as the next
        "OMPI_MCA_plm": "^slurm,tm,lsf",
    },
}


@dataclass(frozen=True)
class Program:
    """A command that starts ranks."""

    launcher: str  # one of LAUNCHERS
    command: list[str]  # without what it starts
    rank_variable: str  # in which it tells each process its rank
    # That the command needs, and ranks do not; None removes what neither should have.
    environment: Mapping[str, str | None] = field(default_factory=dict)
    hands_on: bool = True  # to its ranks, wherever they are, the environment that it is started in


def mpiexecs() -> list[str]:
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
    found = mpiexecs()
    for program in found:
        if flavour(program) == built_with:
            return program
    if not found:
        raise _core.UsageError("no mpiexec beside this Python or in PATH: install an MPI, as by `pip install mpich`")
    raise _core.UsageError(
        f"accdp was built with {built_with}, but {found[0]} belongs to another MPI: put the bin folder of {built_with} "
        "first in PATH, or build accdp again with the other MPI"
    )


def choose_launcher(asked: str, environment: Mapping[str, str]) -> str:
    """Return which launcher "auto" means: srun inside an allocation of Slurm, else mpiexec."""
    if asked != "auto":
        return asked
    return "srun" if "SLURM_JOB_ID" in environment and shutil.which("srun") else "mpiexec"


def allocated_hosts(environment: Mapping[str, str]) -> list[Host]:
    """Return the nodes of this allocation of Slurm, in its order; none where it names none.

    Raises:
        UsageError: scontrol, which can read how Slurm writes lists of nodes, does not run.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return []
    try:
        done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=20)
        said, names = done.stderr.strip() or f"status {done.returncode}", done.stdout.split()
    except (OSError, subprocess.TimeoutExpired) as error:
        said, names = str(error), []
    if not names:
        raise _core.UsageError(f"scontrol show hostnames {nodes}: {said}; name the hosts by --hosts FILE")
    return [Host(name, 0) for name in names]


def find_program(launcher: str, family: str, ranks: int, hosts: Sequence[Host]) -> Program:
    """Return the command that starts ``ranks`` processes, without what they are.

    Args:
        launcher: One of LAUNCHERS.
        family: Of the MPI that accdp was built with: "mpich" or "openmpi".
        ranks: Number of ranks.
        hosts: Where; empty for the launcher's own choice.
    Raises:
        UsageError: There is no such program, or it cannot do what is asked.
    """
    if launcher == "srun":
        return _srun(family, ranks, hosts, os.environ)
    if launcher == "torchrun":
        if hosts:
            raise _core.UsageError("--launcher torchrun starts one node; --hosts needs mpiexec or srun")
        command = own_programs.python("from torch.distributed.run import main; main()")
        command += ["--standalone", f"--nproc-per-node={ranks}"]
        command.append(f"--log-dir={os.devnull}")  # else a folder is left in the temporary one
        # What says that this process is a rank of MPI would say so to torchrun's, of a connection that they have not.
        strange: dict[str, str | None] = {
            name: None for name in os.environ if is_launcher_variable(name) and "_MCA_" not in name
        }
        if "OMP_NUM_THREADS" not in os.environ:
            strange["OMP_NUM_THREADS"] = "1"  # else it says that it sets this; ranks get a number of ours
        return Program("torchrun", [*command, "--no-python"], "RANK", strange)
    if family not in _LOCAL:
        raise _core.UsageError(
            "accdp was built with an MPI that is neither a relative of MPICH nor Open MPI: start ranks by its own "
            "launcher (mpirun python script.py, say), or by --launcher torchrun"
        )
    return mpiexec(find_mpiexec(family), family, ranks, hosts, is_root=os.geteuid() == 0)


def mpiexec(program: str, family: str, ranks: int, hosts: Sequence[Host] = (), *, is_root: bool = False) -> Program:
    """Return the command of an mpiexec.

    Args:
        program: Its path.
        family: Its flavour().
        ranks: Number of ranks.
        hosts: Where, with how many ranks on each; empty for this host, whatever a scheduler has allocated.
        is_root: Open MPI refuses to start as root unless told.
    """
    command = [program, "-n", str(ranks)]
    environment = {} if hosts else _LOCAL[family]
    if family == "openmpi":
        # Ranks often outnumber cores here, and we bind them ourselves.
        command += ["--oversubscribe", "--bind-to", "none", "-x", CONTROL_VARIABLE]
        command += ["--host", ",".join(f"{host.name}:{host.ranks}" for host in hosts)] if hosts else []
        command += ["--allow-run-as-root"] if is_root else []
        return Program("mpiexec", command, "OMPI_COMM_WORLD_RANK", environment, hands_on=not hosts)
    if hosts:  # in a file, because Intel MPI understands HOST:N nowhere else
        command += ["-machinefile", _nameless_file("".join(f"{host.name}:{host.ranks}\n" for host in hosts))]
    return Program("mpiexec", command, "PMI_RANK", environment)


def _nameless_file(text: str) -> str:
    """Return the path of a file for programs of this host to read, which is gone with this process."""
    file = _core.nameless_memory("accdp-hosts")
    os.write(file, text.encode())
    return f"/proc/{os.getpid()}/fd/{file}"


def _srun(family: str, ranks: int, hosts: Sequence[Host], environment: Mapping[str, str]) -> Program:
    program = shutil.which("srun")
    if program is None:
        raise _core.UsageError("--launcher srun: there is no srun in PATH")
    command = [program, f"--ntasks={ranks}", f"--mpi={'pmi2' if family == 'mpich' else 'pmix'}"]
    # We bind ranks ourselves; and the environment is theirs, whatever sbatch --export said of this script's own.
    command += ["--cpu-bind=none", "--export=ALL"]
    if "SLURM_JOB_ID" in environment:
        command.append("--overcommit")  # ranks often outnumber cores; without an allocation it would ask for few
    if "SLURM_STEP_ID" in environment:
        command.append("--overlap")  # this process is itself a step, which holds the CPUs
    if hosts:  # each named once per rank, which srun takes for the ranks' places if that is how they are distributed
        places = ",".join(host.name for host in hosts for _ in range(host.ranks))
        command += [f"--nodelist={places}", f"--nodes={len(hosts)}", "--distribution=arbitrary"]
    return Program("srun", command, "SLURM_PROCID")


def rank_command(command: Sequence[str], *, module: bool = False) -> list[str]:
    """Return what a rank executes: Python scripts and modules run under this Python.

    Args:
        command: Script or program and its arguments.
        module: ``command[0]`` is a Python module, as for ``python -m``.
    Raises:
        UsageError: The script or program does not exist.
    """
    first = command[0]
    if module:
        return [sys.executable, "-u", "-m", *command]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise _core.UsageError(f"{first}: no such file")
        return [sys.executable, "-u", *command]
    if shutil.which(first) is None:
        raise _core.UsageError(f"{first}: neither a Python script (*.py) nor a program that can be run")
    return list(command)
