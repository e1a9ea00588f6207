"""`accdp tune`: its options, and what it prints while it searches."""

from __future__ import annotations

import argparse
import platform
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..launch.options import add_script
from ..readers import not_empty, numbers, real

if TYPE_CHECKING:
    from rich.console import Console

    from .asked import Asked
    from .record import Record
    from .search import Search
    from .space import Point
    from .trial import Job, Outcome

_EPILOG = """\
{batch_size}, {global_batch_size}, {workers} and {ranks} in the script's arguments are replaced by what is tried; or the
script reads accdp_comm.tuned("batch_size", 32) instead. Without --global-batch and --batch-size it keeps its own.
"""


class _Unwritten(Exception):
    """An outcome could not be kept, as where a disk is full."""


def add_parser(commands: Any) -> None:
    """Add `tune` to the commands of an argparse parser."""
    tune = commands.add_parser(
        "tune",
        help="find ranks, batch size and loader workers that are fastest",
        usage="accdp tune [--ranks LIST] [--global-batch LIST] [--workers LIST] ... [--] SCRIPT ...",
        epilog=_EPILOG,
        allow_abbrev=False,  # as for accdp run
    )
    ranks = tune.add_mutually_exclusive_group()
    ranks.add_argument("--ranks-per-gpu", type=_sorted(1), metavar="LIST", help="ranks per GPU to try, such as 1,2,4")
    ranks.add_argument("--ranks", type=_sorted(1), metavar="LIST", help="ranks to try, on a machine without GPUs")
    batch = tune.add_mutually_exclusive_group()
    batch.add_argument("--global-batch", type=_sorted(1), metavar="LIST", help="batch sizes of all ranks together")
    batch.add_argument("--batch-size", type=_sorted(1), metavar="LIST", help="of each rank: the global batch changes")
    tune.add_argument("--any-global-batch", action="store_true", help="let the script's own global batch change")
    tune.add_argument("--workers", type=_sorted(0), metavar="LIST", help="loader processes of a rank to try, as 0,1,2")
    tune.add_argument("--codec", type=_once, metavar="LIST", help="codecs to try (ACCDP_CODEC), where hosts are many")
    tune.add_argument("--gpus", type=_words, metavar="LIST", help="GPUs to use, as for accdp run (all)")
    tune.add_argument(
        "--run", type=shlex.split, default=[], metavar="TEXT", help="more options of accdp run, as --run='--mps on'"
    )
    seconds = real("seconds, more than 0 and up to a day", lambda value: 0 < value < 86400)
    tune.add_argument("--measure", type=seconds, default=9.0, metavar="S", help="seconds a good point is measured (9)")
    tune.add_argument("--start-limit", type=seconds, default=300.0, metavar="S", help="seconds to first steps (300)")
    tune.add_argument("--exhaustive", action="store_true", help="skip no point and stop none early")
    tune.add_argument("--output", type=_folder, default=Path("accdp-tune"), metavar="FOLDER", help="for all results")
    tune.add_argument("--fresh", action="store_true", help="forget the results that are in the folder")
    add_script(tune, "a Python script (*.py) or any program, longer than a trial, and its arguments", is_needed=True)


def main(options: argparse.Namespace) -> int:
    """Search, and show what was found; return the exit code: 0, 1 where no point worked, 130 or 143 where interrupted.

    Raises:
        UsageError: Options that contradict the script or the results in the folder.
    """
    # argparse needs add_parser() only; rich and numpy are loaded by those who tune.
    from rich.console import Console

    from . import asked, record, report
    from .search import Search

    wanted = asked.settle(options)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 120  # of a file; 80 would cut the table's words
    console.print(wanted.batches.says())
    for pair in wanted.left_out:
        console.print(f"left out, because it cannot be divided evenly: {pair}")
    kept = record.Record(options.output / "trials.jsonl", _question(options, wanted), fresh=options.fresh)
    if kept.outcomes:
        console.print(f"{len(kept.outcomes)} outcomes are of an earlier run; --fresh forgets them")
    search = Search(
        wanted.points, wanted.batches, exhaustive=options.exhaustive, any_global_batch=options.any_global_batch
    )
    code = _search(search, wanted.job, kept, console)
    best = search.best()
    console.print(report.table(search.outcomes, best))
    if best is None:
        console.print("no point was measured")
        return code or 1
    console.print(f"best: {report.command_line(wanted.job, best)}")
    if code == 1:  # there is no room for a profile either
        return code
    try:
        _write(options.output, wanted, search, best, console)
    except OSError as error:
        console.print(f"{options.output}: cannot write results there: {error.strerror or error}")
        return 1
    return code


