"""`accdp mps`: daemons that outlive a job, what runs, and what is left of jobs that crashed."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ... import _core, procfs
from .. import gpus, processes
from ..agent import OWNER_VARIABLE
from . import daemon as daemons
from . import owner, records
from .control import MpsError
from .refusals import somebody_elses, why_not

_USAGE = (
    "accdp mps {status [--json] | start [--gpus LIST] | stop [--gpus LIST] | clean | "
    "terminate [-q] [--pipe-directory DIR] [--signal N] PID ...}"
)

_NO_CLIENT = "nothing to end, for it is no client of a daemon of `accdp mps status`"


def add_parser(commands: Any) -> None:
    """Add `accdp mps` to the commands."""
    mps = commands.add_parser("mps", help="daemons of NVIDIA MPS that accdp owns", usage=_USAGE)
    verbs = mps.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(mps), prog="accdp mps")
    status = verbs.add_parser("status", help="show daemons, owners and clients")
    status.add_argument("--json", action="store_true", help="as JSON")
    for verb, text in (("start", "start a daemon per GPU that stays until accdp mps stop"), ("stop", "stop those")):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument(
            "--gpus", default="all", metavar="LIST", help="all, or indices and UUIDs: 0,1 (default: all)"
        )
    verbs.add_parser("clean", help="stop daemons whose owner has crashed")
    if OWNER_VARIABLE in os.environ:
        verbs.add_parser("own")  # what a guard starts on another host: owner.py
    terminate = verbs.add_parser("terminate", help="end what processes do on their GPUs, so that they may be killed")
    terminate.add_argument("-q", "--quiet", action="store_true", help="say only what went wrong")
    terminate.add_argument("--pipe-directory", metavar="DIR", help="ask the daemon of this directory alone")
    terminate.add_argument("--signal", type=int, default=0, metavar="N", help="then send all of them this")
    terminate.add_argument(
        "pids", nargs="+", type=int, metavar="PID", help="clients; others are but sent the signal, if any"
    )


def main(options: argparse.Namespace) -> int:
    """Run `accdp mps`; 0 if all went well, 1 if something did not.

    Raises:
        UsageError: MPS cannot be used here.
    """
    if options.verb == "own":
        return owner.main()
    base = records.base_directory()
    if options.verb == "status":
        return _status(daemons.find_all(base), as_json=options.json)
    if options.verb == "terminate":
        living = _living(base)
        if options.pipe_directory is not None:
            living = [found for found in living if found.pipe_directory == options.pipe_directory]
        return _terminate(living, options.pids, options.signal, is_quiet=options.quiet)
    with records.locked(base):
        if options.verb == "start":
            return _start(base, options.gpus)
        if options.verb == "clean":
            return _tell(daemons.clean(base) or ["nothing to clean"], failed=False)
        kept = [found for found in daemons.find_all(base) if found.record.is_kept]
        if options.gpus != "all":
            wanted = {gpu.uuid for gpu in gpus.choose(gpus.list_gpus(), options.gpus)}
            kept = [found for found in kept if found.record.gpu in wanted]
        ended = [line for found in kept for line in _clients_of(found)]
        trouble = [line for found in kept for line in daemons.stop(found)]
        return _tell([*ended, *trouble, f"stopped {len(kept)} daemons"], failed=bool(trouble))


def _start(base: Any, wanted: str) -> int:
    listing = gpus.list_gpus()
    chosen = gpus.choose(listing, wanted)
    if not chosen:
        raise _core.UsageError(f"no GPUs here: {listing.why_none or wanted}")
    if reason := somebody_elses({}) or why_not(chosen, 1):
        raise _core.UsageError(reason)
    daemons.clean(base)
    kept = {found.record.gpu: found for found in daemons.find_all(base) if found.record.is_kept}
    for gpu in chosen:
        try:
            found = kept.get(gpu.uuid) or daemons.start(base, gpu.uuid, is_kept=True)
        except MpsError as error:
            return _tell([str(error)], failed=True)
        print(f"# GPU {gpu.index} ({gpu.name}); accdp run finds it by itself, other launchers need:")
        print(f"export CUDA_VISIBLE_DEVICES={gpu.uuid} CUDA_MPS_PIPE_DIRECTORY={found.pipe_directory}")
    return 0


def _terminate(living: list[daemons.Daemon], pids: list[int], number: int, *, is_quiet: bool) -> int:
    started = {pid: procfs.start_time(pid) for pid in pids}
    done = [(found, *daemons.terminate_work(found.control(), pids)) for found in living]
    if number:
        for pid, when in started.items():
            processes.send_signal(pid, when, number)
    gpu_of = {pid: found.record.gpu for found, ended, _ in done for pid in ended}
    trouble = [line for _, _, lines in done for line in lines]
    sent = f"; it was sent signal {number}" if number else ""
    said = [f"{pid}: {f'its work on {gpu_of[pid]} was ended' if pid in gpu_of else _NO_CLIENT}{sent}" for pid in pids]
    return _tell([*([] if is_quiet else said), *trouble], failed=bool(trouble))


def _clients_of(found: daemons.Daemon) -> list[str]:
    """Return a line that says which clients end with a daemon; none where it has none."""
    try:
        clients = sorted(found.control().clients()) if found.record.daemon_lives() else []
    except MpsError:
        return []  # what is wrong with it shows when it is stopped
    return [f"ends its clients on {found.record.gpu}: {' '.join(map(str, clients))}"] if clients else []


def _living(base: Any) -> list[daemons.Daemon]:
    return [found for found in daemons.find_all(base) if found.record.daemon_lives()]


def _status(found: list[daemons.Daemon], *, as_json: bool) -> int:
    rows = [_row(one) for one in found]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("no daemons")
    else:
        form = "{:<42}{:<9}{:<22}{}"
        print(form.format("GPU", "daemon", "owner", "clients"))
        for row in rows:
            print(
                form.format(row["gpu"], row["daemon"], row["owner"], " ".join(map(str, row["clients"])) or row["state"])
            )
    return 1 if any(row["state"] != "ok" for row in rows) else 0


def _row(found: daemons.Daemon) -> dict[str, Any]:
    record = found.record
    owner = "kept" if record.is_kept else f"pid {record.owner_pid}"
    row: dict[str, Any] = {
        "gpu": record.gpu,
        "daemon": record.daemon_pid,
        "owner": owner,
        "clients": [],
        "state": "ok",
        "pipe_directory": found.pipe_directory,
    }
    if record.is_orphan():
        alive = not record.is_kept and processes.is_alive(record.daemon_pid, record.daemon_start)
        row["state"] = "orphaned: accdp mps clean" if alive else "dead: accdp mps clean"
    if record.daemon_lives():
        try:
            row["clients"] = sorted(found.control().clients())
        except MpsError as error:
            row["state"] = str(error)
    return row


def _tell(lines: list[str], *, failed: bool) -> int:
    for line in lines:
        print(line)
    return 1 if failed else 0
