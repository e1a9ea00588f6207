"""What bench/bcast_hosts.py measures: the methods, and which of them send what in which part. Nothing here runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from real_tensors import LEARNING_RATES, MIB

from accdp_comm import nvcomp

PARTS = ("figures", "reference", "curve", "grid", "training")
PLACEMENTS = {"4x1": (4, 1), "2x2": (2, 2), "2x1": (2, 1), "1x2": (1, 2), "4x2": (4, 2)}  # hosts, ranks on each
LINKS = (1000, 10000)  # Mbit/s
FOR_FLOATS = ("fpk", "zhuff", "zstd")
LOSSLESS = (*FOR_FLOATS, "lz4", "bitcomp")
FOR_LARGEST = ("fpk", "zhuff", "lz4")  # of more than 64 MiB; one of these was the best of every smaller size
BASELINES = ("MPI_Bcast", "gloo")
BOUND = 0.01  # of the standard deviation: the papers' comparison
LOOSE_BOUND = 0.1


@dataclass(frozen=True)
class Method:
    """One way to broadcast; codec and what follows are of accdp's."""

    name: str
    codec: str = ""
    algorithm: str = ""
    bound: float = 0.0  # relative
    reference: bool = False


@dataclass(frozen=True)
class Point:
    """One thing to send, by several methods in turn."""

    part: str
    data: str
    dtype: str
    nbytes: int
    methods: tuple[Method, ...]
    budget_s: float  # for all samples together
    samples: tuple[int, int]  # at least, at most; the budget decides between them

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Point:
        methods = tuple(Method(**method) for method in fields["methods"])
        return Point(**(fields | {"methods": methods, "samples": tuple(fields["samples"])}))


@dataclass(frozen=True)
class Job:
    """One MPI job: a placement on hosts with links of a speed (None: one host, shared memory)."""

    placement: str
    link_mbit: int | None
    points: tuple[Point, ...]


def why_not(codec: str, dtype: str) -> str | None:
    """Why a codec cannot take a datatype here; None where it can."""
    row = next((row for row in nvcomp.codecs() if row["name"] == codec), None)
    if row is None or not row["datatypes"]:
        return f"{codec} is not in this build"
    if row["why_not"]:
        return f"{codec}: {row['why_not']}"
    if row["datatypes"] != "all" and dtype not in row["datatypes"].split(", "):
        return f"{codec} takes {row['datatypes']}, not {dtype}"
    return None


def usable(methods: Iterable[Method], dtype: str, skipped: set[str]) -> tuple[Method, ...]:
    """The methods whose codec takes the datatype here; why not the others goes to ``skipped``."""
    found = []
    for method in methods:
        reason = None if method.codec in ("", "auto", "none") else why_not(method.codec, dtype)
        if reason is None:
            found.append(method)
        else:
            skipped.add(reason)
    return tuple(found)


def fixed(codecs: Sequence[str]) -> list[Method]:
    """Uncompressed, each of these codecs, and auto."""
    return [*(Method(codec, codec) for codec in ("none", *codecs)), Method("auto", "auto")]


def lossy_codecs(dtype: str) -> list[str]:
    """The error-bounded codecs for a datatype: our own that work here, else nvCOMP's."""
    return [codec for codec in ("qpk", "qhuff") if why_not(codec, dtype) is None] or ["bitcomp_lossy"]


def lossy(dtype: str) -> list[Method]:
    methods = []
    for codec in lossy_codecs(dtype):
        methods.append(Method(f"{codec} {BOUND:g}", codec, bound=BOUND))
        methods.append(Method(f"p2p_compressed {codec} {BOUND:g}", codec, "p2p_compressed", BOUND))
    first = lossy_codecs(dtype)[0]
    methods.append(Method(f"{first} {LOOSE_BOUND:g}", first, bound=LOOSE_BOUND))
    return [*methods, Method(f"auto {BOUND:g}", "auto", bound=BOUND)]


def compared(data: str, dtype: str) -> list[Method]:
    """Everything that is compared on 64 MiB of real tensors; algorithms without a loss on weights only."""
    methods = [*map(Method, BASELINES), *fixed(FOR_FLOATS), *lossy(dtype)]
    if data == "weights":
        methods.append(Method("p2p_compressed fpk", "fpk", "p2p_compressed"))
        methods += [Method(f"none {name}", "none", name) for name in ("binomial", "scatter_allgather")]
    return methods


