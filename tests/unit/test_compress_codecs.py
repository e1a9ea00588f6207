"""Each codec by itself, chunk by chunk: exactness, bounds, damage, formats that must be read for ever.

The formats are pinned by files of tests/data/codecs, one per codec and format number: chunks and what they were encoded
to when the file was made. Later encoders may make other streams; decoders must still read these. A file is never made
anew. A codec that has none, being new or having got a new format number, gets it by

    ACCDP_RENEW_FIXTURES=1 pytest tests/unit/test_compress_codecs.py -k stored

which writes what is missing and leaves alone what is there.
"""

import base64
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import jobs
import numpy as np
import pytest
from compress_data import (
    DATATYPES,
    FLOATS,
    LOSSY,
    assert_same_bits,
    assert_within,
    codec_rows,
    hostile,
    item_bytes,
    takes,
    values_of,
    weights,
)

from accdp_comm import CodecError, UsageError, _core

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "codecs"
ROWS = {row["name"]: row for row in codec_rows()}
PAIRS = [(codec, datatype) for codec, row in ROWS.items() for datatype in DATATYPES if takes(row, datatype)]
EXACT_PAIRS = [pair for pair in PAIRS if pair[0] not in LOSSY]
LOSSY_PAIRS = [pair for pair in PAIRS if pair[0] in LOSSY]
# nvCOMP's Bitcomp trusts what follows a stream's header: on damage it crashes or gives anything. In a broadcast the
# checksums of the frames keep damage from it, so here it is left out.
GUARDED_BY_CHECKSUMS = ("bitcomp", "bitcomp_lossy")
COUNTS = [1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097, 65_536, 70_001]


def encode(codec: str, datatype: str, words: np.ndarray, bound: float = 0.0) -> bytes:
    return _core.encode_chunk(codec, DATATYPES[datatype][0], words.tobytes(), bound)


