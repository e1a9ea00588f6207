"""One colour per backend in every figure and one order of backends in every table."""

from __future__ import annotations

_COLOURS = {
    "accdp": "#d62728",
    "accdp-torch": "#ff7f0e",
    "mpi": "#1f77b4",
    "mpich": "#1f77b4",
    "openmpi": "#17becf",
    "gloo": "#7f7f7f",
    "nccl": "#2ca02c",
    "osu": "#9467bd",
}
_STYLES = ("-", "--", ":", "-.")


def colour(backend: str) -> str:
    """Return a backend's colour; its codecs share it."""
    return _COLOURS.get(backend.partition("+")[0], "#000000")


def style(backend: str, backends: list[str]) -> str:
    """Return a line style that tells the codecs of one backend apart."""
    family = [name for name in backends if name.partition("+")[0] == backend.partition("+")[0]]
    return _STYLES[family.index(backend) % len(_STYLES)]


def in_order(backends: list[str]) -> list[str]:
    """Return backends in the order of the table above, others last."""
    known = list(_COLOURS)
    return sorted(set(backends), key=lambda name: (_place(name, known), name))


def _place(name: str, known: list[str]) -> int:
    family = name.partition("+")[0]
    return known.index(family) if family in known else len(known)
