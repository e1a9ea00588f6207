"""Markdown of what tests/failure found: one line per case, with what was done, what each rank said, and how soon.

ACCDP_FAILURE_TABLE=rows.jsonl pytest tests/failure && python tests/failure/table.py rows.jsonl
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def tidy(text: str) -> str:
    """One line that reads alike on every run: no process ids, no host, nothing that Markdown would take as its own."""
    text = re.sub(r"pid \d+", "pid …", " ".join(text.split()))
    text = re.sub(r"host [^) ]+", "host …", text)
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def speech(rank: dict[str, Any]) -> str:
    """What one rank said, without the words that only tell it from the others, or how it ended if it said nothing."""
    if rank["said"]:
        return tidy(re.sub(r"rank \d+( of \d+, group \S+)?: ", "", rank["said"], count=1).removesuffix(": "))
    status = rank["status"]
    return "killed" if status == -9 else f"exit status {status}" if status >= 0 else f"ended by signal {-status}"


def after(times: list[float]) -> str:
    """When they said it; from the first to the last if that is not nearly the same."""
    if not times:
        return ""
    first, last = min(times), max(times)
    return f", {last:.2f} s" if last - first < 0.1 else f", {first:.2f} to {last:.2f} s"


def outcomes(ranks: list[dict[str, Any]]) -> list[str]:
    """One line for all ranks that said the same."""
    together: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        together.setdefault(speech(rank), []).append(rank)
    lines = []
    for text, members in together.items():
        who = ("rank " if len(members) == 1 else "ranks ") + ", ".join(str(rank["rank"]) for rank in members)
        times = [rank["after_s"] for rank in members if rank["after_s"] is not None]
        lines.append(f"{who}{after(times)}: {text}")
    return lines


def render(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = ["| done | said by each rank, after |", "|---|---|"]
    for row in rows:
        lines.append(f"| {tidy(row['done'])} | {'<br>'.join(outcomes(row['ranks']))} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: table.py ROWS.jsonl")
    with open(sys.argv[1]) as file:
        print(render([json.loads(line) for line in file]))


if __name__ == "__main__":
    main()