def decode(codec: str, datatype: str, stored: bytes, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(_core.decode_chunk(codec, DATATYPES[datatype][0], stored, like.nbytes), like.dtype)


def bound_for(codec: str) -> float:
    return 1e-3 if codec in LOSSY else 0.0


def patterns(datatype: str, count: int) -> dict[str, np.ndarray]:
    """Words of every kind of regularity."""
    like = weights(datatype, count)
    size, kind = like.size, like.dtype
    random = np.random.default_rng(count)
    if datatype == "bool":
        return {"weights": like, "noise": hostile(datatype, count), "zeros": like * 0, "ones": like * 0 + 1}
    top = kind.type(1 << 8 * kind.itemsize - 1)
    ramp = np.arange(size).astype(kind)
    outlier = np.full(size, 5, kind)
    outlier[size // 2] = top
    return {
        "weights": like,
        "hostile": hostile(datatype, count),
        "noise": random.integers(0, 256, like.nbytes, np.uint8).view(kind),
        "zeros": np.zeros(size, kind),
        "all bits": np.full(size, ~kind.type(0)),
        "one value": np.full(size, like[0]),
        "ramp": ramp,
        "falling ramp": ramp[::-1].copy(),
        "ramp through the sign": ramp + (top - kind.type(size // 2 % 100)),
        "one outlier": outlier,
        "alternating": np.where(ramp % 2 == 0, kind.type(0), ~kind.type(0)),
        "sparse": np.where(random.random(size) < 0.01, ramp, kind.type(0)),
    }


def test_rows():
    """What people are told."""
    for row in _core.codecs():
        assert row["name"] == row["name"].lower() and row["name"] not in ("none", "auto")
    for row in ROWS.values():
        assert row["exactness"] and row["home"] and 1 <= row["format"] <= 255
        assert row["datatypes"] == "all" or set(row["datatypes"].split(", ")) <= set(DATATYPES), row["datatypes"]
        assert (row["exactness"] == "exact") == (not row["lossy"])


# -- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "datatype"), EXACT_PAIRS)
def test_every_bit_comes_back(codec, datatype):
    gained = False
    for count in COUNTS:
        for name, words in patterns(datatype, count).items():
            stored = encode(codec, datatype, words)
            if stored:
                assert len(stored) < words.nbytes
                assert_same_bits(decode(codec, datatype, stored, words), words, f"{name}, {count} of {datatype}")
                gained |= name == "weights"
    assert gained, "it never made anything smaller"


@pytest.mark.parametrize(("codec", "datatype"), EXACT_PAIRS)
def test_nothing_becomes_nothing(codec, datatype):
    assert encode(codec, datatype, weights(datatype, 0)) == b""


@pytest.mark.parametrize(("codec", "datatype"), EXACT_PAIRS)
def test_zeros_become_small(codec, datatype):
    words = np.zeros_like(weights(datatype, 65_536 // item_bytes(datatype)))
    assert len(encode(codec, datatype, words)) < words.nbytes / 8


@pytest.mark.parametrize(("codec", "datatype"), [(c, d) for c, d in EXACT_PAIRS if d in FLOATS])
def test_every_nan(codec, datatype):
    """All payloads of 16-bit floats; of wider ones each bit of the payload alone, and all but that."""
    kind = weights(datatype, 1).dtype.type
    bits = 8 * kind(0).itemsize
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[datatype]
    if bits == 16:
        words = np.arange(1 << 16).astype(kind)
        words = words[np.isnan(values_of(words, datatype))]
    else:
        top = (1 << bits) - (1 << mantissa)  # infinity, and the sign
        payloads = [1 << bit for bit in range(mantissa)] + [(1 << mantissa) - 1 - (1 << bit) for bit in range(mantissa)]
        words = np.array([top - sign + payload for sign in (0, 1 << bits - 1) for payload in payloads], kind)
    assert np.isnan(values_of(words, datatype)).all()
    words = np.concatenate([words, np.zeros(20 * words.size, kind), words])  # the codec shall gain something
    stored = encode(codec, datatype, words)
    if stored:
        assert_same_bits(decode(codec, datatype, stored, words), words, f"NaN of {datatype}")


@pytest.mark.parametrize("codec", ROWS)
def test_threads_do_not_disturb_each_other(codec):
    from concurrent.futures import ThreadPoolExecutor

    datatype = next(datatype for name, datatype in PAIRS if name == codec)
    chunks = [weights(datatype, 3000 + 17 * seed, seed) for seed in range(32)]
    wanted = [encode(codec, datatype, words, bound_for(codec)) for words in chunks]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(lambda words: encode(codec, datatype, words, bound_for(codec)), chunks)) == wanted


# -- bounds ----------------------------------------------------------------------------------------------------------

BOUNDS = [5e-324, 1e-310, 1e-45, 1e-40, 1.2e-38, 1e-20, 6e-8, 1e-3, 0.01, 1 / 3, 1.0, 7.0, 65504.0, 1e30, 3e38, 1e300]


@pytest.mark.parametrize(("codec", "datatype"), LOSSY_PAIRS)
def test_bound(codec, datatype):
    """Checked in float64. What is not finite keeps its bits, zeros may lose their sign, nothing finite becomes inf."""
    gained = False
    for bound in BOUNDS:
        for count in (1, 5, 255, 256, 257, 5000):
            for name, words in patterns(datatype, count).items():
                stored = encode(codec, datatype, words, bound)
                if stored:
                    gained |= name == "weights"
                    got = decode(codec, datatype, stored, words)
                    assert_within(got, words, datatype, bound, f"{name}, {count} of {datatype}, bound {bound}")
    assert gained, "it never made anything smaller"


@pytest.mark.parametrize(("codec", "datatype"), [(c, d) for c, d in LOSSY_PAIRS if d in ("float16", "bfloat16")])
def test_bound_over_all_numbers_of_16_bits(codec, datatype):
    """Every number there is, with neighbours alike (so that it is made smaller) and in disorder."""
    words = np.arange(1 << 16).astype("u2")
    shuffled = np.random.default_rng(0).permutation(words)
    for bound in [*BOUNDS, *(2.0**k for k in range(-30, 17)), *(1.7 * 2.0**k for k in range(-30, 17))]:
        for name, chunk in (("in order", words), ("in disorder", shuffled)):
            stored = encode(codec, datatype, chunk, bound)
            if stored:
                got = decode(codec, datatype, stored, chunk)
                assert_within(got, chunk, datatype, bound, f"all of {datatype} {name}, bound {bound}")


@pytest.mark.parametrize(("codec", "datatype"), LOSSY_PAIRS)
def test_bound_over_many_scales(codec, datatype):
    """Ordinary data of one scale with a bound near it: where rounding errors add up."""
    random = np.random.default_rng(4)
    for exponent in range(-20, 15):
        values = random.normal(0, 2.0**exponent, 4096)
        words = (
            (values.astype("f4").view("u4") >> 16).astype("u2")
            if datatype == "bfloat16"
            else values.astype(datatype).view(DATATYPES[datatype][1])
        )
        for share in (1e-5, 1e-3, 0.01, 0.1, 1, 10):
            bound = share * 2.0**exponent
            stored = encode(codec, datatype, words, bound)
            if stored:
                assert_within(decode(codec, datatype, stored, words), words, datatype, bound, f"{exponent}, {share}")


@pytest.mark.parametrize(("codec", "datatype"), LOSSY_PAIRS)
def test_a_wider_bound_is_not_larger(codec, datatype):
    values = np.random.default_rng(4).normal(0, 1, 16_384)
    words = (values.astype("f4").view("u4") >> 16).astype("u2") if datatype == "bfloat16" else None
    if words is None:
        words = values.astype(datatype).view(DATATYPES[datatype][1])
    sizes = [len(encode(codec, datatype, words, bound)) or words.nbytes for bound in (1e-6, 1e-3, 0.01, 0.1)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.7 * words.nbytes, sizes


# -- damage ----------------------------------------------------------------------------------------------------------


def stored_for_damage(codec: str, datatype: str) -> tuple[bytes, np.ndarray]:
    words = weights(datatype, 3000)
    stored = encode(codec, datatype, words, bound_for(codec))
    assert stored
    return stored, words


GUARDING = [pair for pair in PAIRS if pair[0] not in GUARDED_BY_CHECKSUMS]


@pytest.mark.parametrize(("codec", "datatype"), GUARDING)
def test_cut_off(codec, datatype):
    stored, words = stored_for_damage(codec, datatype)
    for length in {*range(min(len(stored), 300)), *range(0, len(stored), 37), len(stored) - 1}:
        with pytest.raises(CodecError):
            decode(codec, datatype, stored[:length], words)


@pytest.mark.parametrize(("codec", "datatype"), GUARDING)
def test_of_another_size(codec, datatype):
    stored, words = stored_for_damage(codec, datatype)
    for count in (0, 1, 17, 2999, 3001, 6000):
        with pytest.raises(CodecError):
            decode(codec, datatype, stored, weights(datatype, count))
    with pytest.raises(CodecError):
        decode(codec, datatype, stored + b"\0", words)


@pytest.mark.parametrize(("codec", "datatype"), GUARDING)
def test_flipped_and_foreign(codec, datatype):
    """CodecError, or other values of the right number: a flip in a stored value shows in checksums only."""
    stored, words = stored_for_damage(codec, datatype)
    random = np.random.default_rng(9)
    refused = 0
    flips = [(at, bit) for at in range(min(len(stored), 64)) for bit in range(8)]
    flips += [
        (int(at), int(bit))
        for at, bit in zip(random.integers(0, len(stored), 500), random.integers(0, 8, 500), strict=True)
    ]
    damaged = []
    for at, bit in flips:
        changed = bytearray(stored)
        changed[at] ^= 1 << bit
        damaged.append(bytes(changed))
    damaged += [random.integers(0, 256, random.integers(1, 3000), np.uint8).tobytes() for _ in range(500)]
    damaged += [bytes([value]) * length for value in (0, 1, 127, 128, 255) for length in (1, 16, 100, len(stored))]
    for stream in damaged:
        try:
            got = decode(codec, datatype, stream, words)
        except CodecError as error:
            assert str(error)
            refused += 1
        else:
            assert got.size == words.size
    assert refused, "nothing was ever refused"


# -- stored streams --------------------------------------------------------------------------------------------------


def fixture_of(row: dict) -> Path:
    return FIXTURES / f"{row['name']}-{row['format']}.json"


def pack(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def made_for(row: dict) -> list[dict]:
    """Chunks of each kind and datatype, each as short as the codec gains on it, and long ones that are regular."""
    codec, found = row["name"], []
    for datatype in (name for name in DATATYPES if takes(row, name)):
        names = ["weights", "zeros", "alternating", "one outlier", "ramp", "ramp through the sign"]
        if datatype in FLOATS:
            names.append("hostile")
        chunks = {}
        for count in (65, 300, 2500):
            made = patterns(datatype, count)
            for name in (name for name in names if name in made):
                if encode(codec, datatype, made[name], bound_for(codec)):
                    chunks.setdefault(name, made[name])
        long = patterns(datatype, 5000)
        chunks |= {f"long, {name}": long[name] for name in ("sparse", "one outlier") if name in long}
        for name, words in chunks.items():
            for bound in (1e-3, 0.25) if row["lossy"] else (0.0,):
                stored = encode(codec, datatype, words, bound)
                if stored:
                    restored = decode(codec, datatype, stored, words).tobytes()
                    entry = {"what": name, "datatype": datatype, "stored": pack(stored)}
                    found.append(entry | {"raw_bytes": len(restored), "restored": pack(restored)})
    return found


@pytest.mark.parametrize("codec", ROWS)
def test_stored_streams(codec):
    path = fixture_of(ROWS[codec])
    if not path.exists() and os.environ.get("ACCDP_RENEW_FIXTURES") == "1":
        FIXTURES.mkdir(parents=True, exist_ok=True)
        head = {key: ROWS[codec][key] for key in ("name", "format", "library_major")}
        chunks = [json.dumps(chunk) for chunk in made_for(ROWS[codec])]
        path.write_text(json.dumps(head)[:-1] + ', "chunks": [\n' + ",\n".join(chunks) + "\n]}\n")
    assert path.exists(), f"{path} is missing: this file's first lines say how to make it, once, for a new format"
    kept = json.loads(path.read_text())
    if kept["library_major"] != ROWS[codec]["library_major"]:
        pytest.skip(f"streams of major version {kept['library_major']} of a library that is another one here")
    assert {chunk["datatype"] for chunk in kept["chunks"]} == {d for d in DATATYPES if takes(ROWS[codec], d)}
    for chunk in kept["chunks"]:
        datatype = DATATYPES[chunk["datatype"]][0]
        got = _core.decode_chunk(codec, datatype, unpack(chunk["stored"]), chunk["raw_bytes"])
        assert got == unpack(chunk["restored"]), f"{chunk['datatype']}, {chunk['what']}"


def test_stored_streams_of_older_formats():
    """A file whose codec or format number this build no longer has must have been left for a reason: there is none."""
    here = {f"{row['name']}-{row['format']}.json" for row in _core.codecs()}
    assert {path.name for path in FIXTURES.glob("*.json")} <= here


# -- wrong calls -----------------------------------------------------------------------------------------------------


def test_unknown_codec():
    with pytest.raises(UsageError, match="^codec=gzip: expected auto, none, .*zstd"):
        _core.encode_chunk("gzip", _core.Datatype.f32, bytes(64))
    with pytest.raises(UsageError, match="^codec=gzip"):
        _core.check_stream("gzip")


@pytest.mark.parametrize(("codec", "datatype"), LOSSY_PAIRS)
@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_no_bound_that_makes_sense(codec, datatype, bound):
    """Refused, or taken for one that leaves no room: never a chunk that breaks it."""
    words = weights(datatype, 2000)
    try:
        stored = encode(codec, datatype, words, bound)
    except UsageError:
        return
    assert not stored or (decode(codec, datatype, stored, words) == words).all()


# -- without nvCOMP --------------------------------------------------------------------------------------------------

WITHOUT = """
import numpy as np
from accdp_comm import nvcomp
nvcomp.find_directory = lambda: None  # as where the wheel is not installed
import accdp_comm
from accdp_comm import Communicator, UsageError, _core, bcast_compressed

rows = {row["name"]: row for row in _core.codecs()}
absent = [name for name, row in rows.items() if row["why_not"]]
print("absent", *absent)
words = (np.arange(5000) % 7).astype(np.float32)
for name in sorted(rows.keys() - set(absent)):
    if not rows[name]["stand_in"]:
        stored = _core.encode_chunk(name, _core.Datatype.f32, words.tobytes(), 1e-3)
        got = np.frombuffer(_core.decode_chunk(name, _core.Datatype.f32, stored, words.nbytes), np.float32)
        error = np.abs(got - words).max()
        assert 0 < len(stored) < words.nbytes and error <= (1e-3 if rows[name]["lossy"] else 0), (name, error)
        print(name, "encodes and decodes")
x = np.zeros(100_000, np.float32)
with Communicator() as world:
    for name, row in rows.items():
        if name in absent:
            assert "pip install nvidia-libnvcomp-cu13" in row["why_not"], row
            try:
                bcast_compressed(x, group=world, codec=name, error_bound=1e-3 if row["lossy"] else None)
            except UsageError as error:
                print(name, "refused:", error)
        else:
            bcast_compressed(x, group=world, codec=name, error_bound=1e-3 if row["lossy"] else None)
            print(name, "works")
    print("auto", bcast_compressed(x, group=world).logical_bytes)
"""


def test_without_nvcomp():
    """The package imports, own codecs work, and asking for one of nvCOMP's says how to install it."""
    env = {k: v for k, v in jobs.environment().items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    absent = lines[0].split()[1:]
    if "bitcomp" not in absent:
        pytest.skip("the loader finds nvCOMP by itself")
    assert {"ans", "bitcomp", "bitcomp_lossy", "lz4"} == set(absent)
    for name in absent:
        assert any(
            line.startswith(f"{name} refused: ")
            and f"codec={name}" in line
            and "pip install nvidia-libnvcomp-cu13" in line
            for line in lines
        ), done.stdout
    for name in ("fpk", "qpk", "qhuff", "zhuff", "zstd"):
        assert f"{name} encodes and decodes" in lines and f"{name} works" in lines, done.stdout
    assert "auto 400000" in lines
