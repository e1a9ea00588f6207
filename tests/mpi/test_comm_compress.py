"""bcast_compressed and WeightSync over a Communicator: on one node, and through MPI between nodes that are declared."""

import types

import numpy as np
import pytest
from compress_data import (
    DATATYPES,
    EXACT,
    FLOATS,
    LOSSY,
    array_of,
    assert_same_bits,
    assert_within,
    codec_rows,
    hostile,
    item_bytes,
    takes,
    values_of,
    weights,
    words_of,
)

from accdp_comm import (
    BcastResult,
    Communicator,
    MismatchError,
    UsageError,
    WeightSync,
    _core,
    bcast_compressed,
    relative,
    settings,
)

pytestmark = pytest.mark.mpi

ROWS = {row["name"]: row for row in codec_rows()}
# What these tests' settings make of a chunk: half of the 4 KiB that ranks of a node hand each other.
CHUNK_BYTES = 2048


@pytest.fixture
def wide(comm, topology):
    """A Communicator as users have it, with chunks of 64 KiB at most."""
    with settings.override(topology=topology, chunk_bytes="128k", codec_chunk_bytes="64k"):
        made = Communicator(comm, timeout_s=60)
        yield made
        made.close()


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


# -- one tensor, exactly ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
def test_every_bit_arrives(world, codec, datatype):
    """Every size, the largest from every root: what compresses well, and what does not."""
    counts = counts_of(datatype)
    for number, count in enumerate(counts):
        for root in range(world.size) if count == counts[-1] else [number % world.size]:
            for make in (weights, hostile):
                sent = make(datatype, count, root)
                x = array_of(sent if world.rank == root else blank(sent), datatype)
                result = bcast_compressed(x, root, group=world, codec=codec)
                assert_same_bits(x, sent, f"{codec}, {make.__name__}, {count} {datatype} from {root}")
                assert result.logical_bytes == sent.nbytes


@pytest.mark.parametrize("algorithm", [name for name, _ in _core.bcast_algorithms()])
def test_every_way_between_nodes(comm, topology, algorithm):
    if algorithm == "mpi" and not topology:
        pytest.skip("one node needs no MPI")
    with (
        settings.override(topology=topology, bcast_algorithm=algorithm),
        Communicator(comm, timeout_s=60) as world,
    ):
        for codec in ("auto", "none", "zstd"):
            for count in (0, 1, 100_001):
                for root in range(world.size):
                    sent = weights("float32", count, root)
                    x = array_of(sent if world.rank == root else blank(sent), "float32")
                    result = bcast_compressed(x, root, group=world, codec=codec)
                    assert_same_bits(x, sent, f"{algorithm}, {codec}, {count} from {root}")
                    if len(set(world.nodes)) > 1 and algorithm != "auto":
                        assert result.algorithm == algorithm


def test_a_codec_that_one_rank_lacks(comm, topology):
    """auto leaves it out on all ranks; who asks for it is told which rank lacks it and why, before anything is sent."""
    if not topology:
        pytest.skip("ranks of one node look for themselves")
    lacks = comm.size - 1
    for off in (",".join(ROWS), "zstd,lz4,bitcomp"):
        with (
            settings.override(topology=topology, codecs_off=off if comm.rank == lacks else ""),
            Communicator(comm, timeout_s=60) as world,
        ):
            if len(set(world.nodes)) == 1:
                continue
            sent = np.zeros(1 << 20, np.float32)
            for root in range(world.size):
                x = sent.copy() if world.rank == root else np.ones_like(sent)
                result = bcast_compressed(x, root, group=world)
                assert_same_bits(x, sent, f"auto from {root} without {off}")
                assert result.codec not in off.split(",")
            where = "here" if world.rank == lacks else rf"on rank {lacks} \(pid .*\)"
            match = rf"codec=zstd does not work {where}: .*ACCDP_CODECS_OFF"
            with pytest.raises(UsageError, match=match):
                bcast_compressed(x, group=world, codec="zstd")
            bcast_compressed(x, group=world, codec="none")  # the group goes on


