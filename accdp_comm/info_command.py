"""The command `accdp info`."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from .readers import bytes_of, rate_of, real


def add_parser(commands: Any) -> None:
    """Add `accdp info` to the commands."""
    info = commands.add_parser("info", help="show versions, MPI, topology and all settings")
    form = info.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="the settings as docs/environment.md")
    plan = info.add_argument_group("what an operation would do, and why")
    plan.add_argument(
        "--plan", nargs=2, metavar=("OP", "SIZE"), help="such as allreduce 64MiB; under mpiexec: measured"
    )
    plan.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="of reductions in the order of ranks, as Options can ask",
    )
    plan.add_argument("--topology", metavar="NODESxRANKS", help="of a machine to imagine, such as 2x4")
    plan.add_argument("--link", metavar="RATE", type=rate_of, help="of its links, such as 1Gbit")
    latency = real("microseconds >= 0", lambda value: 0 <= value < math.inf)
    plan.add_argument("--latency", metavar="US", type=latency, help="of a message on them, in microseconds")


def main(options: argparse.Namespace) -> int:
    """Print it; under a launcher one rank speaks for all. Collective over the job unless ``--markdown``."""
    from . import info
    from ._core import UsageError

    if options.plan is not None:
        if options.markdown:
            raise UsageError("--markdown: expected no --plan, which is shown as text or --json")
        return _show_plan(options)
    for name in ("deterministic", "topology", "link", "latency"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected --plan too")
    if options.markdown:
        print(info.as_markdown())
        return 0
    place = info.topology()
    if place.pop("rank") == 0:
        found = info.collect() | {"topology": place}
        print(info.as_json(found) if options.json else info.as_text(found))
    return 0


def _show_plan(options: argparse.Namespace) -> int:
    """Print the plan of an operation: for a machine to imagine, or of this job. Collective over the job."""
    from . import plan
    from ._core import Machine, UsageError
    from .communicator import Communicator

    op = options.plan[0]
    try:
        nbytes = bytes_of(options.plan[1])
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"size: {error}") from None
    imagined = (options.topology, options.link, options.latency) != (None, None, None)
    with Communicator(deterministic=options.deterministic) as comm:
        if imagined and comm.size > 1:
            raise UsageError("--topology, --link, --latency: expected none of them in a job, whose own are measured")
        if imagined:
            machine = Machine()
            if options.link is not None:
                machine.link_bytes_per_s = options.link
            if options.latency is not None:
                machine.latency_s = options.latency * 1e-6
            shape = plan.declared_shape(options.topology or "2x1")
            source = "usual" if options.link is None and options.latency is None else "given for the link, else usual"
            found = plan.plan_of(op, nbytes, shape, machine, source, options.deterministic)
        else:
            comm.measure()
            found = comm.plan(op, nbytes)
        if comm.rank == 0:
            print(json.dumps(found.as_dict(), indent=2) if options.json else found)
            if comm.size == 1 and not imagined and not options.json:
                print("\nof more ranks: --topology NODESxRANKS, or start it by mpiexec to plan for that job")
    return 0
