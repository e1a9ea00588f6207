"""What `accdp tune` is asked for: its options, settled and checked, as a job and the points to try."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from typing import NoReturn

from .. import _core, nvcomp
from ..bcast import check_codec
from ..launch import gpus as devices
from ..launch import options as run_options
from ..launch import programs
from ..launch.run import named_hosts
from . import load
from .measure import Plan
from .space import Batches, Point, points, undivided
from .trial import Job, open_places


@dataclass(frozen=True)
class Asked:
    """A job, the points that are tried, and what of the batch sizes cannot be."""

    job: Job
    batches: Batches
    points: list[Point]
    left_out: list[str]


def settle(options: argparse.Namespace) -> Asked:
    """Choose what the options leave open, and refuse now what would fail at every point.

    Raises:
        UsageError: Options that contradict each other, the script or this machine.
    """
    for codec in options.codec or []:
        check_codec(codec)
        nvcomp.check_works(codec)
    run = _check_run_options(options.run)
    densities, gpus = _densities(options, run)
    gpus *= _nodes(run, per_gpu=bool(gpus))
    batches = _batches(options)
    found = points(densities, gpus, batches, options.workers or (None,), options.codec or (None,))
    if not found:
        raise _core.UsageError("no point is left: no --global-batch can be divided evenly among any number of ranks")
    script = (options.script, *options.arguments)
    _check_script(script, found[0], is_module=bool({"-m", "--module"} & set(options.run)))
    good_s = options.measure
    job = Job(
        script,
        options.output / "logs",
        (*(("--gpus", ",".join(options.gpus)) if options.gpus else ()), *options.run),
        Plan(budgets_s=(good_s,) if options.exhaustive else (good_s / 9, good_s / 3, good_s)),
        start_s=options.start_limit,
        limit_s=max(Job.limit_s, options.start_limit + 2 * good_s),
        end_s=run.grace + 25.0 + 15.0 * gpus,  # for ranks, launcher and daemons of MPS
    )
    return Asked(job, batches, found, undivided(densities, gpus, batches))


def _densities(options: argparse.Namespace, run: argparse.Namespace) -> tuple[list[int], int]:
    """The ranks per GPU that are tried and this machine's GPUs; or numbers of ranks, and 0."""
    if options.ranks:
        return options.ranks, 0
    listing = devices.list_gpus()
    gpus = len(devices.choose(listing, ",".join(options.gpus or ["all"])))
    if options.ranks_per_gpu:
        if not gpus:
            raise _core.UsageError(f"--ranks-per-gpu: no GPUs here: {listing.why_none or '--gpus none'}; use --ranks")
        return options.ranks_per_gpu, gpus
    most = max(1, min(8, load.cores() // gpus) if gpus else _most_on_cores(run))
    return [1 << power for power in range(most.bit_length())], gpus  # 1, 2, 4 and so on


def _most_on_cores(run: argparse.Namespace) -> int:
    """Two ranks a core of all hosts, which are taken to be like this one, or as many as a host file says."""
    hosts = named_hosts(run.hosts, run.launcher, per_gpu=False)
    return sum(host.ranks or 2 * load.cores() for host in hosts) or 2 * load.cores()


def _batches(options: argparse.Namespace) -> Batches:
    if options.global_batch:
        return Batches("global", tuple(options.global_batch))
    return Batches("rank", tuple(options.batch_size)) if options.batch_size else Batches()


def _check_script(script: tuple[str, ...], point: Point, *, is_module: bool) -> None:
    programs.rank_command([script[0]], module=is_module)
    if unset := open_places(script, point):
        needed = "--workers" if unset[0] == "{workers}" else "--global-batch or --batch-size"
        raise _core.UsageError(f"{unset[0]} in the command: expected {needed} with the values to try")


def _nodes(run: argparse.Namespace, *, per_gpu: bool) -> int:
    """The nodes on whose GPUs `accdp run` will start ranks, all of which have as many as this one."""
    hosts = named_hosts(run.hosts, run.launcher, per_gpu=per_gpu) if per_gpu else []
    if any(host.ranks for host in hosts):
        raise _core.UsageError(f"--run --hosts {run.hosts}: expected hosts without numbers of ranks, which trials set")
    return max(1, len(hosts))


def _check_run_options(words: list[str]) -> argparse.Namespace:
    """Refuse what `accdp run` does not know, and what each trial sets itself: what comes last would win."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _core.UsageError(f"--run {shlex.join(words)}: {message}")

    parser = Parser()
    run_options.add_parser(parser.add_subparsers())
    bare, given = (parser.parse_args(["run", *more, "--", "SCRIPT"]) for more in ([], words))
    if (given.script, given.arguments) != (bare.script, bare.arguments):
        parser.error("expected options of accdp run alone, such as --run='--mps on'")
    for name in ("ranks", "ranks_per_gpu", "gpus", "profile"):
        if getattr(given, name) != getattr(bare, name):
            parser.error(f"expected other options than --{name.replace('_', '-')}, which trials set")
    if given.keep_going:
        parser.error("expected no --keep-going: a rank that fails is to fail its trial")
    return given
