"""Checks of GPUs and of MPS."""

from __future__ import annotations

import os
from pathlib import Path

from ..launch import gpus
from ..launch.mps import daemon, records, session
from ..launch.mps.refusals import AS_IT_IS, somebody_elses, why_not
from .findings import FAIL, OK, WARN, Finding


def devices() -> Finding:
    listing = gpus.list_gpus()
    if listing.gpus:
        if listing.why_unsure:
            return Finding(WARN, listing.why_unsure, "until then accdp run takes none of them")
        kinds = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in listing.gpus)
        return Finding(OK, f"{len(listing.gpus)} by {listing.source} ({kinds})")
    there = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if there and not listing.is_hidden:
        return Finding(
            FAIL, f"there is /dev/{there[0]}, but {listing.why_none}", "pip install nvidia-ml-py, or fix the driver"
        )
    return Finding(OK, f"none ({listing.why_none})")


def mps(ranks_per_gpu: int = 2) -> Finding:
    listing = gpus.list_gpus()
    if not listing.gpus:
        return Finding(OK, "no GPUs to share")
    base = records.base_directory()
    left = [found for found in daemon.find_all(base) if found.record.is_orphan()]
    if left:
        return Finding(WARN, f"{len(left)} daemons of jobs that crashed: {left[0].folder}", "accdp mps clean")
    if theirs := somebody_elses(os.environ, session.kept().values()):
        return Finding(WARN, f"is not accdp's: {theirs}", f"ranks {AS_IT_IS}")
    if reason := why_not(listing.gpus, ranks_per_gpu):
        return Finding(
            WARN, f"cannot be used: {reason}", "ranks that share a GPU will take turns on it until this is mended"
        )
    kept = [found for found in daemon.find_all(base) if found.record.is_kept]
    return Finding(OK, f"can be used; {len(kept)} daemons are kept by accdp mps start")
