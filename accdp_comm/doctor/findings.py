"""What a check finds, and how all findings are shown."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    verdict: str  # OK, WARN (slow, or will fail in some job) or FAIL (jobs do not work)
    found: str
    advice: str = ""  # what to do; never empty for WARN and FAIL


@dataclass(frozen=True)
class Check:
    """One row of the table: a question, how it is answered, and the code that does."""

    name: str
    how: str
    ask: Callable[[], Finding]


def run(checks: Sequence[Check]) -> Iterator[dict[str, str]]:
    """Make all checks, one by one; one that breaks is itself a finding, and the others are made all the same."""
    for check in checks:
        try:
            finding = check.ask()
        except Exception as error:
            finding = Finding(FAIL, f"the check failed: {type(error).__name__}: {error}", "please report this")
        yield {"name": check.name, "how": check.how, **asdict(finding)}


def as_text(row: dict[str, str], width: int) -> str:
    """Lay one finding out for reading, with what to do below it where that is needed.

    Args:
        row: Of run().
        width: Columns there are.
    """
    head = f"{row['verdict']:<5} {row['name']:<12} {row['found']}"
    lines = textwrap.wrap(head, max(width, 60), subsequent_indent=" " * 19)
    if row["advice"]:
        lines += textwrap.wrap(f"{'':19}-> {row['advice']}", max(width, 60), subsequent_indent=" " * 22)
    return "\n".join(lines)


def summary(rows: Sequence[dict[str, str]]) -> str:
    """Return how many findings there are of each kind."""
    return ", ".join(f"{sum(row['verdict'] == kind for row in rows)} {kind}" for kind in (OK, WARN, FAIL))


def as_json(rows: Sequence[dict[str, str]]) -> str:
    """Return the same as JSON: a list of objects with name, how, verdict, found and advice."""
    return json.dumps(list(rows), indent=2)


def exit_code(rows: Sequence[dict[str, str]]) -> int:
    """Return 1 if something failed; warnings alone are 0."""
    return int(any(row["verdict"] == FAIL for row in rows))