def test_shapes_and_kinds_of_tensors(world):
    """Any shape; torch tensors; what NumPy reads through DLPack, where it is only read; records and other bytes."""
    import torch

    for shape in [(), (1,), (3, 0, 2), (5, 7, 11)]:
        sent = np.random.default_rng(3).normal(size=shape)
        x = sent.copy() if world.rank == 0 else np.zeros(shape)
        bcast_compressed(x, group=world, codec="zstd")
        assert x.shape == shape
        assert_same_bits(x, sent, f"shape {shape}")
    record = np.dtype([("id", "u1"), ("value", "<f8")])
    for made in (np.array([(1, 2.5), (3, 4.5)] * 500, record), np.full(999, "text"), np.arange(999).astype("M8[s]")):
        x = made.copy() if world.rank == 0 else np.zeros_like(made)
        bcast_compressed(x, group=world, codec="zstd")
        assert (x == made).all()
    sent = torch.arange(9000).to(torch.float8_e4m3fn)
    x = sent.clone() if world.rank == 0 else torch.zeros_like(sent)
    bcast_compressed(x, group=world, codec="zstd")
    assert_same_bits(x, sent, "float8")
    parameter = torch.nn.Parameter(torch.full((1000,), float(world.rank)))
    bcast_compressed(parameter, world.size - 1, group=world, codec="zstd")
    assert parameter.requires_grad and (parameter == world.size - 1).all()


class Lender:
    """An array of a library that we do not know."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_on_root(world):
    sent = np.linspace(0, 1, 3000, dtype=np.float32)
    x = Lender(sent) if world.rank == 0 else np.zeros_like(sent)
    bcast_compressed(x, group=world, codec="zstd")
    assert world.rank == 0 or (x == sent).all()


def test_read_only_on_root(world):
    x = np.full(3000, 5.0) if world.rank == 0 else np.zeros(3000)
    x.flags.writeable = world.rank != 0
    bcast_compressed(x, group=world, codec="zstd")
    assert (x == 5).all()


# -- several tensors as one stream -----------------------------------------------------------------------------------


def some_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Of all datatypes and many sizes, some empty, in an order that joins some neighbours and parts others."""
    made = {}
    for number, count in enumerate([3, 0, 700, 1, 1, 5000, 64, 0, 2049]):
        for datatype in DATATYPES:
            make = weights if number % 2 else hostile
            made[f"{datatype}.{number}"] = array_of(make(datatype, count, seed + number), datatype)
    return made


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("dict", codec) for codec in ("auto", "none", *EXACT)] + [(kind, "zstd") for kind in ("list", "tuple", "mapping")],
)
def test_lists_and_mappings(world, kind, codec):
    wrap = {
        "list": lambda named: list(named.values()),
        "tuple": lambda named: tuple(named.values()),
        "dict": dict,
        "mapping": types.MappingProxyType,
    }[kind]
    for root in range(world.size):
        sent = some_tensors(root)
        mine = (
            sent if world.rank == root else {k: array_of(blank(words_of(x)), k.split(".")[0]) for k, x in sent.items()}
        )
        result = bcast_compressed(wrap(mine), root, group=world, codec=codec)
        assert result.logical_bytes == sum(words_of(x).nbytes for x in sent.values())
        for name, x in sent.items():
            assert_same_bits(mine[name], x, f"{codec}, {name} from {root}")


def test_nothing_at_all(world):
    for empty in ([], {}, [np.empty(0)], {"a": np.empty((0, 3), np.int8)}):
        result = bcast_compressed(empty, group=world, codec="zstd")
        assert result.logical_bytes == 0 and result.ratio >= 0
    assert (world.allreduce(np.ones(3)) == world.size).all()


