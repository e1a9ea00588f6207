"""Why MPS cannot be used here: reasons in one sentence each, with what to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..gpus import Gpu, driver_cuda, list_gpus, processes
from .control import BINARY, PID_FILE, SERVER, find_binary

# What ranks do where somebody else is to run MPS.
AS_IT_IS = (
    "use that one as it is, without limits of accdp's and without its looking after them, or take turns on their GPU "
    "where nothing serves it"
)
_VOLTA = 7.0
_DEFAULT = "/tmp/nvidia-mps"  # where CUDA looks for a daemon when nobody says where


def client_limit(cuda: tuple[int, int]) -> int:
    """Return how many clients a GPU takes under a driver for this version of CUDA."""
    return 60 if cuda >= (13, 1) else 48


def somebody_elses(environment: Mapping[str, str], kept: Collection[str] = ()) -> str:
    """Return which MPS that is not of this job all programs here use by themselves; empty where there is none.

    Args:
        environment: Of the launcher.
        kept: The pipe directories of daemons that `accdp mps start` keeps.
    """
    theirs = environment.get("CUDA_MPS_PIPE_DIRECTORY")
    if theirs and theirs not in kept:
        return (
            f"CUDA_MPS_PIPE_DIRECTORY={theirs} is set, so somebody else runs MPS for this job; --mps off uses it as "
            "it is, unset it to have daemons of accdp's own"
        )
    if not theirs and (pid := _system_daemon()):
        return (
            f"an MPS daemon (pid {pid}) serves {_DEFAULT}, where all programs find it, so somebody else runs MPS here; "
            "--mps off uses it as it is, end it to have daemons of accdp's own"
        )
    return ""


def why_not(gpus: Sequence[Gpu], ranks_per_gpu: int) -> str:
    """Return why these GPUs cannot be shared through daemons of ours; empty if they can.

    Args:
        gpus: That the job uses.
        ranks_per_gpu: Most ranks on one of them.
    """
    if find_binary() is None:
        return f"{BINARY} is not in PATH; it comes with NVIDIA's driver (nvidia-compute-utils)"
    for gpu in gpus:
        if gpu.is_mig:
            return f"GPU {gpu.index} ({gpu.name}) is divided by MIG; turn MIG off (nvidia-smi -mig 0), or use --mps off"
        if 0 < gpu.compute_capability < _VOLTA:
            return (
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.compute_capability}: before 7.0 (Volta) a "
                "fault of one client is not kept from the others, and clients cannot be limited"
            )
    cuda = driver_cuda()
    limit = client_limit(cuda)
    if ranks_per_gpu > limit:
        return f"{ranks_per_gpu} ranks per GPU, but MPS takes {limit} clients (driver for CUDA {cuda[0]}.{cuda[1]})"
    strangers = foreign_servers()
    places = processes(list_gpus({}).gpus) if strangers else {}
    for pid, uid in strangers:
        where = {uuid for uuid, pids in places.items() if pid in pids}
        if where and where.isdisjoint(gpu.uuid for gpu in gpus):
            continue  # it is seen on other GPUs alone
        return (
            f"user {uid} runs an MPS server (pid {pid}) here: a GPU serves one user's server at a time, and clients of "
            "others would wait for it"
        )
    return ""


def _system_daemon() -> int:
    """Return the pid of a daemon that programs find without being told; 0 where there is none."""
    try:
        # Its folder may be any user's: a pipe there must not keep us, nor a device fill our memory.
        file = os.open(os.path.join(_DEFAULT, PID_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            pid = int(os.read(file, 32)) if stat.S_ISREG(os.fstat(file).st_mode) else 0
        finally:
            os.close(file)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if any(os.path.basename(word) == BINARY.encode() for word in words[:2]) else 0


def foreign_servers() -> list[tuple[int, int]]:
    """Return (pid, uid) of MPS servers of other users that can be seen."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            uid = os.stat(f"/proc/{name}").st_uid
            if uid == os.getuid():
                continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or is hidden from us
        if any(os.path.basename(word) == SERVER.encode() for word in words[:2]):
            found.append((int(name), uid))
    return found
