"""Checks of the machine: shared memory, limits, cores, /proc, the host's name, the environment."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import _core, addresses, cpus, settings
from ..cards import declared_nodes
from ..launcher import find_launcher
from .findings import FAIL, OK, WARN, Finding

_MIB = 1 << 20
_SHM_NEEDED, _SHM_USUAL = 64 * _MIB, 1024 * _MIB
_MEMLOCK_RDMA = 1024 * _MIB
# A rank opens the memory that another rank of its node made.
_OPEN_MEMORY = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR))"
# Variables that are no setting of the table: set by `accdp run` and the tuner, or read by tests, benches and the build.
_OTHER_VARIABLES = (
    "ACCDP_RUN_",
    "ACCDP_TUNED_",
    "ACCDP_TEST_",
    "ACCDP_RENEW_FIXTURES",
    "ACCDP_FUZZ_SEEDS",
    "ACCDP_BENCH_",
    "ACCDP_COMMIT",
    "ACCDP_LOCAL_",
    "ACCDP_RANKS_PER_GPU",
    "ACCDP_FAILURE_",
    "ACCDP_CUDA",
)


def shared_memory(folder: str = "/dev/shm") -> Finding:
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding(FAIL, f"{folder}: {error.strerror}", f"mount a tmpfs there: mount -t tmpfs none {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(FAIL, f"{folder} is not writable", f"chmod 1777 {folder}")
    return judge_shared_memory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def judge_shared_memory(total_bytes: int, free_bytes: int) -> Finding:
    said = f"{free_bytes / _MIB:.0f} of {total_bytes / _MIB:.0f} MiB are free"
    if free_bytes < _SHM_NEEDED:
        advice = "remove files that a crash left there; in a container: docker run --shm-size=8g or --ipc=host"
        return Finding(FAIL, said, advice)
    if total_bytes < _SHM_USUAL:
        advice = "MPI and DataLoader workers keep data there; in a container: docker run --shm-size=8g or --ipc=host"
        return Finding(WARN, said, advice)
    return Finding(OK, said)


def locked_memory() -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    devices = Path("/sys/class/infiniband")
    return judge_locked_memory(soft, devices.is_dir() and any(devices.iterdir()))


def judge_locked_memory(soft_limit: int, has_rdma: bool) -> Finding:
    """``soft_limit`` in bytes, or resource.RLIM_INFINITY."""
    said = "unlimited" if soft_limit == resource.RLIM_INFINITY else f"{soft_limit / _MIB:.0f} MiB"
    if not has_rdma:
        return Finding(OK, f"{said}; no RDMA device needs more")
    if soft_limit == resource.RLIM_INFINITY or soft_limit >= _MEMLOCK_RDMA:
        return Finding(OK, said)
    return Finding(
        WARN,
        f"{said}, but there are RDMA devices, whose buffers are locked",
        "ulimit -l unlimited (limits.conf: * - memlock unlimited; Slurm: PropagateResourceLimitsExcept=MEMLOCK)",
    )


def cores(ranks: int | None) -> Finding:
    available = len(os.sched_getaffinity(0))
    return judge_cores(available, os.cpu_count() or available, cpus.quota(), ranks)


def judge_cores(available: int, machine: int, quota: float | None, ranks: int | None) -> Finding:
    """Judge the cores that this process may use, of those of the machine, under a quota, for so many ranks."""
    said = f"{available} of {machine} CPUs may be used" + (f", and {quota:g} at a time" if quota else "")
    usable = min(float(available), quota or float(available))
    if available == 1 < machine:
        return Finding(
            WARN, said, "ranks started here share one core: leave the binding to accdp run (mpiexec --bind-to none)"
        )
    if quota and quota < available:
        return Finding(WARN, said, "the container's quota stops all threads once it is used up: raise it, or use fewer")
    if ranks and ranks > usable:
        return Finding(WARN, f"{said}, for {ranks} ranks", "ranks will take turns: use fewer, or expect less speed")
    return Finding(OK, said)


def process_table() -> Finding:
    memory = _core.nameless_memory("accdp-doctor")
    try:
        path = f"/proc/{os.getpid()}/fd/{memory}"
        command = [sys.executable, "-I", "-S", "-c", _OPEN_MEMORY, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    finally:
        os.close(memory)
    if done.returncode == 0:
        return Finding(OK, "processes of this user can open each other's memory")
    return Finding(
        FAIL,
        f"opening {path} from another process failed: {done.stderr.strip().splitlines()[-1]}",
        "ranks of a node share memory so: mount /proc without hidepid, run ranks in one container and as one user",
    )


def host_name() -> Finding:
    name = socket.gethostname()
    found = addresses.resolve(name)
    if found:
        is_local = all(address.startswith("127.") for address in found)
        return Finding(OK, f"{name} is {', '.join(found)}{' (no other host reaches that)' if is_local else ''}")
    return Finding(
        WARN, f"{name} has no IPv4 address", f"mpiexec on several hosts needs one: add {name} to /etc/hosts or to DNS"
    )


def environment() -> Finding:
    try:
        known = {row.env for row in settings.table()}
        declared_nodes(settings.value_of("topology"))
        launcher = find_launcher()
    except _core.UsageError as error:
        return Finding(FAIL, str(error), "correct or unset it")
    strange = unknown_variables(sorted(os.environ), known)
    if strange:
        return Finding(WARN, f"{', '.join(strange)}: no such setting", "see docs/environment.md; is it misspelt?")
    return Finding(OK, f"a rank of {launcher.name}" if launcher else "no launcher's variables, no unknown settings")


def unknown_variables(names: Sequence[str], known: set[str]) -> list[str]:
    """Return those variables of accdp that nobody reads."""
    ours = [name for name in names if name.startswith("ACCDP_") and name not in known]
    return [name for name in ours if not name.startswith(_OTHER_VARIABLES)]
