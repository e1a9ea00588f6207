"""Markdown of what tests/failure found: ``ACCDP_FAILURE_TABLE=rows.jsonl pytest tests/failure; python table.py rows.jsonl``.

One line per case: what was done, what each rank said, after how many seconds.
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


def outcome(rank: dict[str, Any]) -> str:
    """What one rank said and when, or how it ended if it said nothing."""
    number, status = rank["rank"], rank["status"]
    if rank["said"]:
        return f"rank {number}, {rank['after_s']:.2f} s: {tidy(rank['said'])}"
    ends = "killed" if status == -9 else f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
    return f"rank {number}: {ends}"


def render(rows: list[dict[str, Any]]) -> str:
    lines = ["| done | said by each rank, after |", "|---|---|"]
    for row in rows:
        lines.append(f"| {tidy(row['done'])} | {'<br>'.join(outcome(rank) for rank in row['ranks'])} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: table.py ROWS.jsonl")
    with open(sys.argv[1]) as file:
        print(render([json.loads(line) for line in file]))


if __name__ == "__main__":
    main()
