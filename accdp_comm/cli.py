"""The command `accdp`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ._version import __version__
from .tune import command as tune


class _Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="accdp", description="PyTorch data parallelism with several ranks per GPU")
    parser.add_argument("--version", action="version", version=f"accdp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    usage = "accdp run -n N [-m] [--] SCRIPT ..."
    run = commands.add_parser("run", help="start a script on several ranks", usage=usage)
    run.add_argument("-n", "--ranks", type=_ranks, required=True, metavar="N", help="number of ranks")
    run.add_argument("-m", "--module", action="store_true", help="SCRIPT is a Python module, as for python -m")
    run.add_argument("script", metavar="SCRIPT", help="a Python script (*.py) or any program")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")

    info = commands.add_parser("info", help="show versions, MPI, topology and all settings")
    form = info.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="the settings as docs/environment.md")

    commands.add_parser("bench", help="run an OSU-style micro-benchmark: accdp bench OP ...")  # main() takes it
    tune.add_parser(commands)
    return parser


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of ranks >= 1, got {text!r}")
    return int(text)


def _info(options: argparse.Namespace) -> None:
    from . import info

    if options.markdown:
        print(info.as_markdown())
        return
    place = info.topology()
    if place.pop("rank") == 0:  # under a launcher one rank speaks for all
        found = info.collect() | {"topology": place}
        print(info.as_json(found) if options.json else info.as_text(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code. `accdp run` becomes mpiexec and does not return."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["bench"]:
        from .bench.command import main as bench

        return bench(words[1:])
    options = _parser().parse_args(words)
    try:
        from ._core import Error
    except ImportError as error:
        print(f"accdp: its core could not be loaded: {error}", file=sys.stderr)
        return 1
    try:
        if options.command == "run":
            from .launch.run import run

            run(options.ranks, [options.script, *options.arguments], module=options.module)
        elif options.command == "tune":
            return tune.main(options)
        else:
            _info(options)
    except Error as error:
        print(f"accdp {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
