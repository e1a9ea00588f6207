"""What the tests of bcast_compressed over a Communicator share."""

import numpy as np
from compress_data import (
    DATATYPES,
    array_of,
    codec_rows,
    hostile,
    item_bytes,
    weights,
    words_of,
)

from accdp_comm import (
    BcastResult,
    Communicator,
    _core,
)

ROWS = {row["name"]: row for row in codec_rows()}
# What the tests' settings make of a chunk: half of the 4 KiB that ranks of a node hand each other.
CHUNK_BYTES = 2048


def counts_of(datatype: str) -> list[int]:
    chunk = CHUNK_BYTES // item_bytes(datatype)
    return [0, 1, 3, chunk - 1, chunk, chunk + 1, 5 * chunk + 7]


def blank(words: np.ndarray) -> np.ndarray:
    """Room for these words, filled with what they are not."""
    return words ^ words.dtype.type(1)


def on_the_wire(world: Communicator, result: BcastResult) -> int:
    """Bytes that went between nodes: ranks that are not their node's leader see none."""
    return int(world.allgather(np.array([result.wire_bytes])).max())


def equal_everywhere(world: Communicator, *arrays) -> None:
    """All ranks have the same bytes."""
    check = 0
    for array in arrays:
        words = words_of(array)
        check = _core.crc32c(words.ctypes.data, words.nbytes, check)
    checks = world.allgather(np.array([check])).ravel().tolist()
    assert len(set(checks)) == 1, f"checksums of the ranks: {checks}"


def some_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Of all datatypes and many sizes, some empty, in an order that joins some neighbours and parts others."""
    made = {}
    for number, count in enumerate([3, 0, 700, 1, 1, 5000, 64, 0, 2049]):
        for datatype in DATATYPES:
            make = weights if number % 2 else hostile
            made[f"{datatype}.{number}"] = array_of(make(datatype, count, seed + number), datatype)
    return made


def scaled(datatype: str, count: int, scale: float) -> np.ndarray:
    """Normally distributed values with this standard deviation, as words."""
    values = np.random.default_rng(2).normal(0, scale, count)
    if datatype == "bfloat16":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    return values.astype(datatype).view(DATATYPES[datatype][1])
