"""The command `accdp doctor`, and the table of its checks."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from ..readers import at_least
from . import findings


def add_parser(commands: Any) -> None:
    """Add `accdp doctor` to the commands."""
    doctor = commands.add_parser("doctor", help="check what usually goes wrong, and say what to do")
    doctor.add_argument("--json", action="store_true", help="as JSON, with how each thing was found out")
    count = at_least(1, "a number of ranks")
    doctor.add_argument("-n", "--ranks", type=count, metavar="N", help="ranks that are to run on this node")


def table(ranks: int | None = None) -> list[findings.Check]:
    """Return all checks in the order in which they help."""
    from ..launch import gpus
    from . import gpu, libraries, system

    row = findings.Check
    return [
        row("torch", "loads torch and accdp's backend, compares releases", libraries.torch),
        row("mpi", "loads and initialises the MPI that accdp was built with", libraries.mpi),
        row("mpiexec", "asks each mpiexec in PATH for its version", libraries.mpiexec),
        row("mpi4py", "asks mpi4py's MPI for its version, compares families", libraries.mpi4py),
        row("libmpi", "loads torch, accdp and mpi4py, reads /proc/self/maps", libraries.libmpi),
        row(
            "cuda-aware",
            "asks MPI (MPIX_Query_cuda_support, MPIX_GPU_query_support)",
            lambda: libraries.cuda_aware(bool(gpus.list_gpus().gpus)),
        ),
        row("codecs", "loads nvCOMP and libzstd", libraries.codecs),
        row("gpus", "asks NVML or nvidia-smi", gpu.devices),
        row("mps", "reads records of daemons, asks GPUs, /proc and PATH", gpu.mps),
        row("/dev/shm", "statvfs", system.shared_memory),
        row("memlock", "getrlimit, /sys/class/infiniband", system.locked_memory),
        row("cores", "affinity mask, cgroup quota", lambda: system.cores(ranks)),
        row("/proc", "opens memory of this process from another one", system.process_table),
        row("host name", "getaddrinfo", system.host_name),
        row("environment", "parses all settings, looks for a launcher's variables", system.environment),
    ]


def main(options: argparse.Namespace) -> int:
    """Run `accdp doctor`; return 1 if something failed, else 0."""
    width = shutil.get_terminal_size().columns
    rows = []
    for row in findings.run(table(options.ranks)):
        rows.append(row)
        if not options.json:
            print(findings.as_text(row, width), flush=True)  # some checks take seconds
    print(findings.as_json(rows) if options.json else findings.summary(rows))
    return findings.exit_code(rows)
