"""How one compressed operation is to be done, checked: what goes through channels to the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ErrorBound(NamedTuple):
    """How far a float may be off; 0 is not at all."""

    value: float = 0.0
    is_relative: bool = False  # in units of each tensor's standard deviation


LOSSLESS = ErrorBound()


@dataclass(slots=True)  # not frozen: as Buffer
class StreamCall:
    """What a caller chose; equal on all ranks."""

    codec: str
    chunk_bytes: int = 0  # 0: as the settings say
    bound: ErrorBound = LOSSLESS
    label: int = 0  # hash of the tensors' names and memory formats
    algorithm: str = ""  # of a broadcast between nodes; empty: as the settings say
