"""Which GPU and which cores each rank of a node gets, and its share of the GPU. Pure: no process, no GPU is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .. import _core
from ..cpus import busy_cores
from .gpus import Gpu


@dataclass(frozen=True)
class Place:
    """Where one rank of a node runs."""

    local_rank: int  # 0-based among the ranks of its node, in the order of their ranks
    local_size: int
    gpu: Gpu | None
    ranks_on_gpu: int  # ranks that share the GPU, this one counted; 0 without a GPU
    cpus: list[int]  # to bind to; empty: not bound
    threads: int  # for OMP_NUM_THREADS: cores of its own, or 1 where cores are shared


def place_ranks(
    ranks: int,
    cores: Sequence[Sequence[int]],
    gpus: Sequence[Gpu] = (),
    near: Mapping[str, frozenset[int]] | None = None,
    *,
    bind: bool = True,
    quota: float | None = None,
) -> list[Place]:
    """Place the ranks of one node.

    Args:
        ranks: How many.
        cores: CPUs that ranks may use, those of one core together.
        gpus: To be shared by the ranks; neighbours in rank order share a GPU, so that they also reduce there first.
        near: CPUs of each GPU's NUMA node, by UUID; empty or missing where unknown.
        bind: Give each rank cores of its own.
        quota: CPUs' time that the ranks may use together; None for all of it.
    """
    on_gpu = share(ranks, len(gpus)) if gpus else []
    gpu_of = [gpu for gpu, count in zip(gpus, on_gpu, strict=True) for _ in range(count)] if gpus else [None] * ranks
    counts = [count for count in on_gpu for _ in range(count)] if gpus else [0] * ranks
    wished = [(near or {}).get(gpu.uuid, frozenset()) if gpu else frozenset() for gpu in gpu_of]
    bound = share_cores(cores, wished, quota)
    return [
        Place(rank, ranks, gpu_of[rank], counts[rank], sorted(cpus) if bind else [], threads)
        for rank, (cpus, threads) in enumerate(bound)
    ]


def share(total: int, parts: int) -> list[int]:
    """Divide ``total`` things into parts that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def share_cores(
    cores: Sequence[Sequence[int]], wished: Sequence[frozenset[int]], quota: float | None
) -> list[tuple[list[int], int]]:
    """Give each rank whole cores of its own, near its GPU; where ranks outnumber cores, all those cores together.

    A quota below the number of cores gives time, not cores: others use the same ones, and the kernel alone knows which
    are free. Then too ranks get all of them, and as many threads as the quota pays for.

    Args:
        cores: CPUs by core.
        wished: Per rank the CPUs that it should be among; empty for any.
        quota: CPUs' time that the ranks may use together; None for all of it.
    Returns:
        Per rank its CPUs and how many cores it has for itself alone (at least 1).
    """
    every = frozenset(cpu for core in cores for cpu in core)
    groups = _groups(every, wished)
    is_limited = quota is not None and quota < len(every)
    placed: list[tuple[list[int], int]] = [([], 1)] * len(groups)
    for group in dict.fromkeys(groups):
        members = [rank for rank, other in enumerate(groups) if other == group]
        inside = [core for core in cores if group.issuperset(core)] or [sorted(group)]
        if len(members) > len(inside) or is_limited:
            # Pinned two to a core while another core idles would be worse than to let the kernel choose.
            cpus = sorted(cpu for core in inside for cpu in core)
            threads = max(1, min(busy_cores(len(cores), quota) // len(groups), len(inside) // len(members)))
            for rank in members:
                placed[rank] = (cpus, threads)
            continue
        taken = 0
        for rank, count in zip(members, share(len(inside), len(members)), strict=True):
            placed[rank] = ([cpu for core in inside[taken : taken + count] for cpu in core], count)
            taken += count
    return placed


def _groups(every: frozenset[int], wished: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return per rank the CPUs that it divides with those who have the same; no others have any of them."""
    # CPUs that the affinity mask forbids cannot be had: then any will do.
    known = [wish & every for wish in wished]
    if any(one != other and one & other for one in set(known) for other in set(known)):
        return [every] * len(wished)
    members = {group: known.count(group) for group in known if group}
    if rest := every.difference(*members):
        members[rest] = 0
    groups = []
    for group in known:
        if not group:  # where the share is largest: what nobody wishes, or beside others
            group = max(members, key=lambda one: len(one) / (members[one] + 1))
            members[group] += 1
        groups.append(group)
    return groups


def count_ranks(ranks: int | None, ranks_per_gpu: int | None, gpus: int) -> int:
    """Return the number of ranks of a job on one node.

    Args:
        ranks: ``-n``, or None.
        ranks_per_gpu: ``--ranks-per-gpu``, or None.
        gpus: GPUs of the node.
    Raises:
        UsageError: More ranks than ``ranks_per_gpu`` allows.
    """
    if ranks_per_gpu is None:
        assert ranks is not None
        return ranks
    room = ranks_per_gpu * gpus
    if ranks is not None and ranks > room:
        raise _core.UsageError(f"-n {ranks}: --ranks-per-gpu {ranks_per_gpu} on {gpus} GPUs has room for {room}")
    return room if ranks is None else ranks


def all_cores(shown: Iterable[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the cores, each as its CPUs, that processes of a node may use together.

    Args:
        shown: Those of each process. A launcher may have bound it to a part of them, or of a core.
    """
    found: list[set[int]] = []
    for core in sorted({tuple(core) for cores in shown for core in cores}):
        parts = [one for one in found if one.intersection(core)]
        found = [one for one in found if one not in parts] + [set(core).union(*parts)]
    return sorted(map(sorted, found))


def check_room(host: str, ranks: int, ranks_per_gpu: int, gpus: int, why_none: str = "") -> None:
    """Refuse what ``count_ranks`` cannot see of other hosts, and what a host file says.

    Args:
        host: Its name.
        ranks: That it would get.
        ranks_per_gpu: As asked for.
        gpus: That may be used there.
        why_none: Why there are none, if so.
    Raises:
        UsageError: More ranks on a host than ``ranks_per_gpu`` allows.
    """
    if ranks > ranks_per_gpu * gpus:
        raise _core.UsageError(
            f"--ranks-per-gpu {ranks_per_gpu}: {host} would get {ranks} ranks, and has room for {ranks_per_gpu * gpus} "
            f"on the {gpus} GPUs that are listed there{f': {why_none}' if why_none else ''}"
        )


def thread_percentage(asked: str, ranks_on_gpu: int) -> int:
    """Return CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; 100 means that it need not be set.

    "auto" is 100/(0.5 k), NVIDIA's advice for k equal clients: each may use twice its even share, because their
    phases do not coincide, and none can take the whole GPU from k-1 others.
    """
    return min(100, 200 // ranks_on_gpu) if asked == "auto" else int(asked)


def memory_limit(asked: str, ranks_on_gpu: int, memory_bytes: int) -> int:
    """Return the device memory each rank may use, in bytes; 0 for no limit.

    "auto" is an even share of 95 %: without a limit the caching allocator of one rank can take what its neighbours
    need, and the rank that fails is then not the one that took too much. The rest is the MPS server's own.
    """
    if asked == "auto":
        return 0 if ranks_on_gpu < 2 else int(memory_bytes * 0.95) // ranks_on_gpu
    return int(asked)
