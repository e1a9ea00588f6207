"""`accdp bench OP ...`, and what the files bench/osu_*.py call: run a benchmark and print it as OMB does."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import own_programs
from . import bandwidth, omb, options, record
from .measure import BLOCKS
from .operations import Refused, RefusedAlone
from .session import Result, Session, open_session
from .world import early_rank, is_one_of_several

_ALONE_S = 1.0
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # to standard output, on rank 0


def main(arguments: Sequence[str] | None = None, prog: str = "accdp bench", operation: str | None = None) -> int:
    """Run one benchmark; return the exit code.

    Args:
        arguments: Words of the command line after the program's name; None: this process's.
        prog: Name of the program, for messages.
        operation: Of the table; None: the first word says it.

    Collective over the ranks that a launcher started; with ``--ranks`` this process becomes `accdp run` instead.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = options.parse(words, prog, operation)

    def run() -> int:
        if args.ranks is not None:
            _be_one_of(args.ranks, words, args.operation if operation else None)
        with open_session(args) as session:
            return _run(session, args, prog)

    return saying_refusals(prog, run)


def saying_refusals(prog: str, run: Callable[[], int]) -> int:
    """Return what run() does; where it is refused, say so in one line, by one rank, and return 2. Collective."""
    try:
        return run()
    except RefusedAlone as error:
        return _refuse_alone(prog, error)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered must not fail again
        return _refuse_alone(prog, error)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # who started us hears how we ended
        signal.raise_signal(signal.SIGINT)
        raise
    except Refused as error:
        # All ranks are here, for the same reason. One says it; a status of the others could make the launcher end it.
        if early_rank():
            return 0
        print(f"{prog}: {error}", file=sys.stderr, flush=True)
        return 2


def _refuse_alone(prog: str, error: Exception) -> int:
    """Say why this rank cannot take part, and see to it that no other waits for it."""
    rank = early_rank()
    if rank:
        # Where rank 0 lacks the same, the launcher ends us within this second, and there is one line instead of many.
        # Nothing tells us sooner: what ranks would talk by is what is missing.
        time.sleep(_ALONE_S)
    print(f"{prog}: {f'rank {rank}: ' if rank else ''}{error}", file=sys.stderr, flush=True)
    if is_one_of_several():
        signal.raise_signal(signal.SIGTERM)  # a mere status before MPI_Init is nothing that mpiexec would mind
    return 2


def _be_one_of(ranks: int, words: list[str], operation: str | None) -> None:
    """Return where this process is one of so many ranks; else become the `accdp run` that starts them so.

    Raises:
        Refused: It is one of another number of ranks.
        RefusedAlone: It has a rank's variables, but is none.
    """
    from .. import _core, settings
    from ..launcher import find_launcher

    try:
        settings.table()  # rather than by each rank that is started
        launcher = find_launcher()
    except _core.UsageError as error:  # in a rank's child
        raise RefusedAlone(str(error)) from error
    if launcher is not None and launcher.size == 1 < ranks and "SLURM_STEP_ID" in os.environ:
        launcher = None  # a step of one task is where people type and scripts run (srun --pty bash)
    by_torchrun = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE") if _is_number(name)]
    if launcher is None and len(by_torchrun) < 2:
        # No labels: rank 0 alone prints, and scripts read it as OMB's output.
        of_rank = own_programs.accdp("bench", *([operation] if operation else []), *words)
        run = own_programs.accdp("run", "-n", str(ranks), "--label", "never", "--", *of_rank)
        os.execv(run[0], run)
    started = launcher.size if launcher else by_torchrun[1]
    if started != ranks:
        what = f"one of {started} ranks" if started or launcher is None else f"a rank of {launcher.name}"
        raise Refused(f"--ranks {ranks}: this is {what} already; start it without mpiexec or torchrun")


def _is_number(variable: str) -> bool:
    return os.environ.get(variable, "").isdecimal()


def _run(session: Session, args: argparse.Namespace, prog: str) -> int:
    speaks = session.world.rank == 0

    def warn(text: str) -> None:
        if speaks:
            print(f"{prog}: {text}", file=sys.stderr, flush=True)

    results: list[Result] = []
    columns = omb.Columns(args.full, args.validate, args.percentiles)
    page = _Page(columns, args.device, several=len(args.backends) * max(1, len(args.codec)) > 1)
    sizes = {datatype: session.sizes(datatype, warn) for datatype in args.types}
    bar = _Bar(speaks, session.operation.name, BLOCKS * sum(map(len, sizes.values())))
    try:
        for datatype in args.types:
            bar.show()
            for found in session.measure(datatype, sizes[datatype], bar.tick):
                bar.hide()
                if speaks:
                    page.add(found)
                bar.show()
                results += found
    except BaseException:  # Ctrl-C, or that it has ended another rank: what has been measured is not lost
        bar.hide()
        if speaks:
            page.end()
        raise
    finally:
        bar.hide()
    if speaks:
        page.end()
        try:
            _write(args, results)
        except OSError as error:  # a full disk, say: what was measured stands above
            warn(f"{error.filename or 'writing'}: {error.strerror}")
            return 2
    errors = sum(result.measured.errors or 0 for result in results)
    if errors:
        bad = [f"{result.row['backend']} at {result.row['bytes']} bytes" for result in results if result.row["errors"]]
        warn(f"validation failed: {errors} wrong elements: {', '.join(dict.fromkeys(bad))}")
    return 1 if errors else 0


