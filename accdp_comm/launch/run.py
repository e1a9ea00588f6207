"""`accdp run`: start a script on several ranks, each with its GPU and its cores, and stay until all have ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from .. import _core, addresses, own_programs, procfs
from ..launcher import is_launcher_variable
from . import gpus, hosts, placement, programs, room, store_server
from .environment import MpsShare, rank_environment
from .interruption import end_with_parent, signals_raise
from .job import Job
from .mps.attachment import Member
from .mps.daemon import terminate_clients
from .mps.owners import Owners
from .mps.session import Session, session
from .options import add_parser, apply_profile, check, read_profile
from .output import ERR, OUT, say_last
from .ranks import Rank

__all__ = ["add_parser", "main"]


class Run:
    """One `accdp run`, from its options to its job."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._tuned = apply_profile(options, read_profile(options.profile)) if options.profile is not None else {}
        check(options)
        self._command = programs.rank_command([options.script, *options.arguments], module=options.module)
        self._launcher = programs.choose_launcher(options.launcher, os.environ)
        self._gpus = self._find_gpus()
        self._hosts, self._size = self._count()
        self._job: Job | None = None
        self._is_over = False
        self._mps: Session | None = None
        self._owners: Owners | None = None
        self._store: int | None = None  # the port of torch's, where we serve it
        self._places: dict[int, placement.Place] = {}
        self._not_from_launcher: dict[str, str | None] = {}  # what ranks are to have, and get otherwise from it

    def main(self) -> int:
        """Run the job; return its exit code."""
        from .. import mpi_world

        family = "" if self._launcher == "torchrun" else mpi_world.load().abi()  # torchrun needs no MPI
        program = programs.find_program(self._launcher, family, self._size, self._hosts)
        self._not_from_launcher = {
            name: os.environ.get(name) for name, value in program.environment.items() if value is not None
        }
        if not program.hands_on:
            self._not_from_launcher |= {
                name: value for name, value in os.environ.items() if not is_launcher_variable(name)
            }
        several_hosts = bool(self._hosts) or self._launcher == "srun"
        if self._options.keep_going and (self._launcher == "srun" or (several_hosts and family != "mpich")):
            raise _core.UsageError(
                "--keep-going: expected one host, with mpiexec or torchrun, or --hosts with mpiexec and an MPI of the "
                "MPICH family, whose ranks can form a world that the launcher does not know of"
            )
        room.check_room(self._size, self._ranks_here(), room.limits())
        # Where ranks may be on other hosts, and none on this one, each host gets an owner when it is known.
        mps = self._options.mps
        owners = Owners(mps, self._say, self._options.grace, self._not_from_launcher) if several_hosts else None
        self._owners = owners
        here = "off" if several_hosts else mps
        store = store_server.serving() if self._options.keep_going else contextlib.nullcontext()
        with store as self._store, session(here, self._gpus, self._most_on_gpu(), self._say) as self._mps:
            self._job = Job(
                program,
                self._size,
                addresses.candidate_addresses() if several_hosts else [],
                self._orders,
                self._labels(),
                self._options.grace,
                watch=self._watch if self._mps else None,
                terminate_clients=self._terminate_clients,
                ask_gpus=gpus.LIST_COMMAND if several_hosts and self._options.gpus != "none" else [],
                prepare=self._prepare,
                owners=self._owners,
                keep_going=self._options.keep_going,
            )
            try:
                return self._job.run()
            finally:
                self._job, self._is_over = None, True  # what is said from here on comes after all that ranks said

    def _ranks_here(self) -> int:
        """Return how many ranks are known to be on this host; srun chooses by itself."""
        if self._hosts:
            return sum(host.ranks for host in self._hosts if hosts.is_here(host.name))
        return 0 if self._launcher == "srun" else self._size

    def _say(self, text: str) -> None:
        """Write a line of our own among the output of the ranks."""
        if self._job is not None:
            self._job.output.say(f"accdp run: {text}")
        elif self._is_over:
            say_last(f"accdp run: {text}")
        else:
            print(f"accdp run: {text}", file=sys.stderr)

    def _most_on_gpu(self) -> int:
        """Return the largest number of ranks on one GPU of this node."""
        here = min(self._size, max((host.ranks for host in self._hosts), default=self._size))
        return -(-here // len(self._gpus)) if self._gpus else 0

    def _find_gpus(self) -> list[gpus.Gpu]:
        options = self._options
        listing = gpus.list_gpus()
        self._why_no_gpus = listing.why_none
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
        named = named_hosts(options.hosts, self._launcher, per_gpu=options.ranks_per_gpu is not None)
        if not named:
            return [], placement.count_ranks(options.ranks, options.ranks_per_gpu, len(self._gpus))
        per_host = options.ranks_per_gpu and options.ranks_per_gpu * len(self._gpus)
        placed = hosts.spread(named, options.ranks, per_host)
        return placed, sum(host.ranks for host in placed)

    def _labels(self) -> dict[str, bool]:
        if self._options.label != "auto":
            return dict.fromkeys((OUT, ERR), self._options.label == "always")
        return {OUT: self._size > 1 and os.isatty(1), ERR: self._size > 1}

    def _prepare(self, ranks: Sequence[Rank]) -> None:
        """Place the ranks, now that it is known on which nodes they are, and ask for MPS on each."""
        self._places = self._place(ranks)
        if self._owners is None:
            return
        for node in dict.fromkeys(rank.hello["node"] for rank in ranks):
            members = [rank for rank in ranks if rank.hello["node"] == node]
            clients = {rank.rank: gpu for rank in members if (gpu := self._places[rank.rank].gpu)}
            self._owners.ask(node, members[0].hello["host"], clients, members[0].connection)

    def _orders(self, ranks: Sequence[Rank]) -> list[dict[str, Any]]:
        """Return what each guard is to start."""
        if self._mps:
            self._mps.expect([rank.rank for rank in ranks if self._has_mps(rank)])
        master = _master(ranks)
        return [
            self._order(rank, self._places[rank.rank], (_address_for(rank), self._store) if self._store else master)
            for rank in ranks
        ]

    def _has_mps(self, rank: Rank) -> bool:
        """Whether a rank is to be a client of a daemon that this process owns."""
        return self._mps is not None and self._places[rank.rank].gpu is not None

    def _order(self, rank: Rank, place: placement.Place, master: tuple[str, int]) -> dict[str, Any]:
        options = self._options
        share = self._share(rank, place)
        environment = rank_environment(
            rank.rank,
            self._size,
            place,
            master,
            os.environ,
            node_local_rank=options.local_rank == "node",
            mps=share,
            tuned=self._tuned,
            is_served=self._store is not None,
            # A rank of the launcher's MPI that dies takes the others along; between hosts ranks need a world of MPI's.
            hides_launcher=self._store is not None and bool(self._hosts),
        )
        return {
            "argv": self._command,
            "env": self._terminal() | self._not_from_launcher | environment,
            "cpus": place.cpus,
            "terminate_client": _terminate_client(share),
        }

    def _share(self, rank: Rank, place: placement.Place) -> MpsShare | None:
        """Return what a rank needs to be a client of MPS; None where it is to be none."""
        if place.gpu is None:
            return None
        percentage = placement.thread_percentage(self._options.thread_percentage, place.ranks_on_gpu)
        limit = placement.memory_limit(self._options.memory_limit, place.ranks_on_gpu, place.gpu.memory_bytes)
        if self._mps is not None and self._has_mps(rank):
            return self._mps.share(place.gpu, percentage, limit)
        return self._owners.share(rank.hello["node"], place.gpu, percentage, limit) if self._owners else None

    def _place(self, ranks: Sequence[Rank]) -> dict[int, placement.Place]:
        near = {gpu.uuid: gpu.near_cpus() for gpu in self._gpus}
        found: dict[int, placement.Place] = {}
        without: dict[str, str] = {}  # hosts, and why they have no GPUs
        for node in dict.fromkeys(rank.hello["node"] for rank in ranks):
            members = [rank for rank in ranks if rank.hello["node"] == node]
            host, own, why = members[0].hello, self._gpus, self._why_no_gpus
            if node != procfs.node_key():
                shown = [rank.hello["visible_gpus"] for rank in members] if self._launcher == "srun" else []
                status, text = host["gpus"]
                listing = gpus.parse_listing(text, shown, status)
                own, why = gpus.choose_elsewhere(listing, self._options.gpus), listing.why_none
            if not own:
                without[host["host"]] = why or f"--gpus {self._options.gpus}"
            if self._options.ranks_per_gpu is not None:
                placement.check_room(host["host"], len(members), self._options.ranks_per_gpu, len(own), why)
            cores = placement.all_cores(rank.hello["cores"] for rank in members)
            placed = placement.place_ranks(
                len(members), cores, own, near, bind=self._options.bind == "cores", quota=host["quota"]
            )
            found |= {rank.rank: place for rank, place in zip(members, placed, strict=True)}
        if any(place.gpu for place in found.values()):
            for name, why in without.items():
                self._say(f"{name}: no GPUs for the ranks there, as the others have: {why}")
        return found

    def _watch(self, running: Sequence[Rank]) -> str:
        """Look whether ranks that run are clients of MPS; return why the job must end, if it must."""
        assert self._mps is not None
        members = []
        for rank in running:
            gpu = self._places[rank.rank].gpu
            if gpu is not None and rank.pid and self._has_mps(rank):
                members.append(Member(rank.rank, rank.pid, gpu))
        return self._mps.watch(members)

    def _terminate_clients(self, pids: Sequence[int]) -> None:
        """End what processes of this node do on their GPUs, whoever owns MPS here."""
        if self._mps or (self._owners and self._owners.are_needed()):
            terminate_clients(pids)

    def _terminal(self) -> dict[str, str | None]:
        """Ranks write into pipes. This is how rich, which draws the progress bars, learns where they end up."""
        if not sys.stdout.isatty() or self._job is None:
            return {}
        columns = shutil.get_terminal_size().columns - self._job.output.label_width()
        wished = {"TTY_COMPATIBLE": "1", "COLUMNS": str(columns)}
        return {name: value for name, value in wished.items() if name not in os.environ}


def named_hosts(path: str | None, launcher: str, *, per_gpu: bool) -> list[hosts.Host]:
    """Return the hosts of a job, with how many ranks on each where a file says it; none where that is up to others.

    Args:
        path: Of a host file.
        launcher: As asked for, or as chosen.
        per_gpu: The number of ranks is one per GPU: then all GPUs are meant that Slurm has allocated.
    Raises:
        UsageError: The file is none, or Slurm does not tell.
    """
    if path is not None:
        return hosts.read_hosts(path)
    is_slurm = per_gpu and programs.choose_launcher(launcher, os.environ) == "srun"
    return programs.allocated_hosts(os.environ) if is_slurm else []


def _terminate_client(share: MpsShare | None) -> list[str]:
    """Return the command that takes pids and ends what they do on a rank's GPU; empty where it is no client of MPS."""
    if share is None:
        return []
    return own_programs.accdp("mps", "terminate", "-q", "--pipe-directory", share.pipe_directory)


def _master(ranks: Sequence[Rank]) -> tuple[str, int]:
    """Return where rank 0 may open torch's store: an address that is known to lead to its host."""
    first = ranks[0]
    port = int(first.hello["port"])
    elsewhere = [rank for rank in ranks if rank.hello["node"] != first.hello["node"]]
    if not elsewhere:
        return "127.0.0.1", port
    if first.hello["node"] != procfs.node_key():
        return first.connection.peer(), port
    return elsewhere[0].connection.our_address(), port


def _address_for(rank: Rank) -> str:
    """Return an address that is known to lead here from a rank's host, which may be in another network than others."""
    return "127.0.0.1" if rank.hello["node"] == procfs.node_key() else rank.connection.our_address()


def main(options: argparse.Namespace) -> int:
    """Run `accdp run`; return the exit code: that of the rank that failed first, 128 and the signal's number, or 0.

    Raises:
        UsageError: The options name no job that could be started.
    """
    with contextlib.suppress(ValueError):  # stdout is closed
        sys.stdout.flush()
    with signals_raise():
        end_with_parent()
        return Run(options).main()
