"""`accdp run`: start a script on several ranks, each with its GPU and its cores, and stay until all have ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from .. import _core, addresses, cards
from . import gpus, hosts, placement, programs
from .environment import rank_environment
from .job import Job, Rank
from .options import add_parser, apply_profile, check, read_profile
from .output import ERR, OUT

__all__ = ["add_parser", "main"]


class Run:
    """One `accdp run`, from its options to its job."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._tuned = apply_profile(options, read_profile(options.profile)) if options.profile else {}
        check(options)
        self._command = programs.rank_command([options.script, *options.arguments], module=options.module)
        self._gpus = self._find_gpus()
        self._hosts, self._size = self._count()
        self._job: Job | None = None

    def main(self) -> int:
        """Run the job; return its exit code."""
        from .. import mpi_world

        launcher = programs.choose_launcher(self._options.launcher, os.environ)
        program = programs.find_program(launcher, mpi_world.load().abi(), self._size, self._hosts)
        several_hosts = bool(self._hosts) or launcher == "srun"
        self._job = Job(
            program,
            self._size,
            addresses.candidate_addresses() if several_hosts else [],
            self._orders,
            self._labels(),
            self._options.grace,
        )
        return self._job.run()

    def _find_gpus(self) -> list[gpus.Gpu]:
        options = self._options
        listing = gpus.list_gpus()
        chosen = gpus.choose(listing, options.gpus)
        if not chosen and options.ranks_per_gpu is not None:
            raise _core.UsageError(
                f"--ranks-per-gpu {options.ranks_per_gpu}: no GPUs here: {listing.why_none or '--gpus none'}; "
                "-n N puts N ranks on the cores of this node"
            )
        if not listing.gpus and options.gpus != "none" and os.path.exists("/dev/nvidia0"):
            print(f"accdp run: GPUs are left alone: {listing.why_none}", file=sys.stderr)
        return chosen

    def _count(self) -> tuple[list[hosts.Host], int]:
        options = self._options
        if options.hosts is None:
            return [], placement.count_ranks(options.ranks, options.ranks_per_gpu, len(self._gpus), 1)
        per_host = options.ranks_per_gpu and options.ranks_per_gpu * len(self._gpus)
        placed = hosts.spread(hosts.read_hosts(options.hosts), options.ranks, per_host)
        return placed, sum(host.ranks for host in placed)

    def _labels(self) -> dict[str, bool]:
        if self._options.label != "auto":
            return dict.fromkeys((OUT, ERR), self._options.label == "always")
        return {OUT: self._size > 1 and os.isatty(1), ERR: self._size > 1}

    def _orders(self, ranks: Sequence[Rank]) -> list[dict[str, Any]]:
        """Return what each guard is to start, now that it is known on which nodes they are."""
        places = self._places(ranks)
        master = _master(ranks)
        return [
            {
                "argv": self._command,
                "env": self._terminal()
                | rank_environment(
                    rank.rank,
                    self._size,
                    places[rank.rank],
                    master,
                    os.environ,
                    node_local_rank=self._options.local_rank == "node",
                    tuned=self._tuned,
                ),
                "cpus": places[rank.rank].cpus,
                "terminate_client": [],
            }
            for rank in ranks
        ]

    def _places(self, ranks: Sequence[Rank]) -> dict[int, placement.Place]:
        near = {gpu.uuid: gpu.near_cpus() for gpu in self._gpus}
        found: dict[int, placement.Place] = {}
        for node in dict.fromkeys(rank.hello["node"] for rank in ranks):
            members = [rank for rank in ranks if rank.hello["node"] == node]
            here = node == cards.node_key()
            cores = members[0].hello["cores"]
            placed = placement.place_ranks(
                len(members), cores, self._gpus if here else [], near, bind=self._options.bind == "cores"
            )
            found |= {rank.rank: place for rank, place in zip(members, placed, strict=True)}
        return found

    def _terminal(self) -> dict[str, str | None]:
        """Ranks write into pipes. This is how rich, which draws the progress bars, learns where they end up."""
        if not sys.stdout.isatty() or self._job is None:
            return {}
        columns = shutil.get_terminal_size().columns - self._job.output.label_width()
        wished = {"TTY_COMPATIBLE": "1", "COLUMNS": str(columns)}
        return {name: value for name, value in wished.items() if name not in os.environ}


def _master(ranks: Sequence[Rank]) -> tuple[str, int]:
    """Return where rank 0 may open torch's store: an address that is known to lead to its host."""
    first = ranks[0]
    port = int(first.hello["port"])
    elsewhere = [rank for rank in ranks if rank.hello["node"] != first.hello["node"]]
    if not elsewhere:
        return "127.0.0.1", port
    if first.hello["node"] != cards.node_key():
        return first.connection.peer(), port
    return elsewhere[0].connection.our_address(), port


def main(options: argparse.Namespace) -> int:
    """Run `accdp run`; return the exit code: that of the rank that failed first, 128 and the signal's number, or 0.

    Raises:
        UsageError: The options name no job that could be started.
    """
    with contextlib.suppress(ValueError):  # stdout is closed
        sys.stdout.flush()
    return Run(options).main()
