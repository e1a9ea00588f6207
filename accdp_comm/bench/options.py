"""The command line of a benchmark: OMB's letters with OMB's meaning, and ours beside them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from ..readers import at_least, bytes_of, is_whole, not_empty, real, some_of
from ..stream_call import ErrorBound
from . import torch_backends
from .measure import LEAST_ITERATIONS
from .memory import DATATYPES
from .operations import LARGE_BYTES, OPERATIONS, Operation
from .world import early_rank

BACKENDS = ("accdp", "mpi", *torch_backends.NAMES)
_GRAPHS = ("tty", "png", "pdf")
# Each call in a row has an object of its own: more of them take the memory before they take the time.
_calls_in_a_row = at_least(1, "a number", most=1_000_000)
_ALL_TYPES = ("mpi_char", "mpi_int", "mpi_float")  # what OMB means by -T all
_DEFAULT_PERCENTILES = "50,90,99"
WINDOW = 64


class Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line, by one rank."""

    def error(self, message: str) -> NoReturn:
        if early_rank():
            self.exit(0)  # a status of its own could make the launcher end rank 0 before it has spoken
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(arguments: Sequence[str], prog: str, operation: str | None) -> argparse.Namespace:
    """Read the options; ends the process with one line where they are wrong.

    Args:
        arguments: Without the program's name.
        prog: Name for messages.
        operation: A row of the table, or None: the first argument says it.
    """
    parser = Parser(prog=prog, description="OSU-style micro-benchmark; under mpiexec, torchrun, or with --ranks")
    if operation is None:
        parser.add_argument("operation", metavar="OP", choices=sorted(OPERATIONS), help=", ".join(OPERATIONS))
    else:
        parser.set_defaults(operation=operation)
    _add_theirs(parser)
    _add_ours(parser)
    args = parser.parse_args(arguments)
    row = OPERATIONS[args.operation]
    args.types = args.types or ["mpi_float" if _wants_floats(args) else row.datatype]
    if problem := _conflict(args, row):
        parser.error(problem)
    return args


def _add_theirs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("options of the OSU micro-benchmarks").add_argument
    add("-m", dest="sizes", type=_sizes, default=(None, None), metavar="[MIN:]MAX", help="message sizes in bytes")
    add("-i", dest="iterations", type=at_least(1), metavar="N", help="iterations per size")
    add("-x", dest="warm_up", type=at_least(0), metavar="N", help="iterations before those, not measured")
    add("-f", dest="full", action="store_true", help="also minimum and maximum over ranks, and iterations")
    add("-c", dest="validate", action="store_true", help="check results before measuring")
    add("-u", dest="validation_warm_up", type=at_least(0), default=5, metavar="N", help="calls before each check (5)")
    add("-d", dest="device", choices=("cpu", "cuda"), default="cpu", help="where buffers are (cpu)")
    add("-T", dest="types", type=_types, metavar="TYPE,...", help=f"all (OMB's three), or of {', '.join(DATATYPES)}")
    add(
        "-z",
        dest="percentiles",
        type=_percentiles,
        nargs="?",
        const=_percentiles(_DEFAULT_PERCENTILES),
        default=(),
        metavar="P,...",
        help=f"percentiles of the iterations ({_DEFAULT_PERCENTILES})",
    )
    add("-G", dest="graphs", type=some_of(_GRAPHS), default=[], metavar="KIND,...", help="draw: tty, png, pdf")
    add("-M", dest="limit_bytes", type=_bytes, default=512 << 20, metavar="BYTES", help="memory per rank (512M)")
    add("-k", dest="root", type=_root, default=0, metavar="ROOT", help="fixed:RANK or rotate (fixed:0)")
    add("-l", dest="in_place", action="store_true", help="allreduce in place")
    add(
        "-W",
        dest="window",
        type=_calls_in_a_row,
        default=WINDOW,
        metavar="N",
        help=f"messages per iteration of bw, bibw ({WINDOW})",
    )