def test_many_small_tensors_cost_little(wide):
    """A message each would cost 64 bytes of head each; in one stream neighbours share chunks."""
    if wide.size == 1:
        pytest.skip("nothing goes over any wire")
    count = 3000
    sent = [np.full(6, number, np.float32) for number in range(count)]
    random = np.random.default_rng(5)
    noise = [random.integers(0, 256, 24, dtype=np.uint8) for _ in range(count)]
    for codec, tensors in (("none", sent), ("zstd", sent), ("zstd", noise)):
        mine = tensors if wide.rank == 0 else [np.zeros_like(x) for x in tensors]
        _core.reset_stats()
        result = bcast_compressed(mine, group=wide, codec=codec)
        for x, y in zip(mine, tensors, strict=True):
            assert (x == y).all()
        assert result.wire_bytes <= result.logical_bytes + 64 * 3 + 32 * 3, str(result)
        assert [(row["op"], row["calls"]) for row in _core.stats() if row["calls"]] == [("bcast_compressed", 1)]
        if codec == "zstd" and tensors is sent:
            assert on_the_wire(wide, result) < result.logical_bytes / 3


def test_tensors_of_alternating_datatypes_share_messages(wide):
    """They cannot share chunks, whose codec may see one datatype only: a record of 16 bytes each, padded to 16."""
    if wide.size == 1:
        pytest.skip("nothing goes over any wire")
    random = np.random.default_rng(6)
    sent = [random.integers(0, 256, 24, np.uint8).view(("f4", "u4", "f8")[number % 3]) for number in range(1000)]
    mine = sent if wide.rank == 0 else [np.zeros_like(x) for x in sent]
    result = bcast_compressed(mine, group=wide, codec="zstd")
    for x, y in zip(mine, sent, strict=True):
        assert_same_bits(x, y, "alternating")
    assert result.wire_bytes <= result.logical_bytes + 1000 * (16 + 8) + 1000 / 32 * 96, str(result)


# -- what it is told, and what it tells ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [*EXACT, *LOSSY])
def test_result(wide, codec):
    """What compresses well goes in fewer bytes; every rank is told the same about what went over the wire."""
    lossy = ROWS[codec]["lossy"]
    datatype = next(name for name in ("float32", *DATATYPES) if takes(ROWS[codec], name))
    sent = weights(datatype, 300_000)
    x = array_of(sent if wide.rank == 0 else blank(sent), datatype)
    result = bcast_compressed(x, group=wide, codec=codec, error_bound=1e-3 if lossy else None)
    assert isinstance(result, BcastResult)
    assert result.logical_bytes == sent.nbytes
    assert set(result.seconds) == {"encode", "decode", "wire", "node", "total"}
    assert all(value >= 0 for value in result.seconds.values())
    assert result.seconds["total"] < 60
    assert codec in str(result) or not result.wire_bytes
    if wide.size == 1:
        return
    assert (result.algorithm == "flat") == (len(set(wide.nodes)) == 1)
    told = wide.allgather(np.array([result.wire_bytes])).ravel()
    assert len(set(told[told > 0].tolist())) == 1, told
    leads = wide.rank == wide.nodes.index(wide.nodes[wide.rank])
    if leads or len(set(wide.nodes)) == 1:
        assert result.codec == codec and 0 < result.wire_bytes < 0.9 * sent.nbytes
        assert result.ratio == pytest.approx(result.logical_bytes / result.wire_bytes) and result.ratio > 1.1
        assert f"{result.ratio:.2f}x" in str(result)
        assert result.seconds["encode" if wide.rank == 0 else "decode"] > 0


@pytest.mark.parametrize("codec", EXACT)
def test_result_for_noise(wide, codec):
    """What no codec makes smaller goes as it is, and is not said to have been encoded."""
    sent = np.random.default_rng(1).integers(0, 256, 300_000, np.uint8)
    x = sent.copy() if wide.rank == 0 else np.zeros_like(sent)
    result = bcast_compressed(x, group=wide, codec=codec)
    assert_same_bits(x, sent, codec)
    assert result.wire_bytes <= 1.01 * sent.nbytes
    assert result.codec == "none"


