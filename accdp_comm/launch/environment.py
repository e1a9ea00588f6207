"""The environment variables that a rank gets on top of what its launcher gave it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..launcher import LAUNCHER_VARIABLES, is_launcher_variable
from .placement import Place

MPS_VARIABLES = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
_MASTER_VARIABLE = "ACCDP_RUN_MASTER"  # the meeting place that `accdp run` chose


@dataclass(frozen=True)
class MpsShare:
    """What a rank needs to be a client of the MPS daemon of its GPU."""

    pipe_directory: str
    log_directory: str
    thread_percentage: int  # 100: not limited
    memory_limit_bytes: int  # 0: not limited


def rank_environment(
    rank: int,
    size: int,
    place: Place,
    master: tuple[str, int],
    inherited: Mapping[str, str],
    *,
    node_local_rank: bool = False,
    mps: MpsShare | None = None,
    tuned: Mapping[str, str] | None = None,
    is_served: bool = False,
    hides_launcher: bool = False,
) -> dict[str, str | None]:
    """Return the variables of one rank; None removes one.

    Args:
        rank, size: In the job.
        place: On the node.
        master: Address and port at which rank 0 may open torch's store, or finds it.
        inherited: Environment of `accdp run`: what is set there by the user stays.
        node_local_rank: LOCAL_RANK counts the ranks of the node even where each sees one GPU.
        mps: Its share of the GPU; None without MPS.
        tuned: From a profile.
        is_served: A store is there, at `master`.
        hides_launcher: The rank is not to be one of the launcher's MPI world.
    """
    sees_one_gpu = place.gpu is not None and not node_local_rank
    variables: dict[str, str | None] = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        # Scripts use it as the number of their device, and the rank's only GPU is cuda:0.
        "LOCAL_RANK": "0" if sees_one_gpu else str(place.local_rank),
        "LOCAL_WORLD_SIZE": "1" if sees_one_gpu else str(place.local_size),
        "ACCDP_LOCAL_RANK": str(place.local_rank),
        "ACCDP_LOCAL_SIZE": str(place.local_size),
    }
    # A user who named a meeting place knows why. That of a job around this one is its own.
    theirs = (inherited.get("MASTER_ADDR"), inherited.get("MASTER_PORT"))
    is_inside = "TORCHELASTIC_RUN_ID" in inherited
    of_torchrun = [name for name in inherited if name.startswith("TORCHELASTIC_")] if is_inside else []
    if is_inside or not all(theirs) or inherited.get(_MASTER_VARIABLE) == "{}:{}".format(*theirs):
        theirs = (master[0], str(master[1]))
        variables[_MASTER_VARIABLE] = "{}:{}".format(*master)
    # Theirs, too: torchrun as a launcher has given its workers its own, at which it says that a store is there already.
    # Here rank 0 opens one.
    variables |= dict(zip(("MASTER_ADDR", "MASTER_PORT"), theirs, strict=True))
    variables |= dict.fromkeys(("TORCHELASTIC_USE_AGENT_STORE", *of_torchrun))
    if is_served and _MASTER_VARIABLE in variables:
        variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    if hides_launcher:
        variables |= dict.fromkeys((*LAUNCHER_VARIABLES, *filter(is_launcher_variable, inherited)))
    if "OMP_NUM_THREADS" not in inherited:
        variables["OMP_NUM_THREADS"] = str(place.threads)
    if place.gpu is not None:
        variables |= {
            "CUDA_VISIBLE_DEVICES": place.gpu.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "ACCDP_RANKS_PER_GPU": str(place.ranks_on_gpu),
        }
    if mps is not None:
        variables |= mps_variables(mps)
    for name, value in (tuned or {}).items():
        if name not in inherited:
            variables[name] = value
    return variables


def mps_variables(share: MpsShare) -> dict[str, str | None]:
    """Return the variables of a client of MPS."""
    # The limit names devices as the client sees them, and it sees one.
    limit = f"0={share.memory_limit_bytes >> 20}M" if share.memory_limit_bytes else None
    percentage = str(share.thread_percentage) if share.thread_percentage < 100 else None
    values = (share.pipe_directory, share.log_directory, percentage, limit)
    return dict(zip(MPS_VARIABLES, values, strict=True))