def _write(args: argparse.Namespace, results: list[Result]) -> None:
    """Tables, files and figures after the run."""
    rows = [result.row for result in results]
    names = list(dict.fromkeys(row["backend"] for row in rows))
    if args.busbw:
        for name in names:
            print(f"#\n# nccl-tests' columns: {name}")
            for line in bandwidth.table(results[0].operation, [row for row in rows if row["backend"] == name]):
                print(line)
    if len(names) > 1:
        for line in comparison(rows):
            print(line)
    sys.stdout.flush()
    if args.json:
        record.append_json(args.json, rows)
    if args.csv:
        record.append_csv(args.csv, rows)
    if args.graphs:
        from . import graph

        for kind in args.graphs:
            print(graph.draw(results, kind), flush=True)


class _Page:
    """OMB's output: as rows come where there is one backend, else backend after backend at the end."""

    def __init__(self, columns: omb.Columns, device: str, *, several: bool):
        self._columns, self._device, self._several = columns, device, several
        self._datatypes: dict[str, str] = {}  # last one printed, by backend
        self._texts: dict[str, list[str]] = {}

    def add(self, found: list[Result]) -> None:
        for result in found:
            name, datatype = result.row["backend"], result.row["datatype"]
            lines = self._texts.setdefault(name, [])
            if name not in self._datatypes:
                lines.append(f"\n# Backend: {name}" if self._several else "")
                lines.append(omb.preamble(result.operation, self._device))
                if burst := result.row.get("burst"):
                    lines.append(f"# {burst} calls between two barriers; times are of one\n")
                if result.row.get("is_async"):
                    lines.append("# Calls: async_op=True, then wait()\n")
            if self._datatypes.get(name) != datatype:
                lines.append(omb.header(result.operation, datatype.upper(), self._columns))
                self._datatypes[name] = datatype
            values = omb_values(result, self._columns.percentiles)
            lines.append(omb.row(result.operation, self._columns, result.row["bytes"], values))
            if "+" in name:  # what was asked for may not have been worth it
                lines.append(f"#   {name}: sent as {result.row['codec']}, ratio {result.row['ratio']:.2f}\n")
            if not self._several:
                print("".join(lines), end="", flush=True)
                lines.clear()

    def end(self) -> None:
        for lines in self._texts.values():
            print("".join(lines), end="", flush=True)


def omb_values(result: Result, percentiles: Sequence[int]) -> dict[str, Any]:
    """Return the numbers of an OMB row."""
    times, made = result.measured.times, result.row
    if result.operation.kind == "bandwidth":
        nbytes = result.operation.window_bytes(made["bytes"], made["window"])
        first, tail = made["mbps"], [times.tail_mbps(nbytes, p) for p in percentiles]
    else:
        first, tail = made["avg_us"], [times.tail_us(p) for p in percentiles]
    limits = {"min": made["min_us"], "max": made["max_us"], "iterations": made["iterations"]}
    return limits | {"first": first, "errors": made["errors"], "tail": tail}


def comparison(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines that put the backends of one run side by side; medians of the slowest rank and their spread."""
    names = list(dict.fromkeys(row["backend"] for row in rows))
    head = f"# {'Size':<12}" + "".join(f"{f'{name} us (p10-p90)':>30}" for name in names)
    first = names[0]
    width = max(22, 2 + max((len(f"{name} / {first}") for name in names[1:]), default=0))
    lines = ["#", head + "".join(f"{f'{name} / {first}':>{width}}" for name in names[1:])]
    for key in dict.fromkeys((row["datatype"], row["bytes"]) for row in rows):
        found = {row["backend"]: row for row in rows if (row["datatype"], row["bytes"]) == key}
        text = f"# {key[1]:<12}"
        for name in names:
            spread = f"({found[name]['p10_us']:.2f}-{found[name]['p90_us']:.2f})"
            text += f"{found[name]['median_us']:>12.2f} {spread:>17}"
        ratios = [found[name]["median_us"] / found[first]["median_us"] for name in names[1:]]
        lines.append(text + "".join(f"{ratio:>{width}.2f}" for ratio in ratios))
    return lines


class _Bar:
    """A progress bar on standard error, on rank 0 and on a terminal only; elsewhere it does nothing."""

    def __init__(self, speaks: bool, title: str, steps: int):
        self._bar: Any = None
        if speaks and (sys.stderr.isatty() or os.environ.get("TTY_COMPATIBLE") == "1"):
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ImportError:
                return  # an environment of another MPI, with NumPy and mpi4py alone

            # Drawn at ticks alone: a thread that draws would take the interpreter away from what is measured.
            self._bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._task = self._bar.add_task(title, total=steps)

    def tick(self) -> None:
        """Count a block."""
        if self._bar is not None:
            self._bar.advance(self._task)
            self._bar.refresh()

    def show(self) -> None:
        """Draw the bar from now on."""
        if self._bar is not None:
            self._bar.start()

    def hide(self) -> None:
        """Take the bar off the screen, so that lines can be printed."""
        if self._bar is not None:
            self._bar.stop()
