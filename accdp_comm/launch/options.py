"""The command line of `accdp run`: its parser, and what a profile of `accdp tune` adds."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from .. import _core
from ..readers import at_least, bytes_of, is_whole, real
from .programs import LAUNCHERS

_USAGE = """accdp run [-n N] [--ranks-per-gpu K] [options] [-m] [--] SCRIPT ...
       accdp run --profile FILE [options] [[--] SCRIPT ...]"""
_COUNT = ("a number >= 1", lambda value: type(value) is int and value >= 1)
# What a profile may hold: how that is called, and whether a value is it.
_PROFILE: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "ranks_per_gpu": _COUNT,
    "ranks": _COUNT,
    "batch_size": _COUNT,
    "workers": ("a number >= 0", lambda value: type(value) is int and value >= 0),
    "codec": ("a string", lambda value: isinstance(value, str)),
    "script": ("a list of strings", lambda value: type(value) is list and all(isinstance(word, str) for word in value)),
}
# Of these, what ranks are told: the variable in which ranks find it.
_TUNED = {"batch_size": "ACCDP_TUNED_BATCH_SIZE", "workers": "ACCDP_TUNED_WORKERS", "codec": "ACCDP_CODEC"}


def add_parser(commands: Any) -> None:
    """Add `accdp run` to the commands."""
    # No abbreviations: argparse looks for ambiguous ones among the words of the script, too.
    run = commands.add_parser(
        "run", help="start a script on several ranks, per GPU or per node", usage=_USAGE, allow_abbrev=False
    )
    add = run.add_argument
    ranks = at_least(1, "a number of ranks")
    seconds = real("seconds from 0 to 3600", lambda value: 0 <= value <= 3600)
    add("-n", "--ranks", type=ranks, metavar="N", help="number of ranks")
    add("--ranks-per-gpu", type=ranks, metavar="K", help="ranks that share each GPU; the job has K per GPU or -n N")
    add("--gpus", default="all", metavar="LIST", help="all, none, or indices and UUIDs: 0,1 (default: all)")
    add("--hosts", metavar="FILE", help="host file: HOST, HOST:N or HOST slots=N a line")
    add("--launcher", choices=("auto", *LAUNCHERS), default="auto", help="default: srun inside Slurm, else mpiexec")
    add("--bind", choices=("cores", "none"), default="cores", help="give each rank cores of its own (default: cores)")
    add(
        "--local-rank",
        choices=("device", "node"),
        default="device",
        help="what LOCAL_RANK counts on GPUs",
    )
    add("--mps", choices=("auto", "on", "off"), default="auto", help="MPS for ranks that share a GPU (default: auto)")
    add("--thread-percentage", type=_percentage, default="auto", metavar="auto|P", help="of a GPU for one rank")
    add("--memory-limit", type=_bytes, default="auto", metavar="auto|BYTES", help="of a GPU's memory for one rank")
    add("--label", choices=("auto", "always", "never"), default="auto", help="write [rank] before lines of output")
    add("--grace", type=seconds, default=5.0, metavar="S", help="seconds that ranks have after SIGTERM (default: 5)")
    add("--keep-going", action="store_true", help="a rank that fails does not end the others")
    add("--profile", metavar="FILE", help="take ranks, batch size, workers and codec from what accdp tune found")
    add("-m", "--module", action="store_true", help="SCRIPT is a Python module, as for python -m")
    add_script(run, "a Python script (*.py) or any program, and its arguments", is_needed=False)


def add_script(parser: argparse.ArgumentParser, text: str, *, is_needed: bool) -> None:
    """Add SCRIPT and its arguments, all as they are but one ``--`` before SCRIPT; None where there is no SCRIPT."""
    parser.set_defaults(arguments=[])
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, action=_Script, const=is_needed, metavar="SCRIPT ...", help=text
    )


class _Script(argparse.Action):
    """Takes a command line apart by itself: argparse drops the first ``--`` wherever it stands."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        words = values[1:] if values[:1] == ["--"] else values
        if self.const and not words:
            parser.error("the following arguments are required: SCRIPT")
        namespace.script, namespace.arguments = (words[0] if words else None), words[1:]


def read_profile(path: str) -> dict[str, Any]:
    """Read a profile: a JSON object with ranks_per_gpu, ranks, batch_size, workers, codec and script; all may be null.

    Raises:
        UsageError: It cannot be read, has a value of another kind, or something else in it.
    """
    try:
        with open(path) as file:
            profile = json.loads(file.read())
    except OSError as error:
        raise _core.UsageError(f"--profile {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _core.UsageError(f"--profile {path}: not JSON: {error}") from error
    if not isinstance(profile, dict):
        raise _core.UsageError(f"--profile {path}: expected a JSON object, got {type(profile).__name__}")
    if unknown := sorted(profile.keys() - _PROFILE.keys()):
        raise _core.UsageError(f"--profile {path}: {', '.join(unknown)}: expected only {', '.join(_PROFILE)}")
    for name, (expected, is_right) in _PROFILE.items():
        value = profile.get(name)
        if value is not None and not is_right(value):
            raise _core.UsageError(f"--profile {path}: {name} is {value!r}, expected {expected} or null")
    return profile


def apply_profile(options: argparse.Namespace, profile: dict[str, Any]) -> dict[str, str]:
    """Fill in what the command line leaves open; return the variables for the ranks.

    Options win, and so does a variable that is set already: each is somebody's explicit wish.
    """
    if options.ranks is None and options.ranks_per_gpu is None:
        options.ranks_per_gpu = profile.get("ranks_per_gpu")
        # With ranks per GPU the profile's number of ranks was that of the machine it was made on.
        options.ranks = None if options.ranks_per_gpu else profile.get("ranks")
    if options.script is None and profile.get("script"):
        options.script, *options.arguments = profile["script"]
    found = {variable: profile.get(name) for name, variable in _TUNED.items()}
    return {name: str(value) for name, value in found.items() if value is not None and name not in os.environ}


def check(options: argparse.Namespace) -> None:
    """Refuse a command line from which no job follows.

    Raises:
        UsageError: Nothing says what to start, or on how many ranks.
    """
    if options.script is None:
        neither = f", for {options.profile} names none" if options.profile is not None else ""
        raise _core.UsageError(f"the following arguments are required: SCRIPT{neither} (see accdp run --help)")
    if options.ranks is None and options.ranks_per_gpu is None and options.hosts is None:
        if options.profile is not None:
            raise _core.UsageError(
                f"--profile {options.profile}: has neither ranks nor ranks_per_gpu; -n N gives a number"
            )
        raise _core.UsageError(
            "one of -n/--ranks, --ranks-per-gpu, --hosts, --profile is required (see accdp run --help)"
        )


def _percentage(text: str) -> str:
    if text != "auto" and not is_whole(text, 1, 100):
        raise argparse.ArgumentTypeError(f"expected auto or a percentage from 1 to 100, got {text!r}")
    return text


def _bytes(text: str) -> str:
    if text == "auto":
        return text
    try:
        number = bytes_of(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}".replace("expected ", "expected auto, or ", 1)) from None
    if 0 < number < 1 << 20:  # MPS counts in MiB
        raise argparse.ArgumentTypeError(f"expected auto, 0 for no limit, or 1M and more, got {text!r}")
    return str(number)
