"""View of the settings table, which lives in csrc/base/settings.cpp: rows, values in force, scoped change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from . import _core


@dataclass(frozen=True)
class Setting:
    """One row of the table with the value in force."""

    name: str
    env: str  # environment variable
    value: str
    default: str
    source: str  # "default", "environment" or "code"
    accepts: str
    meaning: str
    shared: bool  # all ranks of a group must have the same value


def table() -> list[Setting]:
    """Return all settings in the order of the table."""
    return [Setting(**row) for row in _core.settings()]


def _find(name: str) -> Setting:
    for row in table():
        if name in (row.name, row.env):
            return row
    raise _core.UsageError(f"{name}: no such setting; `accdp info` lists them")


def value_of(name: str) -> str:
    """Return the value in force of one setting, by its name or its environment variable."""
    return _find(name).value


@contextlib.contextmanager
def override(**values: object) -> Iterator[None]:
    """Set settings for the length of a with-block: ``with settings.override(chunk_bytes="256k"):``.

    Args:
        **values: By name; written as in the environment (``deterministic="on"``). All ranks must make the same change
            before a group is formed; a group that there is keeps what its ranks must share.
    Raises:
        UsageError: No such setting or not a value it accepts; nothing stays changed. Of ``topology``, ``codec`` and
            ``codecs_off`` any text is taken here, and refused by what uses it.
    """
    before = {row.env: (row.value, row.source) for row in map(_find, values)}
    _core.set_settings({_find(name).env: (str(value), "code") for name, value in values.items()})
    try:
        yield
    finally:
        _core.set_settings(before)