def figures(nbytes: int, budget_s: float, samples: tuple[int, int], skipped: set[str]) -> list[Point]:
    tensors = [(data, dtype) for dtype in ("float32", "bfloat16") for data in ("weights", "gradients")]
    return [
        Point("figures", data, dtype, nbytes, usable(compared(data, dtype), dtype, skipped), budget_s, samples)
        for data, dtype in tensors
    ]


def reference(nbytes: int, budget_s: float, samples: tuple[int, int], skipped: set[str]) -> list[Point]:
    every = [Method("MPI_Bcast"), Method("none", "none"), Method("auto", "auto")]
    every.append(Method("reference", "auto", reference=True))
    every += [Method(f"reference {codec}", codec, reference=True) for codec in (*FOR_FLOATS, "bitcomp")]
    methods = usable(every, "uint16", skipped)  # differences are integers
    return [
        Point("reference", f"after_{lr:g}", "bfloat16", nbytes, methods, budget_s, samples) for lr in LEARNING_RATES
    ]


def _samples(nbytes: int, samples: tuple[int, int]) -> tuple[int, int]:
    """Small messages are many to the second, and need more samples for a steady median."""
    return (2 if nbytes > 64 * MIB else samples[0]), samples[1] * (3 if nbytes <= MIB else 1)


def curve(sizes: Sequence[int], budget_s: float, samples: tuple[int, int], skipped: set[str]) -> list[Point]:
    every = [*map(Method, BASELINES), *fixed(FOR_FLOATS), *lossy("float32")]
    methods = usable(every, "float32", skipped)
    return [
        Point("curve", "weights", "float32", nbytes, methods, budget_s, _samples(nbytes, samples)) for nbytes in sizes
    ]


def grid(sizes: Sequence[int], budget_s: float, samples: tuple[int, int], skipped: set[str]) -> list[Point]:
    """Where auto, which does not know what comes, is held against each fixed choice."""
    kinds = [("random", "uint8"), ("weights", "float32"), ("zeros", "float32"), ("ids", "int64"), ("ids", "int32")]
    found = []
    for nbytes in sizes:
        for data, dtype in kinds:
            if nbytes <= 64 * MIB or dtype != "int32":  # one kind of codes is enough of the largest
                codecs = LOSSLESS if nbytes <= 64 * MIB else FOR_LARGEST
                methods = usable(fixed(codecs), dtype, skipped)
                found.append(Point("grid", data, dtype, nbytes, methods, budget_s, _samples(nbytes, samples)))
    return found


def plan(args: argparse.Namespace, skipped: set[str]) -> list[Job]:
    """The jobs of a run; reasons why a method is left out go to ``skipped``."""
    quick = args.quick
    nbytes = (16 if quick else 64) * MIB
    few, budget_s = ((2, 3), 1.0) if quick else ((4, 9), 8.0)
    sizes = [size for size in args.sizes if size in (64 << 10, nbytes)] if quick else args.sizes
    sweep = [size for size in sizes if size < nbytes or (size == nbytes and "figures" not in args.only)]
    jobs = []
    for placement in ("4x1", "2x2"):
        for link in args.links:
            points: list[Point] = []
            if "figures" in args.only:
                points += figures(nbytes, budget_s * 2, few, skipped)[: 1 if quick else None]
            if placement == "4x1" and link == LINKS[0] and "reference" in args.only:
                points += reference(nbytes, budget_s / 2, few, skipped)
            if placement == "4x1" and "curve" in args.only:
                points += curve(sweep, budget_s / 2, few, skipped)
            jobs.append(Job(placement, link, tuple(points)))
    if "grid" in args.only:
        for placement, link in [*(("2x1", link) for link in args.links), ("1x2", None)]:
            jobs.append(Job(placement, link, tuple(grid(sizes, budget_s / 4, (2 if quick else 3, few[1]), skipped))))
    return [job for job in jobs if job.points and not (quick and job.placement == "2x2")]
