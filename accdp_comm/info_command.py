"""The command `accdp info`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `accdp info` to the commands."""
    info = commands.add_parser("info", help="show versions, MPI, topology and all settings")
    form = info.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="the settings as docs/environment.md")


def main(options: argparse.Namespace) -> int:
    """Print it; under a launcher one rank speaks for all. Collective over the job unless ``--markdown``."""
    from . import info

    if options.markdown:
        print(info.as_markdown())
        return 0
    place = info.topology()
    if place.pop("rank") == 0:
        found = info.collect() | {"topology": place}
        print(info.as_json(found) if options.json else info.as_text(found))
    return 0
