"""The command `accdp`. Each command's parser and code lie in a module of their own."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NoReturn

from ._version import __version__

# What installing the package brings, where its dependencies are installed.
_REQUIRED = ("numpy", "rich")

# Command -> module with ``add_parser(commands)`` and ``main(options) -> exit code``. The modules are imported for
# every command line, so they import at their top only what is light.
_COMMANDS = {
    "run": ".launch.run",
    "mps": ".launch.mps.command",
    "ps": ".ps.command",
    "tune": ".tune.command",
    "info": ".info_command",
    "doctor": ".doctor.command",
}


class _Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but a command says itself what it does not know, instead of leaving it to `accdp`."""
        found, strange = super().parse_known_args(args, namespace)
        if strange:
            self.error(f"unrecognized arguments: {' '.join(strange)}")
        return found, strange


def _parser() -> _Parser:
    parser = _Parser(prog="accdp", description="PyTorch data parallelism with several ranks per GPU")
    parser.add_argument("--version", action="version", version=f"accdp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for module in _COMMANDS.values():
        importlib.import_module(module, __package__).add_parser(commands)
    commands.add_parser("bench", help="run an OSU-style micro-benchmark: accdp bench OP ...")  # main() takes it
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that are no text in its encoding are shown, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _main(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Who read our output has seen enough, as `head` has. What is still buffered must not fail at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except ModuleNotFoundError as error:
        if error.name not in _REQUIRED:
            raise
        print(f"accdp: {error.name} is not installed: pip install {error.name}", file=sys.stderr)
        return 1
    except OSError as error:  # a disk is full, a file cannot be written
        if words[:1] == ["bench"]:  # its ranks end by what they fail with, so that others hear of it
            raise
        print(f"accdp: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):  # what could not be written must not fail again at the exit
            sys.stdout.close()
        return 1


def _open_closed_streams() -> None:
    """Where the caller closed a standard stream (``>&-``), the next file would get its number, and a job's output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))


def _why_no_core() -> str | None:
    """What it lacks where there is none for this Python; None where there is one."""
    found = sorted(path.name for path in Path(__file__).parent.glob("_core*.so"))
    if any(name == f"_core{suffix}" for name in found for suffix in EXTENSION_SUFFIXES):
        return None
    if not found:
        return "is not built: make build in a checkout, pip install . for an environment"
    return (
        f"is built for another Python ({', '.join(found)}), not for {sys.implementation.cache_tag} ({sys.executable}): "
        "install accdp with this one, or start it with the other"
    )


def _main(words: list[str]) -> int:
    if words[:1] == ["bench"]:  # its options are OMB's, and depend on the operation
        return int(importlib.import_module(".bench.command", __package__).main(words[1:]))
    try:
        from ._core import Error
    except ImportError as error:
        print(f"accdp: its core {_why_no_core() or f'could not be loaded: {error}'}", file=sys.stderr)
        return 1
    options = _parser().parse_args(words)
    try:
        return int(importlib.import_module(_COMMANDS[options.command], __package__).main(options))
    except Error as error:
        print(f"accdp {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
