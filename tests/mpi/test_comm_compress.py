"""bcast_compressed over a Communicator: on one node, and through MPI between nodes that are declared."""

import types

import numpy as np
import pytest
from compress_data import (
    DATATYPES,
    EXACT,
    LOSSY,
    array_of,
    assert_same_bits,
    hostile,
    takes,
    weights,
    words_of,
)
from compress_world import ROWS, blank, counts_of, on_the_wire, some_tensors

from accdp_comm import (
    BcastResult,
    Communicator,
    MismatchError,
    UsageError,
    _core,
    bcast_compressed,
    relative,
    settings,
)

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
        assert result.logical_bytes == 0 and result.ratio == (0 if result.wire_bytes else 1)
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


def test_short_tensors_go_with_the_signatures(wide):
    """Root waits for nobody. Not with a reference, which all must have compared before anything is written."""
    if len(set(wide.nodes)) == 1:
        pytest.skip("between nodes")
    sent = [np.arange(7, dtype="f4"), np.empty(0), np.arange(100, dtype="u2"), np.full(500, -2.0)]
    for root in range(wide.size):
        for tensors in (sent, sent[:1], sent[1:2]):
            mine = tensors if wide.rank == root else [np.zeros_like(x) for x in tensors]
            result = bcast_compressed(mine, root, group=wide)
            for x, y in zip(mine, tensors, strict=True):
                assert_same_bits(x, y, f"from {root}")
            assert (result.algorithm, result.codec) == ("direct", "none")
            assert result.wire_bytes == result.logical_bytes
        mine = [x + 1 if wide.rank == root else x.copy() for x in sent]
        result = bcast_compressed(mine, root, group=wide, reference=sent)
        assert result.algorithm != "direct"
        for x, y in zip(mine, sent, strict=True):
            assert_same_bits(x, y + 1, f"from {root}, with a reference")


def test_a_bound_makes_many_small_tensors_no_larger(wide):
    """Smaller ones than a chunk's record is worth arrive exactly, and share chunks."""
    sent = list(np.random.default_rng(5).normal(size=(4000, 5)).astype("float32"))
    sent[1000] = weights("float32", 32, 7)  # large enough to be changed
    mine = [x if wide.rank == 0 else np.zeros_like(x) for x in sent]
    result = bcast_compressed(mine, group=wide, codec="qpk", error_bound=0.01)
    for number, (x, y) in enumerate(zip(mine, sent, strict=True)):
        if number == 1000:
            assert np.abs(x - y).max() <= 0.01
        else:
            assert_same_bits(x, y, f"tensor {number}")
    assert result.wire_bytes < 1.05 * result.logical_bytes


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
    else:  # one rank decodes for its node
        assert result.seconds["encode"] == result.seconds["decode"] == 0


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


# -- ranks that disagree ---------------------------------------------------------------------------------------------

X = np.ones(30_000, np.float32)  # so long that root waits for all
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
    "cut": ({"tensor": [X[:10_000], X[:20_000]]}, {"tensor": [X[:20_000], X[:10_000]]}),
    "names": ({"tensor": {"a": X, "b": X}}, {"tensor": {"a": X, "c": X}}),
    "order of names": ({"tensor": {"a": X, "b": X}}, {"tensor": {"b": X, "a": X}}),
    "list and mapping": ({"tensor": [X]}, {"tensor": {"a": X}}),
    "reference": ({"reference": X.copy()}, {}),
    "something and nothing": ({"tensor": X}, {"tensor": []}),
}
# What each side must show of it, in words.
SHOWN = {
    "bound": ("error bound 0.1", "no error bound"),
    "value of the bound": ("error bound 0.1", "error bound 0.2"),
    "kind of the bound": ("error bound 0.1;", "error bound 0.1 of the standard deviation"),
    "chunk": ("chunks of 4096 bytes", "chunks of 8192 bytes"),
    "count": ("tensors: 30000 float32", "tensors: 29999 float32"),
    "reference": ("30000 float32 with a reference", "30000 float32"),
    "cut": ("tensors: 10000 float32, 20000 float32", "tensors: 20000 float32, 10000 float32"),
}


@pytest.mark.parametrize(
    ("codec", "kind"),
    [
        (codec, kind)
        for codec in ("auto", *EXACT, *LOSSY)
        for kind in ("float32", "uint8")
        if codec not in LOSSY or kind == "float32"
    ],
)
def test_nothing_between_two_kinds(world, codec, kind):
    """A tensor without elements, of the kind of the next: this one is no part of the chunk before."""
    bound = relative(0.01) if codec in LOSSY else None
    sent = {"a": np.arange(94).astype(kind), "nothing": np.zeros(0, np.int64), "b": np.arange(20_000)}
    x = {name: array if world.rank == 0 else np.full_like(array, 7) for name, array in sent.items()}
    bcast_compressed(x, group=world, codec=codec, error_bound=bound)
    assert_same_bits(x["b"], sent["b"], codec)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_disagreement_on_short_tensors(world, last):
    """All ranks raise by the next collective; who does not agree with root keeps what it has."""
    is_odd = world.rank == (world.size - 1 if last else 0)
    x = np.full(1000, world.rank, np.float32)
    with pytest.raises(MismatchError, match="disagree"):
        bcast_compressed(x, group=world, codec="none" if is_odd else "auto")
        world.barrier()
    agrees = is_odd == (not last)  # with rank 0
    assert set(x) <= ({world.rank, 0} if agrees else {world.rank})


@pytest.mark.mpi(min_size=2)
def test_who_disagreed_before_has_no_side_now(world):
    """A broken group's first reason is no matter of the calls that come after."""
    with pytest.raises(MismatchError, match="disagree"):
        world.allreduce(X.copy()) if world.rank == 0 else world.allreduce(X[1:].copy())
    with pytest.raises(MismatchError, match="disagree") as caught:
        bcast_compressed(X.copy(), group=world)
    assert "this rank's" not in str(caught.value), caught.value


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
    assert f"; this rank's has codec {call['codec']}, " in str(caught.value), caught.value
    for word in SHOWN.get(name, ("", ""))[world.rank == odd_rank], "their names" * ("names" in name):
        assert word in str(caught.value).rpartition("this rank's")[2], caught.value
    for x, old in zip(flat, before, strict=True):
        assert_same_bits(x, old, "overwritten")
