"""The text format of the OSU micro-benchmarks 7.5: header lines and rows as they write them, and a reader for both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .operations import OPERATIONS, Operation

VERSION = "7.5"
_SIZE, _FIELD, _ITERATIONS, _NO_SIZE = 10, 18, 12, 17  # widths of columns


@dataclass(frozen=True)
class Columns:
    """Which columns a block has beside size and average (or bandwidth)."""

    full: bool = False
    validation: bool = False
    percentiles: Sequence[int] = ()


def preamble(operation: Operation, device: str = "cpu") -> str:
    """Return the lines with which a benchmark begins."""
    where = "-CUDA" if device == "cuda" else ""
    return f"\n# OSU MPI{where} {operation.title} v{VERSION}\n"


def header(operation: Operation, datatype: str, columns: Columns) -> str:
    """Return the lines before the rows of one datatype; ``datatype`` as MPI names it, such as MPI_CHAR."""
    is_bandwidth = operation.kind == "bandwidth"
    first = "Bandwidth (MB/s)" if is_bandwidth else "Avg Latency(us)"
    if operation.kind == "barrier":
        text = f"# {first}"
    else:
        text = f"# Datatype: {datatype}.\n{'# Size':<{_SIZE}}{first:>{_FIELD}}"
    if columns.full:
        text += f"{'Min Latency(us)':>{_FIELD}}{'Max Latency(us)':>{_FIELD}}{'Iterations':>{_ITERATIONS}}"
    if columns.validation:
        text += f"{'Validation':>{_FIELD}}"
    unit = "BW(MB/s)" if is_bandwidth else "Lat(us)"
    return text + "".join(f"{f'P{p} Tail {unit}':>{_FIELD}}" for p in columns.percentiles) + "\n"


def row(operation: Operation, columns: Columns, size: int, values: dict[str, Any]) -> str:
    """Return one row.

    Args:
        operation, columns: As for header().
        size: In bytes; a barrier has none.
        values: ``first`` (average in us, or MB/s), ``min``, ``max``, ``iterations``, ``errors``, ``tail`` (a list).
    """
    if operation.kind == "barrier":
        text = f"{values['first']:{_NO_SIZE}.2f}"
    else:
        text = f"{size:<{_SIZE}}{values['first']:{_FIELD}.2f}"
    if columns.full:
        text += f"{values['min']:{_FIELD}.2f}{values['max']:{_FIELD}.2f}{values['iterations']:{_ITERATIONS}}"
    if columns.validation:
        text += f"{'Fail' if values['errors'] else 'Pass':>{_FIELD}}"
    return text + "".join(f"{value:{_FIELD}.2f}" for value in values["tail"]) + "\n"


@dataclass
class Block:
    """What one benchmark printed for one datatype."""

    operation: str
    version: str
    device: str
    datatype: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


_TITLE = re.compile(r"# OSU MPI(-\S+)? (.*?) v(\S+)\s*$")
_NAMES = {row.title: name for name, row in OPERATIONS.items()}
_COLUMN = re.compile(
    r"Avg Latency\(us\)|Min Latency\(us\)|Max Latency\(us\)|Latency \(us\)|Bandwidth \(MB/s\)|\S+ Tail \S+|\w+"
)


def parse(text: str) -> list[Block]:
    """Read what OSU micro-benchmarks 5 to 7 (or ours) printed; lines of anything else are passed over.

    Returns:
        One block per benchmark and datatype; rows map column names, as printed, to numbers or words.
    """
    blocks: list[Block] = []
    for line in text.splitlines():
        if found := _TITLE.match(line):
            accelerator, title, version = found.groups()
            if title in _NAMES:
                device = (accelerator or "-cpu")[1:].lower()
                blocks.append(Block(_NAMES[title], version, device))
        elif not blocks:
            continue
        elif found := re.match(r"# Datatype: (\S+?)\.?\s*$", line):
            if blocks[-1].rows:  # -T with several datatypes
                last = blocks[-1]
                blocks.append(Block(last.operation, last.version, last.device))
            blocks[-1].datatype = found[1]
        elif re.match(r"# (Size|Avg Latency)\b", line):
            blocks[-1].columns = _COLUMN.findall(line)
        elif re.match(r"\s*\d", line) and blocks[-1].columns:
            words = line.split()
            if len(words) == len(blocks[-1].columns):
                blocks[-1].rows.append(dict(zip(blocks[-1].columns, map(_value, words), strict=True)))
    return blocks


def _value(word: str) -> Any:
    try:
        return int(word) if word.isdecimal() else float(word)
    except ValueError:
        return word