def _add_ours(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("options of accdp").add_argument
    add("-n", "--ranks", type=at_least(1), metavar="N", help="start so many ranks by `accdp run`, then measure")
    add(
        "--backend",
        dest="backends",
        type=some_of(BACKENDS),
        default=["accdp"],
        metavar="NAME,...",
        help="in one interleaved run: accdp (Communicator), mpi (mpi4py), accdp-torch, gloo, nccl (torch)",
    )
    add(
        "--codec",
        type=lambda text: list(dict.fromkeys(text.split(","))),
        default=[],
        metavar="NAME,...",
        help="compressed bcast of accdp",
    )
    add("--error-bound", type=_bound, metavar="X", help="with --codec: allowed error, 1e-3 or relative:0.01")
    add("--data", default="random", metavar="KIND", help="random, zeros, weights:FILE, gradients (random)")
    add(
        "--busbw",
        nargs="?",
        const="ranks",
        choices=("ranks", "gpus"),
        help="nccl-tests' columns as well; n in busbw counts ranks (default) or gpus",
    )
    add("--sizes", dest="size_list", type=size_list, metavar="N,...", help="exactly these sizes instead of -m")
    seconds = real("seconds > 0", lambda value: 0 < value < math.inf)
    add("--seconds", type=seconds, metavar="S", help="fewer calls where a size would take longer")
    add(
        "--at-least",
        type=at_least(1),
        default=LEAST_ITERATIONS,
        metavar="N",
        help=f"with --seconds: so many iterations however long they take ({LEAST_ITERATIONS})",
    )
    add(
        "--burst", type=_calls_in_a_row, default=1, metavar="N", help="calls between two barriers; times are of one (1)"
    )
    add(
        "--async",
        dest="asynchronous",
        action="store_true",
        help="of torch's backends: a call is async_op=True, and wait() at once",
    )
    add("--json", type=not_empty("a file"), metavar="FILE", help="append one JSON object per row")
    add("--csv", type=not_empty("a file"), metavar="FILE", help="append rows")
    add("--mpi-is-cuda-aware", action="store_true", help="with -d cuda: the MPI takes device memory")


def _conflict(args: argparse.Namespace, row: Operation) -> str | None:
    """Return what does not go together, or None."""
    low, high = args.sizes
    if args.validate and row.kind == "barrier":
        return "argument -c: a barrier has no result to check"
    if args.validate and row.reduces and args.data not in ("random", "zeros"):
        return f"argument -c: sums of --data {args.data} are not exact: expected --data random or zeros"
    if args.full and row.is_pair:
        return f"argument -f: osu_{row.name} has no full format"
    if args.burst > 1 and row.is_pair:
        return f"argument --burst: osu_{row.name} has no barriers"
    if args.asynchronous and row.is_pair:
        return f"argument --async: osu_{row.name} has no collective"
    if args.asynchronous and (others := [name for name in args.backends if name in ("accdp", "mpi")]):
        return f"argument --async: {others[0]} has no async_op: expected --backend accdp-torch, gloo or nccl"
    if args.asynchronous and args.codec:
        return "argument --async: --codec is measured synchronously"
    if args.in_place and row.name != "allreduce":
        return "argument -l: only allreduce can be in place"
    if (args.codec or args.error_bound) and row.name != "bcast":
        return "argument --codec: only bcast is compressed"
    if args.codec and not any(name.startswith("accdp") for name in args.backends):
        return "argument --codec: expected a backend of accdp, which alone compresses"
    if args.error_bound and not args.codec:
        return "argument --error-bound: expected --codec too, such as --codec auto"
    if args.busbw and row.kind != "collective":
        return f"argument --busbw: osu_{row.name} has no bus bandwidth"
    if args.busbw == "gpus" and args.device != "cuda":
        return "argument --busbw gpus: expected -d cuda"
    if low is not None and high is not None and low > high:
        return f"argument -m: expected MIN <= MAX, got {low}:{high}"
    if args.root != 0 and not row.is_rooted:
        return f"argument -k: osu_{row.name} has no root"
    if args.window != WINDOW and row.kind != "bandwidth":
        return f"argument -W: osu_{row.name} has no window"
    if args.iterations is not None and args.at_least > args.iterations and args.at_least != LEAST_ITERATIONS:
        return f"argument --at-least: expected at most the {args.iterations} of -i, got {args.at_least}"
    if row.kind == "barrier" and (args.size_list or low is not None or high is not None):
        return "argument -m: a barrier has no size"
    return None


def _wants_floats(args: argparse.Namespace) -> bool:
    return bool(args.codec) or args.data.startswith("weights:") or args.data == "gradients"


def sizes(args: argparse.Namespace, row: Operation, itemsize: int) -> list[int]:
    """Return the sizes in bytes, doubling, each a multiple of the datatype's size."""
    if row.kind == "barrier":
        return [0]
    if args.size_list:
        return [size for size in args.size_list if size >= itemsize and size % itemsize == 0]
    low, high = args.sizes
    high = row.max_bytes if high is None else high
    # OMB goes on from the smallest by doubling, so MAX itself is there only if doubling meets it.
    size, found = max(itemsize, low or 1), []
    while size <= high:
        found.append(size // itemsize * itemsize)
        size *= 2
    return found


def counts(args: argparse.Namespace, row: Operation, size: int) -> tuple[int, int]:
    """Return iterations and warm-up of a size."""
    is_large = size > LARGE_BYTES
    iterations = max(row.iterations[is_large], args.at_least) if args.iterations is None else args.iterations
    return iterations, row.warm_up[is_large] if args.warm_up is None else args.warm_up


def _bytes(text: str) -> int:
    if not (nbytes := bytes_of(text)):
        raise argparse.ArgumentTypeError(f"expected more than 0 bytes, got {text!r}")
    return nbytes


def _sizes(text: str) -> tuple[int | None, int | None]:
    low, colon, high = text.partition(":")
    if not colon:
        return None, _bytes(low)
    if not low and not high:
        raise argparse.ArgumentTypeError(f"expected [MIN:]MAX, MIN: or :MAX, got {text!r}")
    return _bytes(low) if low else None, _bytes(high) if high else None


def _types(text: str) -> list[str]:
    return list(_ALL_TYPES) if text == "all" else some_of(DATATYPES)(text)


def _percentiles(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(is_whole(word, 1, 99) for word in words):
        raise argparse.ArgumentTypeError(f"expected percentiles from 1 to 99, such as 50,99, got {text!r}")
    return tuple(sorted({int(word) for word in words}))


def _root(text: str) -> int | None:
    if text == "rotate":
        return None
    rank = text.removeprefix("fixed:")
    if not is_whole(rank, 0):
        raise argparse.ArgumentTypeError(f"expected fixed:RANK or rotate, got {text!r}")
    return int(rank)


def size_list(text: str) -> list[int]:
    """Read sizes in bytes, comma separated, with k, M or G if wanted; return them in order."""
    return sorted({_bytes(word) for word in text.split(",")})


def _bound(text: str) -> ErrorBound:
    is_relative = text.startswith("relative:")
    try:
        value = float(text.removeprefix("relative:"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a number > 0 or relative:NUMBER, got {text!r}")
    return ErrorBound(value, is_relative)


def bound_argument(bound: ErrorBound | None) -> Any:
    """Return an error bound as bcast_compressed() takes it."""
    if bound is None:
        return None
    from ..bcast import relative

    return relative(bound.value) if bound.is_relative else bound.value
