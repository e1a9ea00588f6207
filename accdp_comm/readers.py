"""What commands read of a command line: numbers, sizes, rates and lists, by functions for argparse's ``type=``.

Each raises ArgumentTypeError with what was expected and what it got.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}


def at_least(least: int, what: str = "a whole number", most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers that are not smaller, nor greater; ``what`` they are called in its message."""

    def read(text: str) -> int:
        if not is_whole(text, least) or (most is not None and int(text) > most):
            wanted = f">= {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"expected {what} {wanted}, got {text!r}")
        return int(text)

    return read


def numbers(least: int) -> Callable[[str], list[int]]:
    """Return a reader of whole numbers with commas between them, each at least that."""

    def read(text: str) -> list[int]:
        words = text.split(",")
        if not all(is_whole(word, least) for word in words):
            raise argparse.ArgumentTypeError(f"expected numbers >= {least} with commas between them, got {text!r}")
        return list(map(int, words))

    return read


def is_whole(text: str, least: int, most: float = math.inf) -> bool:
    """Whether the text is a whole number from ``least`` to ``most``, in digits of ASCII."""
    # No number of anything has more digits: neither floats nor names of files need to bear it, nor int().
    return text.isascii() and text.isdecimal() and len(text) <= 18 and least <= int(text) <= most


def real(what: str, is_good: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a reader of numbers of which ``is_good`` holds, as it must not of NaN; ``what`` says which those are."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_good(value):
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
        return value

    return read


def not_empty(what: str) -> Callable[[str], str]:
    """Return a reader of a name, which an empty word, as of a variable that is not set, is not."""

    def read(text: str) -> str:
        if not text:
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
        return text

    return read


def bytes_of(text: str) -> int:
    """Read bytes such as 0, 4096, 64k, 64M or 64MiB, all in powers of 1024."""
    match = re.fullmatch(r"([0-9]{1,18})(?:([kmg])(?:ib)?)?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected bytes, with k, M, G or KiB, MiB, GiB if wanted, got {text!r}")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]


def rate_of(text: str) -> float:
    """Read bytes per second from a rate such as 1Gbit, 100Mbit (per second) or 1.2GB (per second); decimal units."""
    match = re.fullmatch(r"([0-9]{0,18}\.?[0-9]{1,18})([kKMG])(bit|B)(?:/s)?", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"expected a rate such as 1Gbit, 100Mbit or 1.2GB, got {text!r}")
    return float(match[1]) * _BITS[match[2].lower()] / (8 if match[3] == "bit" else 1)


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a reader of words of a list, with commas between them; each counts once."""

    def read(text: str) -> list[str]:
        words = text.split(",")
        if unknown := [word for word in words if word not in known]:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(known)}, got {', '.join(map(repr, unknown))}"
            )
        return list(dict.fromkeys(words))

    return read
