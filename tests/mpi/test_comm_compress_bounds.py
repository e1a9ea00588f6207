"""bcast_compressed over a Communicator within an error bound."""

import numpy as np
import pytest
from compress_data import (
    EXACT,
    FLOATS,
    LOSSY,
    array_of,
    assert_same_bits,
    assert_within,
    hostile,
    item_bytes,
    takes,
    values_of,
    weights,
    words_of,
)
from compress_world import CHUNK_BYTES, ROWS, blank, scaled, some_tensors

from accdp_comm import (
    Communicator,
    bcast_compressed,
    relative,
    settings,
)

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
