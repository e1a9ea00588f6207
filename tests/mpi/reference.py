"""What the collectives must give, in NumPy."""

import functools
from collections.abc import Sequence

import numpy as np

_COMBINE = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def combined(op: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Element by element, in the datatype of the parts."""
    total = functools.reduce(_COMBINE[op], parts)
    if op != "avg":
        return total
    # Averages of integers have been made exact by the cases.
    return (total // len(parts) if total.dtype.kind in "iu" else total / len(parts)).astype(total.dtype)


def assert_same(got: np.ndarray, wanted: np.ndarray, what: object) -> None:
    """Equal in every bit that counts; says where they first differ."""
    assert got.dtype == wanted.dtype, f"{what}: {got.dtype} instead of {wanted.dtype}"
    assert got.size == wanted.size, f"{what}: {got.size} elements instead of {wanted.size}"
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        at = wrong[0]
        raise AssertionError(
            f"{what}: {wrong.size} of {got.size} elements are wrong, "
            f"the first at {at}: {got[at]} instead of {wanted[at]}"
        )
