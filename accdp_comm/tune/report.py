"""What `accdp tune` shows at its end: the table, the best command line and the picture."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from .space import Batches
from .trial import Job, Outcome, environment, run_command


def table(outcomes: Sequence[Outcome], best: Outcome | None) -> Table:
    """One row per point in the order of the search."""
    per_gpu = any(one.point.ranks_per_gpu for one in outcomes)
    made = Table(title="accdp tune", title_justify="left")
    optional = [
        ("rank's batch", lambda one: one.point.batch_size),
        ("global batch", lambda one: f"{round(one.global_batch or one.point.global_batch or 0, 2):.12g}"),
        ("workers", lambda one: one.point.workers),
        ("codec", lambda one: one.point.codec),
    ]
    shown = [(name, get) for name, get in optional if any(get(one) not in (None, "0") for one in outcomes)]
    loads = sorted({name for one in outcomes for name in one.load})
    made.add_column("ranks per GPU" if per_gpu else "ranks", justify="right")
    for name in (*(name for name, _ in shown), "samples/s", "+-", *(f"{name} %" for name in loads), "s"):
        made.add_column(name, justify="right")
    made.add_column("")
    for one in outcomes:
        measured = one.samples_per_s > 0
        cells = [f"{one.point.density}", *(_text(get(one)) for _, get in shown)]
        cells += [rate(one.samples_per_s), f"{100 * one.error:.1f} %"] if measured else ["", ""]
        cells += [f"{one.load[name]:.0f}" if name in one.load else "" for name in loads]
        cells += [f"{one.wall_s:.1f}" if one.wall_s else "", "best" if one is best else _status(one)]
        made.add_row(*cells, style="bold" if one is best else None)
    return made


def rate(per_s: float) -> str:
    """Samples/s with three digits, or all before the point."""
    return f"{per_s:.3g}" if per_s < 100 else f"{per_s:.0f}"


def _text(value: object) -> str:
    return "" if value in (None, "0") else str(value)


def _status(one: Outcome) -> str:
    return "" if one.status == "ok" else f"{one.status}: {one.reason}" if one.reason else one.status


def command_line(job: Job, best: Outcome) -> str:
    """The command that runs the best point, as one types it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment(best.point).items()]
    return " ".join([*variables, "accdp", shlex.join(run_command(job, best.point))])


def picture(path: Path, outcomes: Sequence[Outcome], batches: Batches) -> bool:
    """Draw samples/s over ranks per GPU (or ranks), a line for each batch size, codec and number of workers.

    Filled marks were measured to the end, open ones stopped early; a cross is a point that ran out of memory.
    Returns:
        False where matplotlib is not installed; nothing is drawn then.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name in dict.fromkeys(_line(one, batches) for one in outcomes):
        of_line = [one for one in outcomes if _line(one, batches) == name]
        measured = sorted((one for one in of_line if one.samples_per_s), key=lambda one: one.point.density)
        exhausted = [one.point.density for one in of_line if one.status == "out of memory"]
        if not measured and not exhausted:
            continue  # skipped as a whole
        across, up = [one.point.density for one in measured], [one.samples_per_s for one in measured]
        (line,) = axes.plot(across, up, label=name)
        for one in measured:
            face = line.get_color() if one.status == "ok" else "white"
            axes.plot(one.point.density, one.samples_per_s, "o", color=line.get_color(), markerfacecolor=face)
        axes.plot(exhausted, [0] * len(exhausted), "x", color=line.get_color(), clip_on=False)
    places = sorted({one.point.density for one in outcomes})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("ranks per GPU" if any(one.point.ranks_per_gpu for one in outcomes) else "ranks")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _line(one: Outcome, batches: Batches) -> str:
    point = one.point
    parts = {
        "global": f"global batch {point.global_batch}",
        "rank": f"{point.batch_size} samples a rank",
        "script": "the script's batch",
    }
    name = parts[batches.kind]
    if point.workers is not None:
        name += f", {point.workers} workers"
    return name if point.codec is None else f"{name}, {point.codec}"