def _search(search: Search, job: Job, kept: Record, console: Console) -> int:
    """Search, and show each point as it is tried; return 0, 1 where outcomes cannot be kept, 130 or 143."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from . import trial

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        _interruption() as signals,
    ):
        task = bar.add_task("", total=len(search.points))

        def attempt(point: Point, goes_on: Any) -> Outcome:
            name = _name(point)

            def watch(words: str) -> None:
                bar.update(task, description=f"{name}: {words}")

            return trial.run(job, point, goes_on, watch, lambda: bool(signals))

        def after(outcome: Outcome) -> None:
            try:
                kept.add(outcome)
            except OSError as error:
                raise _Unwritten(f"{kept.path.parent}: cannot write results there: {error.strerror}") from error
            bar.update(task, completed=len(search.outcomes))
            console.print(_says(outcome))

        try:
            search.run(attempt, kept.outcomes, after)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on from here")
            return 128 + signals[0]
        except _Unwritten as error:
            console.print(str(error))
            return 1
    return 0


def _question(options: argparse.Namespace, wanted: Asked) -> dict[str, object]:
    """Return what outcomes depend on, by which those of an earlier run are known that still hold."""
    from . import load

    return {
        "script": list(wanted.job.script),
        "batches": wanted.batches.kind,
        "run_options": list(wanted.job.run_options),
        "measure_s": options.measure,
        "exhaustive": options.exhaustive,
        "host": platform.node(),
        "cores": load.cores(),
        "versions": [__version__, version("torch")],
    }


def _says(outcome: Outcome) -> str:
    """Return the line for a point that was tried."""
    from . import report

    rate = f"{report.rate(outcome.samples_per_s)} samples/s" if outcome.samples_per_s else ""
    if outcome.rates:
        rate += f", median of {' '.join(map(report.rate, outcome.rates))}"
    seen = "steps seen by collectives alone" if outcome.seen_by == "collectives" else ""
    words = [rate, seen, "" if outcome.status == "ok" else outcome.status, outcome.reason]
    return f"{_name(outcome.point)}: {', '.join(word for word in words if word)}"


def _write(folder: Path, wanted: Asked, search: Search, best: Outcome, console: Console) -> None:
    """Write the profile and the picture, and say where they are."""
    from . import record, report, trial

    profile, drawn = folder / "profile.json", folder / "throughput.png"
    record.write_profile(profile, best, trial.words_of(wanted.job.script, best.point))
    by_profile = shlex.join(["accdp", "run", *wanted.job.run_options, "--profile", str(profile)])
    console.print(f"or:   {by_profile}")
    if report.picture(drawn, search.outcomes, wanted.batches):
        console.print(f"picture: {drawn}")
    else:
        console.print("no picture: matplotlib is not installed (pip install matplotlib)")


def _name(point: Point) -> str:
    parts = [f"{point.ranks} ranks" if point.ranks > 1 else "1 rank"]
    if point.ranks_per_gpu:
        parts[0] += f" ({point.ranks_per_gpu} per GPU)"
    if point.batch_size is not None:
        parts.append(f"batch {point.batch_size} each")
    if point.workers is not None:
        parts.append(f"{point.workers} workers")
    return ", ".join([*parts, *([point.codec] if point.codec else [])])


@contextmanager
def _interruption() -> Iterator[list[int]]:
    """The signals that asked for an end. They only leave a note: an exception in the middle of starting a job would
    leave its ranks behind."""
    from ..launch.interruption import stopping

    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in stopping()}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sorted(least: int) -> Callable[[str], list[int]]:
    return lambda text: sorted(set(numbers(least)(text)))


def _folder(text: str) -> Path:
    return Path(not_empty("a folder")(text))


def _words(text: str) -> list[str]:
    words = text.split(",")
    if not all(words):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, got {text!r}")
    return words


def _once(text: str) -> list[str]:
    return list(dict.fromkeys(_words(text)))
