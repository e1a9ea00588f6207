"""What the ranks give in one call, and the arrays that carry it. Equal on all ranks, because all draw from one seed.

Values are small integers, so that every sum and product is exact and results can be compared with ``==``. They follow
no period, so that a block in the wrong place shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from accdp_comm import settings

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
REDUCED = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
RECORD = np.dtype([("id", "u1"), ("value", "<f8")])  # 9 bytes that mean nothing to us
MOVED = [*REDUCED, "record"]
# One of each size, and the one that NumPy has not. Enough for numbers of ranks that are there for the ways between
# them, which know no datatypes: on 2 cores, all of these would take minutes more.
OF_EACH_SIZE = ["uint8", "bfloat16", "float32", "complex128", "record"]

_BIT_OPS = ["band", "bor", "bxor"]

_DRAWN = np.random.default_rng(0).integers(0, 1 << 16, 1 << 23, dtype=np.uint16)


def drawn(name: tuple[int, ...], count: int) -> np.ndarray:
    """``count`` random numbers of 16 bits, the same for a name in every process.

    All are pieces of one sequence: a generator for each would be most of what the tests cost.
    """
    start = hash(name) % (_DRAWN.size - count)
    return _DRAWN[start : start + count]


def letter(source: int, target: int, length: int, number: int = 0) -> np.ndarray:
    """The bytes of message ``number`` of that length from one rank to another."""
    return drawn((source, target, length, number), length).astype(np.uint8)


def ops_of(datatype: str) -> list[str]:
    """The reductions that a datatype has."""
    if datatype == "bool":
        return ["sum", "prod", "min", "max", *_BIT_OPS]
    if datatype in INTEGERS:
        return ["sum", "avg", "prod", "min", "max", *_BIT_OPS]
    return ["sum", "avg", "prod"] if datatype in COMPLEX else ["sum", "avg", "prod", "min", "max"]


def plain_dtype(datatype: str) -> np.dtype:
    """The NumPy datatype in which results are compared; NumPy has no bfloat16, whose values are all float32's."""
    return {"record": RECORD, "bfloat16": np.dtype("float32")}.get(datatype) or np.dtype(datatype)


def item_bytes(datatype: str) -> int:
    return 2 if datatype == "bfloat16" else plain_dtype(datatype).itemsize


def array_of(plain: np.ndarray, datatype: str) -> Any:
    """What is handed to the communicator for these values: an array, or a tensor where NumPy has no such datatype."""
    if datatype != "bfloat16":
        return plain.copy()
    import torch

    return torch.from_numpy(plain.copy()).to(torch.bfloat16)


def plain_of(array: Any) -> np.ndarray:
    """The values of an array or tensor."""
    return array if isinstance(array, np.ndarray) else array.float().numpy()


@dataclass(frozen=True)
class Case:
    """One call on ``size`` ranks."""

    size: int
    datatype: str
    count: int
    op: str = ""
    root: int = 0

    def __str__(self) -> str:
        return f"{self.op} of {self.count} {self.datatype}, root {self.root}, {self.size} ranks"

    def plain(self, rank: int, part: int = 0, count: int | None = None) -> np.ndarray:
        """Values of part ``part`` of what ``rank`` gives."""
        count = self.count if count is None else count
        found = drawn((rank, part, count), count).astype(np.int64)
        if self.datatype == "bool":
            return found % 2 == 1
        if self.op == "prod":
            # Few threes: a bfloat16 has eight bits, and the product of four has seven.
            values = 1 + found % (3 if rank < 4 else 2)
        elif self.op == "avg":
            values = found % 4 * self.size
        else:
            low = 0 if self.datatype.startswith("u") or self.op in _BIT_OPS else -5
            values = low + found % (11 - low)
        if self.datatype == "record":
            made = np.empty(count, RECORD)
            made["id"], made["value"] = values % 256, values * 1.5
            return made
        if self.datatype in COMPLEX:
            return (values + 1j * np.roll(values, 1)).astype(self.datatype)
        return values.astype(plain_dtype(self.datatype))

    def everybody(self, part: int = 0, count: int | None = None) -> list[np.ndarray]:
        """Values of that part of what each rank gives."""
        return [self.plain(rank, part, count) for rank in range(self.size)]

    def given(self, rank: int, part: int = 0, count: int | None = None) -> Any:
        """The same as an array of its own."""
        return array_of(self.plain(rank, part, count), self.datatype)

    def blank(self, *shape: int) -> Any:
        """Room for results, filled with what no case gives."""
        if self.datatype == "record":
            return np.full(shape, np.array((77, 77.0), RECORD))
        fill = np.full(shape, 77).astype(plain_dtype(self.datatype))
        return array_of(fill, self.datatype)


def roots_of(size: int, datatype: str) -> list[int]:
    """All ranks; of many, two for each datatype, which are others for the next, and all for one."""
    if size <= 4 or datatype == "float32":
        return list(range(size))
    at = MOVED.index(datatype)
    return [at % size, (at + 3) % size]


def counts_of(datatype: str) -> list[int]:
    """None, one, and around the chunk that ranks hand each other."""
    chunk = parse_size(settings.value_of("chunk_bytes")) // item_bytes(datatype)
    return [0, 1, chunk - 1, chunk, chunk + 1, 3 * chunk + 7]


def parse_size(text: str) -> int:
    factor = {"k": 1 << 10, "M": 1 << 20}.get(text[-1])
    return int(text[:-1]) * factor if factor else int(text)


def reductions(size: int, datatype: str) -> Iterator[Case]:
    """Sums of all counts; other operations, for which data is cut and sent alike, within a chunk and beyond it."""
    counts = counts_of(datatype)
    for op in ops_of(datatype):
        for count in counts if op == "sum" else (1, counts[4]):
            yield Case(size, datatype, count, op)


def movements(size: int, datatype: str) -> Iterator[Case]:
    for count in counts_of(datatype):
        yield Case(size, datatype, count)
