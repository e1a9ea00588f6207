"""bcast_compressed over a Communicator with references, and WeightSync."""

import types

import numpy as np
import pytest
from compress_data import (
    DATATYPES,
    EXACT,
    array_of,
    assert_same_bits,
    hostile,
    weights,
    words_of,
)
from compress_world import blank, counts_of, equal_everywhere, on_the_wire, some_tensors

from accdp_comm import (
    Communicator,
    MismatchError,
    UsageError,
    WeightSync,
    bcast_compressed,
    settings,
)

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


@pytest.mark.parametrize("codec", ["auto", *EXACT])
@pytest.mark.parametrize("shift", [0, 100], ids=["one tensor twice", "two that overlap"])
def test_references_in_the_memory_of_other_tensors(world, codec, shift):
    """As of a weight with two names: the first that arrives is not taken for the second one's old contents."""
    old = np.arange(6000.0)
    new = old + np.sin(old)
    memory = new.copy() if world.rank == 0 else old.copy()
    parts = [slice(0, 5000), slice(shift, 5000 + shift)]
    tensors = {f"{number}": memory[part] for number, part in enumerate(parts)}
    held = {f"{number}": (old if world.rank == 0 else memory)[part] for number, part in enumerate(parts)}
    bcast_compressed(tensors, group=world, codec=codec, reference=held)
    wanted = np.concatenate([new[: 5000 + shift], (new if world.rank == 0 else old)[5000 + shift :]])
    assert_same_bits(memory, wanted, codec)


@pytest.mark.parametrize("codec", ["auto", *EXACT])
def test_references_that_change_places(world, codec):
    """Of two buffers that take turns each is the other's: it is written while that one still wants it."""
    old = [np.arange(60_000.0), np.sqrt(np.arange(60_000.0))]
    new = [old[1] + 1, old[0] + 2]
    x = [each.copy() for each in (new if world.rank == 0 else old)]
    bcast_compressed(x, group=world, codec=codec, reference=old[::-1] if world.rank == 0 else x[::-1])
    for found, wanted in zip(x, new, strict=True):
        assert_same_bits(found, wanted, codec)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("codec", ["auto", *EXACT])
def test_nodes_that_pass_on_differences_to_what_they_had(comm, codec):
    with settings.override(topology=f"{comm.size}x1", bcast_algorithm="p2p_compressed"):
        world = Communicator(comm, timeout_s=60)
    old = np.arange(20_000.0)
    new = old + np.sin(old)
    x = new.copy() if world.rank == 0 else old.copy()
    bcast_compressed(x, group=world, codec=codec, reference=old if world.rank == 0 else x)
    assert_same_bits(x, new, codec)
    world.close()


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
    assert set(versions.tolist()) == {4}, versions  # a root that begins anew does not number versions anew


def _int16():
    import torch

    return torch.int16


@pytest.mark.parametrize("what", ["grown", "grown by nothing", "renamed", "resized", "of one element", "of doubles"])
def test_weight_sync_of_tensors_that_are_others_now(wide, what):
    """Such a round sends everything, and the next one differences again."""
    tensors = {"a": np.zeros(30_000, np.float32), "b": np.zeros(10, np.float32)}
    sync = WeightSync(tensors, group=wide, codec="zstd")

    def sync_of(step: int) -> int:
        for x in tensors.values():
            x[:] = np.random.default_rng(7).standard_normal(x.size) if wide.rank == 0 else x
            x[:step] += wide.rank == 0
        result = sync.sync()
        equal_everywhere(wide, *tensors.values())
        assert all(x.any() for x in tensors.values() if x.size)
        return on_the_wire(wide, result)

    sync_of(1)
    if what in ("grown", "grown by nothing"):
        tensors["c"] = np.zeros(5 if what == "grown" else 0, np.float32)
    elif what == "renamed":
        tensors["c"] = tensors.pop("b")
    elif what == "resized":
        tensors["a"], tensors["b"] = np.zeros(20_000, np.float32), np.zeros(10_010, np.float32)
    else:
        tensors["a"] = np.zeros(1, np.float32) if what == "of one element" else np.zeros(30_000)
    full = sync_of(1)
    small = sync_of(2)
    assert sync.version == 3 and (wide.size == 1 or what == "of one element" or small < 0.5 * full)


@pytest.mark.mpi(min_size=2)
def test_weight_sync_of_what_is_no_tensor_leaves_nobody_behind(wide):
    """All ranks refuse it before they ask each other anything, and the group goes on."""
    tensors = {"w": np.full(3000, wide.rank, np.float32), "b": np.zeros(10, np.float32)}
    sync = WeightSync(tensors, group=wide)
    sync.sync()
    sync.sync()
    right, tensors["w"] = tensors["w"], None
    with pytest.raises(UsageError, match=rf"rank {wide.rank} of {wide.size}: tensors\['w'\] is a NoneType"):
        sync.sync()
    wide.barrier()
    tensors["w"] = right + 1 if wide.rank == 0 else right
    sync.sync()
    assert (tensors["w"] == 1).all() and sync.version == 3
