"""Generated parts of pages: lines between two markers that name the command which writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Unmatched(Exception):
    """A page has one of two markers."""


def write(page: Path, command: str, lines: Sequence[str]) -> Path:
    """Put lines between the markers of a command, at the page's end where it has none; return the page."""
    begin, end = (f"<!-- {word}: written by {command} -->" for word in ("begin", "end"))
    text = page.read_text(encoding="utf-8") if page.exists() else "# Performance\n"
    made = "\n".join([begin, "", *lines, "", end])
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if bool(has_begin) != bool(has_end):
        raise Unmatched(f"{page} has one of the markers {begin} and {end}: expected both, or none")
    page.write_text(before + made + after if has_begin else f"{text.rstrip()}\n\n{made}\n", encoding="utf-8")
    return page


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