def test_auto_never_compresses_on_one_node(wide):
    x = np.zeros(1_000_000) if wide.rank == 0 else np.ones(1_000_000)
    result = bcast_compressed(x, group=wide)
    assert not x.any()
    if len(set(wide.nodes)) == 1:
        assert result.codec == "none" and result.wire_bytes in (0, x.nbytes)


@pytest.mark.parametrize("chunk_bytes", [4096, 12288, 65536, 1 << 20, 16 << 20])
def test_chunk_bytes(comm, topology, chunk_bytes):
    with (
        settings.override(topology=topology, chunk_bytes="1M"),
        Communicator(comm, timeout_s=60) as world,
    ):
        wire_bytes = []
        for codec in ("none", "zstd", "auto"):
            for count in (1, chunk_bytes // 4 + 1, 700_001):
                sent = weights("float32", count)
                x = array_of(sent if world.rank == 0 else blank(sent), "float32")
                result = bcast_compressed(x, group=world, codec=codec, chunk_bytes=chunk_bytes)
                assert_same_bits(x, sent, f"{codec}, {count} in chunks of {chunk_bytes}")
                wire_bytes.append(result.wire_bytes)


def test_a_broken_record_of_calls_stays_in_step(world):
    """Other collectives before, between and after."""
    for step in range(20):
        root = step % world.size
        x = np.full(3000, step if world.rank == root else -1, np.int32)
        bcast_compressed(x, root, group=world, codec=("zstd", "none", "auto")[step % 3])
        assert (x == step).all()
        assert (world.allreduce(np.ones(2000)) == world.size).all()
        assert (world.bcast(np.full(5, float(world.rank)), root) == root).all()


# -- async_op --------------------------------------------------------------------------------------------------------


def test_async(world):
    """Several at once; they end in the order in which they were started, and before what is called after them."""
    xs = [np.full(5000, float(step) if world.rank == 0 else -1.0) for step in range(6)]
    works = [bcast_compressed(x, group=world, codec="zstd", async_op=True) for x in xs]
    total = world.allreduce(np.ones(3000))  # waits for all before it
    assert (total == world.size).all()
    assert all(work.is_completed() for work in works)
    for step, (x, work) in enumerate(zip(xs, works, strict=True)):
        result = work.wait()
        assert (x == step).all() and result.logical_bytes == x.nbytes
        assert work.wait(5.0) == result  # as often as one likes
    later = bcast_compressed(xs[0], world.size - 1, group=world, async_op=True)
    assert later.wait(30).logical_bytes == xs[0].nbytes and later.is_completed()


def test_async_tensors_may_be_forgotten(world):
    """The operation keeps what it writes to."""
    works = [
        bcast_compressed(np.full(50_000, 1.0), group=world, codec="zstd", reference=np.zeros(50_000), async_op=True)
        for _ in range(5)
    ]
    assert all(work.wait().logical_bytes == 400_000 for work in works)


@pytest.mark.mpi(min_size=2)
def test_async_failure_is_told_by_wait(world):
    x = np.ones(3000 + (world.rank == 0))
    work = bcast_compressed(x, group=world, async_op=True)
    with pytest.raises(MismatchError, match="rank 0 "):
        work.wait()
    assert work.is_completed()


# -- error_bound -----------------------------------------------------------------------------------------------------

BOUNDS = [1e-45, 1e-40, 1e-8, 1e-3, 0.5, 1e3, 1e30, 1e300]


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("codec", ["auto", *EXACT[:1], *LOSSY])
def test_bound(world, codec, datatype):
    """Data of the worst kind: no finite number is off by more, NaN and infinities keep their bits, receivers agree."""
    for number, bound in enumerate(BOUNDS):
        for make in (weights, hostile):
            for root in {number % world.size, world.size - 1}:
                sent = make(datatype, 5 * CHUNK_BYTES // item_bytes(datatype) + 7, root)
                x = array_of(sent if world.rank == root else blank(sent), datatype)
                bcast_compressed(x, root, group=world, codec=codec, error_bound=bound)
                what = f"{codec}, {make.__name__} {datatype} from {root}, bound {bound}"
                if world.rank == root:
                    assert_same_bits(x, sent, f"root's own, {what}")
                    x = array_of(np.zeros_like(sent), datatype)
                else:
                    assert_within(words_of(x), sent, datatype, bound, what)
                gathered = words_of(world.allgather(x)).reshape(world.size, -1)
                others = [gathered[rank] for rank in range(world.size) if rank != root]
                for other in others[1:]:
                    assert_same_bits(other, others[0], f"receivers differ, {what}")


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("codec", ["auto", *LOSSY])
def test_relative_bound(world, codec, datatype):
    """Of each tensor's own deviation, over its finite values; a tensor without any spread arrives exactly."""
    count = 3 * CHUNK_BYTES // item_bytes(datatype) + 5
    scales = [1e-3, 1.0, 1e3]
    sent = {f"x{scale}": scaled(datatype, count, scale) for scale in scales}
    sent["with infinities"] = sent["x1.0"].copy()
    worst = hostile(datatype, count)
    special = ~np.isfinite(values_of(worst, datatype))
    sent["with infinities"][special] = worst[special]
    sent["constant"] = np.full(count, weights(datatype, count)[0])
    sent["all zero"] = np.zeros(count, sent["constant"].dtype)
    sent["only nan"] = worst[special]
    sent["empty"] = worst[:0]
    mine = {k: array_of(x if world.rank == 0 else blank(x), datatype) for k, x in sent.items()}
    result = bcast_compressed(mine, group=world, codec=codec, error_bound=relative(0.01))
    for name, x in sent.items():
        values = values_of(x, datatype)
        finite = values[np.isfinite(values)]
        bound = 0.01 * finite.std() if finite.size else 0.0
        if name in ("constant", "all zero", "only nan", "empty") or world.rank == 0:
            assert_same_bits(mine[name], x, f"{codec}, {name}")
        else:
            assert_within(words_of(mine[name]), x, datatype, bound * (1 + 1e-9), f"{codec}, {name}")
    if world.size > 1 and codec != "auto" and takes(ROWS[codec], datatype):
        assert result.codec == codec or not result.wire_bytes


def scaled(datatype: str, count: int, scale: float) -> np.ndarray:
    values = np.random.default_rng(2).normal(0, scale, count)
    if datatype == "bfloat16":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    return values.astype(datatype).view(DATATYPES[datatype][1])


@pytest.mark.parametrize("datatype", FLOATS)
def test_relative_bound_over_all_exponents(world, datatype):
    """The deviation of such data may lie beyond the range of its datatype, and of float64."""
    for codec in ("auto", *LOSSY):
        sent = hostile(datatype, 5000)
        x = array_of(sent if world.rank == 0 else blank(sent), datatype)
        bcast_compressed(x, group=world, codec=codec, error_bound=relative(0.01))
        values = values_of(sent, datatype)
        finite = values[np.isfinite(values)]
        spread = np.std(finite / 2.0**600) * 2.0**600 if datatype == "float64" else finite.std()
        assert_within(words_of(x), sent, datatype, 0.01 * spread * (1 + 1e-9), codec)


@pytest.mark.parametrize("codec", LOSSY)
def test_integers_beside_floats_stay_exact(world, codec):
    """A state_dict's counters; complex numbers too."""
    sent = some_tensors()
    mine = sent if world.rank == 0 else {k: array_of(blank(words_of(x)), k.split(".")[0]) for k, x in sent.items()}
    bcast_compressed(mine, group=world, codec=codec, error_bound=1e-3)
    for name, x in sent.items():
        datatype = name.split(".")[0]
        if datatype in FLOATS:
            assert_within(words_of(mine[name]), words_of(x), datatype, 1e-3, name)
        else:
            assert_same_bits(mine[name], x, name)


@pytest.mark.parametrize("algorithm", ["chain", "binomial", "scatter_allgather"])
@pytest.mark.parametrize("codec", LOSSY)
def test_receivers_have_the_same_bits_by_every_way(comm, topology, codec, algorithm):
    with (
        settings.override(topology=topology, bcast_algorithm=algorithm),
        Communicator(comm, timeout_s=60) as world,
    ):
        for root in range(world.size):
            sent = scaled("float32", 5000, 1.0)
            x = array_of(sent if world.rank == root else blank(sent), "float32")
            bcast_compressed(x, root, group=world, codec=codec, error_bound=0.01)
            assert_within(words_of(x), sent, "float32", 0.01, f"{codec} from {root}")
            gathered = words_of(world.allgather(x)).reshape(world.size, -1)
            others = [gathered[rank] for rank in range(world.size) if rank != root]
            for other in others[1:]:
                assert_same_bits(other, others[0], f"{codec} from {root}, {algorithm}")


# -- reference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
@pytest.mark.parametrize("own", [True, False], ids=["the tensor itself", "a copy"])
def test_reference(world, codec, datatype, own):
    """From equal to altogether different, and bits of the worst kind on both sides."""
    counts = counts_of(datatype)
    for count in counts[1:2] + counts[-2:] if own else counts:
        for old, new in [
            (weights(datatype, count), weights(datatype, count)),
            (weights(datatype, count), weights(datatype, count, 1)),
            (hostile(datatype, count), hostile(datatype, count, 1)),
        ]:
            root = world.size - 1
            reference = array_of(old, datatype)
            if world.rank == root:
                x = array_of(new, datatype)
            elif own:
                x = reference
            else:
                x = array_of(blank(new), datatype)
            bcast_compressed(x, root, group=world, codec=codec, reference=reference)
            assert_same_bits(x, new, f"{codec}, {count} {datatype}")
            if x is not reference:
                assert_same_bits(reference, old, "the reference was changed")


@pytest.mark.parametrize("codec", EXACT)
def test_reference_makes_small_steps_cheap(wide, codec):
    """Weights after a small step, in the 16-bit floats in which they are sent: most words stay as they are."""
    random = np.random.default_rng(8)
    old = random.normal(0, 0.02, 200_000).astype(np.float32)
    new = old + np.float32(1e-6) * random.standard_normal(old.size).astype(np.float32)
    old, new = ((x.view("u4") >> 16).astype("u2") for x in (old, new))
    x = array_of(new if wide.rank == 0 else old, "bfloat16")
    result = bcast_compressed(x, group=wide, codec=codec, reference=array_of(old, "bfloat16"))
    assert_same_bits(x, new, codec)
    full = bcast_compressed(array_of(new, "bfloat16"), group=wide, codec=codec)
    if wide.size > 1:
        less, more = on_the_wire(wide, result), on_the_wire(wide, full)
        assert less < 0.5 * more, f"{result} and without the reference {full}"


def test_references_of_lists_and_mappings(world):
    old, new = some_tensors(0), some_tensors(100)
    for kind in (dict, lambda named: list(named.values())):
        held = {name: array_of(words_of(x), name.split(".")[0]) for name, x in old.items()}
        mine = new if world.rank == 0 else held
        reference = kind(old if world.rank == 0 else held)
        if isinstance(reference, dict):  # found by name, whatever their order
            reference = dict(reversed(reference.items()))
        bcast_compressed(kind(mine), group=world, codec="zstd", reference=reference)
        for name, x in new.items():
            assert_same_bits(mine[name], x, name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("codec", ["auto", "none", *EXACT])
def test_wrong_reference(world, codec):
    """Found before anything is written; all ranks raise, and the message names the rank where it can be told."""
    odd = world.size - 1
    reference = np.arange(5000.0)
    if world.rank == odd:
        reference[4321] = 0
    x = np.full(5000, 7.0) if world.rank == 0 else np.full(5000, -1.0)
    before = x.copy()
    with pytest.raises(MismatchError, match="against a reference with checksum") as caught:
        bcast_compressed(x, group=world, codec=codec, reference=reference)
    assert f"rank {odd} " in str(caught.value), caught.value
    assert (x == before).all()


@pytest.mark.mpi(min_size=2)
def test_wrong_reference_that_is_the_tensor(world):
    """The receiver's own old contents are the reference, and are still there afterwards."""
    odd = world.size - 1
    x = np.zeros(5000, np.float32)
    if world.rank == odd:
        x[17] = np.float32(-0.0)  # equal as a number, not as bits
    reference = np.zeros(5000, np.float32) if world.rank == 0 else x
    if world.rank == 0:
        x += 1
    before = x.copy()
    with pytest.raises(MismatchError) as caught:
        bcast_compressed(x, group=world, reference=reference)
    assert f"rank {odd} " in str(caught.value), caught.value
    assert_same_bits(x, before, "overwritten")


# -- ranks that disagree ---------------------------------------------------------------------------------------------

X = np.ones(3000, np.float32)
# Name -> what all but one rank say, and what that one says.
DISAGREEING = {
    "codec": ({"codec": "zstd"}, {"codec": "zhuff"}),
    "codec and none": ({"codec": "zstd"}, {"codec": "none"}),
    "codec and auto": ({"codec": "auto"}, {"codec": "none"}),
    "bound": ({"error_bound": 0.1}, {}),
    "value of the bound": ({"error_bound": 0.1}, {"error_bound": 0.2}),
    "kind of the bound": ({"error_bound": 0.1}, {"error_bound": relative(0.1)}),
    "chunk": ({"chunk_bytes": 4096}, {"chunk_bytes": 8192}),
    "root": ({"root": 0}, {"root": 1}),
    "datatype": ({"tensor": X}, {"tensor": X.view(np.int32)}),
    "count": ({"tensor": X}, {"tensor": X[:-1]}),
    "structure": ({"tensor": [X, X]}, {"tensor": [X]}),
    "cut": ({"tensor": [X[:1000], X[:2000]]}, {"tensor": [X[:2000], X[:1000]]}),
    "names": ({"tensor": {"a": X, "b": X}}, {"tensor": {"a": X, "c": X}}),
    "order of names": ({"tensor": {"a": X, "b": X}}, {"tensor": {"b": X, "a": X}}),
    "list and mapping": ({"tensor": [X]}, {"tensor": {"a": X}}),
    "reference": ({"reference": X.copy()}, {}),
    "something and nothing": ({"tensor": X}, {"tensor": []}),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", DISAGREEING)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_disagreement(world, name, last):
    """All ranks raise, nothing is written, and the message names the odd one (of two: any of them)."""
    usual, odd = DISAGREEING[name]
    odd_rank = world.size - 1 if last else 0
    call = {"tensor": X, "codec": "zstd", **(odd if world.rank == odd_rank else usual)}
    copies = call["tensor"]
    if isinstance(copies, dict):
        copies = {key: x.copy() for key, x in copies.items()}
    else:
        copies = [x.copy() for x in copies] if isinstance(copies, list) else copies.copy()
    flat = copies.values() if isinstance(copies, dict) else copies if isinstance(copies, list) else [copies]
    for x in flat:
        x += world.rank
    before = [x.copy() for x in flat]
    del call["tensor"]
    with pytest.raises(MismatchError, match="disagree") as caught:
        bcast_compressed(copies, group=world, **call)
    if world.size > 2:
        assert f"rank {odd_rank} " in str(caught.value), caught.value
    for x, old in zip(flat, before, strict=True):
        assert_same_bits(x, old, "overwritten")


# -- WeightSync ------------------------------------------------------------------------------------------------------


class Training:
    """bf16 weights that change a little in each step, on the root."""

    def __init__(self, world: Communicator, root: int = 0, kind=dict):
        self.world, self.root = world, root
        self._random = np.random.default_rng(11)
        self._masters = {"w": self._draw(60_000, 0.02), "b": self._draw(77, 0.02)}
        self.tensors = {name: array_of(self._words(name), "bfloat16") for name in self._masters}
        if world.rank != root:
            for x in self.tensors.values():
                x.zero_()
        self.given = kind(self.tensors)

    def _draw(self, count: int, scale: float) -> np.ndarray:
        return (scale * self._random.standard_normal(count)).astype(np.float32)

    def _words(self, name: str) -> np.ndarray:
        return (self._masters[name].view("u4") >> 16).astype("u2")

    def step(self) -> None:
        """On every rank, so that all know what must arrive; the tensors change on root only."""
        for name, master in self._masters.items():
            master += self._draw(master.size, 1e-6)
            if self.world.rank == self.root:
                self.tensors[name].copy_(array_of(self._words(name), "bfloat16"))

    def check(self, what: object) -> None:
        for name, x in self.tensors.items():
            assert_same_bits(x, self._words(name), f"{name}, {what}")
        equal_everywhere(self.world, *self.tensors.values())


@pytest.mark.parametrize("codec", ["auto", *EXACT])
@pytest.mark.parametrize("kind", [dict, lambda named: list(named.values())], ids=["dict", "list"])
def test_weight_sync(wide, codec, kind):
    """Everything first, then differences, which are fewer bytes."""
    root = wide.size - 1
    training = Training(wide, root, kind)
    sync = WeightSync(training.given, root, group=wide, codec=codec)
    assert sync.version == 0
    full = sync.sync()
    training.check("first")
    for version in range(2, 6):
        training.step()
        result = sync.sync()
        training.check(f"version {version}")
        assert sync.version == version
        assert result.logical_bytes == full.logical_bytes
        if wide.size > 1 and codec != "auto":
            assert on_the_wire(wide, result) < 0.5 * on_the_wire(wide, full), f"{result} after {full}"
    unchanged = sync.sync()
    training.check("unchanged")
    if wide.size > 1 and codec != "auto":
        assert on_the_wire(wide, unchanged) < 0.1 * on_the_wire(wide, full)


def test_weight_sync_of_one_tensor(wide):
    for wrap in (
        lambda x: x,
        lambda x: [x],
        lambda x: (x,),
        lambda x: {"w": x},
        lambda x: types.MappingProxyType({"w": x}),
    ):
        x = np.arange(30_000.0) if wide.rank == 0 else np.zeros(30_000)
        sync = WeightSync(wrap(x), group=wide, codec="zstd")
        for step in range(3):
            x[step] += wide.rank == 0
            sync.sync()
            equal_everywhere(wide, x)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["joined late", "was overwritten", "one bit was overwritten", "root was restarted"])
def test_weight_sync_with_a_rank_that_has_not_the_last_version(wide, what):
    """Such a round sends everything, and the next one differences again."""
    odd = wide.size - 1
    training = Training(wide)
    sync = WeightSync(training.given, group=wide, codec="zstd")
    full = on_the_wire(wide, sync.sync())
    training.step()
    small = on_the_wire(wide, sync.sync())
    training.step()
    if what == "root was restarted":
        if wide.rank == 0:
            sync = WeightSync(training.given, group=wide, codec="zstd")
    elif wide.rank == odd:
        if what == "joined late":
            sync = WeightSync(training.given, group=wide, codec="zstd")
        elif what == "was overwritten":
            training.tensors["w"].zero_()
        else:
            words = training.tensors["b"].view(_int16())
            words[-1] ^= 1
    again = on_the_wire(wide, sync.sync())
    training.check(what)
    assert small < 0.5 * full and again > 0.9 * full
    training.step()
    after = on_the_wire(wide, sync.sync())
    training.check(f"after a rank {what}")
    assert after < 0.5 * full
    versions = wide.allgather(np.array([sync.version])).ravel()
    assert len(set(versions.tolist())) == 1, versions


def _int16():
    import torch

    return torch.int16
