"""Tensors for the tests of compressed broadcasts, and what to compare them by: their bytes.

Everything is made from seeds, so that each rank can make what another rank has.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from accdp_comm import nvcomp
from accdp_comm._core import Datatype

# As a codec's row writes them -> as the core does, and the unsigned integer of one word.
DATATYPES = {
    "bool": (Datatype.bool_, "u1"),
    "uint8": (Datatype.u8, "u1"),
    "int8": (Datatype.i8, "u1"),
    "uint16": (Datatype.u16, "u2"),
    "int16": (Datatype.i16, "u2"),
    "uint32": (Datatype.u32, "u4"),
    "int32": (Datatype.i32, "u4"),
    "uint64": (Datatype.u64, "u8"),
    "int64": (Datatype.i64, "u8"),
    "float16": (Datatype.f16, "u2"),
    "bfloat16": (Datatype.bf16, "u2"),
    "float32": (Datatype.f32, "u4"),
    "float64": (Datatype.f64, "u8"),
    "complex64": (Datatype.c64, "u4"),
    "complex128": (Datatype.c128, "u8"),
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
# Bits of the mantissa; all others but the sign are exponent.
_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52, "complex64": 23, "complex128": 52}


def codec_rows() -> list[dict[str, Any]]:
    """The codecs of this build that work on host memory here and have any datatype."""
    return [row for row in nvcomp.codecs() if not row["why_not"] and not row["stand_in"] and row["datatypes"]]


def takes(row: dict[str, Any], datatype: str) -> bool:
    """Whether a codec's row says that it has a datatype."""
    return row["datatypes"] == "all" or datatype in row["datatypes"].split(", ")


EXACT = [row["name"] for row in codec_rows() if not row["lossy"]]
LOSSY = [row["name"] for row in codec_rows() if row["lossy"]]


def words_per_item(datatype: str) -> int:
    return 2 if datatype.startswith("complex") else 1


def item_bytes(datatype: str) -> int:
    return DATATYPES[datatype][0].itemsize


def weights(datatype: str, count: int, seed: int = 0) -> np.ndarray:
    """The words of something that every codec for the datatype makes smaller, as one-dimensional unsigned integers."""
    return _weights(datatype, count, seed).copy()


@functools.lru_cache(maxsize=64)  # tests ask for the same ones again and again, and to make them takes a millisecond
def _weights(datatype: str, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, count])
    count *= words_per_item(datatype)
    if datatype == "bool":
        return (random.random(count) < 0.02).astype("u1")
    if datatype not in _MANTISSA:  # small numbers, ascending
        return (np.arange(count) // 7 % 50).astype(DATATYPES[datatype][1])
    # Few digits, so that those codecs gain too that look for repetitions only.
    values = np.rint(random.normal(0, 0.02, count) * 512) / 512
    return _words_of(values, datatype)


def _words_of(values: np.ndarray, datatype: str) -> np.ndarray:
    if datatype == "bfloat16":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    kind = {"float16": "f2", "float32": "f4", "complex64": "f4"}.get(datatype, "f8")
    return values.astype(kind).view(DATATYPES[datatype][1])


def hostile(datatype: str, count: int, seed: int = 0) -> np.ndarray:
    """Words of the worst kind: for floats both zeros, denormals, infinities, NaN with payloads, all exponents."""
    return _hostile(datatype, count, seed).copy()


@functools.lru_cache(maxsize=64)
def _hostile(datatype: str, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, count, 7])
    kind = np.dtype(DATATYPES[datatype][1])
    count *= words_per_item(datatype)
    if datatype == "bool":
        return random.integers(0, 2, count).astype("u1")
    noise = random.integers(0, 1 << 8 * kind.itemsize, count, dtype=kind)
    if datatype not in _MANTISSA:
        return noise
    mantissa = kind.type((1 << _MANTISSA[datatype]) - 1)
    sign = kind.type(1 << 8 * kind.itemsize - 1)
    exponent = kind.type(~(mantissa | sign) & kind.type(-1 & ((1 << 8 * kind.itemsize) - 1)))
    shapes = [
        noise & sign,  # +0, -0
        noise & (mantissa | sign),  # denormal
        noise & sign | kind.type(1),  # the smallest
        noise & sign | exponent,  # infinite
        noise | exponent,  # NaN with a payload, quiet or signalling
        noise & sign | (exponent ^ (mantissa + kind.type(1))) | mantissa,  # the largest finite
        noise,  # any exponent
        _words_of(random.normal(0, 0.02, count), datatype),  # and ordinary ones
    ]
    return np.choose(random.integers(0, len(shapes), count), shapes)


def values_of(words: np.ndarray, datatype: str) -> np.ndarray:
    """The numbers of a real float datatype, in float64."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        if datatype == "bfloat16":
            return (words.astype("u4") << 16).view("f4").astype("f8")
        return words.view({"u2": "f2", "u4": "f4", "u8": "f8"}[DATATYPES[datatype][1]]).astype("f8")


def array_of(words: np.ndarray, datatype: str) -> Any:
    """An array of its own with these words; a tensor where NumPy has no such datatype."""
    if datatype == "bfloat16":
        import torch

        return torch.from_numpy(words.view("i2").copy()).view(torch.bfloat16)
    return words.copy().view(datatype)


def words_of(x: Any) -> np.ndarray:
    """The words of an array or tensor."""
    if not isinstance(x, np.ndarray):
        import torch

        word_bytes = x.element_size() // (2 if x.is_complex() else 1)
        if x.numel() == 0:  # has no strides to view it by
            return np.empty(0, f"u{word_bytes}")
        return x.detach().reshape(-1).view(torch.uint8).numpy().view(f"u{word_bytes}")
    flat = x.reshape(-1)
    return flat.view(f"u{flat.itemsize // 2 if flat.dtype.kind == 'c' else flat.itemsize}")


def assert_same_bits(got: Any, wanted: Any, what: object) -> None:
    """Equal in every bit, NaN included; says where they first differ."""
    got, wanted = words_of(got).view("u1"), words_of(wanted).view("u1")
    assert got.size == wanted.size, f"{what}: {got.size} bytes instead of {wanted.size}"
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        at = wrong[0]
        raise AssertionError(
            f"{what}: {wrong.size} of {got.size} bytes are wrong, the first at {at}: {got[at]:#x} for {wanted[at]:#x}"
        )


def assert_within(got: np.ndarray, wanted: np.ndarray, datatype: str, bound: float, what: object) -> None:
    """Every finite number is off by no more than the bound, all others have the same bits."""
    numbers, originals = values_of(got, datatype), values_of(wanted, datatype)
    finite = np.isfinite(originals)
    assert_same_bits(got[~finite], wanted[~finite], f"{what}, NaN and infinities")
    gone = finite & ~np.isfinite(numbers)
    assert not gone.any(), f"{what}: {originals[gone]} became {numbers[gone]}"
    with np.errstate(over="ignore"):
        off = np.abs(numbers[finite] - originals[finite])
    worst = int(off.argmax()) if off.size else 0
    assert off.size == 0 or off[worst] <= bound, (
        f"{what}: {originals[finite][worst]} became {numbers[finite][worst]}, off by {off[worst]}, more than {bound}"
    )
