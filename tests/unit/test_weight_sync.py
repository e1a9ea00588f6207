"""WeightSync of memory on a device: what it keeps and compares, with stand-ins for arrays and broadcasts."""

import numpy as np
import pytest

from accdp_comm import BcastResult, Communicator, UsageError, WeightSync, weight_sync


class OnDevice:
    """As CuPy's arrays: the host cannot read them where they are."""

    __cuda_array_interface__: dict = {}

    def __init__(self, values):
        self._values = np.array(values, np.float32)
        self.shape, self.dtype = self._values.shape, self._values.dtype
        self.fetched = 0

    def __setitem__(self, at, other):
        self._values[at] = other._values

    def copy(self):
        return OnDevice(self._values)

    def get(self):
        self.fetched += 1
        return self._values.copy()


class Frozen(OnDevice):
    """As JAX's arrays."""

    def __setitem__(self, at, other):
        raise TypeError("does not support item assignment")

    def copy(self):
        return Frozen(self._values)


@pytest.fixture
def references(monkeypatch):
    """Of the broadcasts."""
    seen = []

    def bcast(tensors, root, *, reference, **options):
        seen.append(reference)
        return object.__new__(BcastResult)

    monkeypatch.setattr(weight_sync, "bcast_compressed", bcast)
    monkeypatch.setattr(weight_sync, "buffers_in", lambda *_, **__: None)  # asks CUDA where they are
    with Communicator() as alone:
        yield alone, seen


def test_arrays_that_cannot_be_written_to_are_kept_as_well(references):
    alone, seen = references
    tensors = [Frozen([1, 2, 3])]
    sync = WeightSync(tensors, group=alone)
    for first in (1, 7, 9):
        tensors[0] = Frozen([first, 2, 3])
        sync.sync()
    assert seen[0] is None and [held[0]._values[0] for held in seen[1:]] == [1, 7]


def test_the_second_round_is_a_difference(references):
    alone, seen = references
    x = OnDevice([1, 2, 3])
    sync = WeightSync([x], group=alone)
    sync.sync()
    x._values += 1
    sync.sync()
    assert seen[0] is None
    (old,) = seen[1]
    assert old is not x and old.fetched == 1 and x.fetched == 0
    assert old._values.tolist() == [2, 3, 4]  # after the round: what the next one starts from


def test_a_device_has_the_checksum_of_the_host(references):
    alone, _ = references
    values = np.arange(1000, dtype=np.float32)
    sync = WeightSync(values, group=alone)
    assert sync._checksum([OnDevice(values)]) == sync._checksum([values]) != sync._checksum([values + 1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"codec": "zip"}, "zip"),
        ({"codec": "qpk"}, "codec=qpk: expected an error_bound, because it is lossy"),
        ({"chunk_bytes": 0}, "chunk_bytes=0: expected 4096 to 16777216"),
        ({"tensors": None}, "tensors is a NoneType: expected"),
    ],
)
def test_what_cannot_work_is_refused_at_once(wrong, said):
    """Not by a rank's first sync(), in which the others would wait for it."""
    with pytest.raises(UsageError, match=said):
        WeightSync(**{"tensors": np.zeros(3)} | wrong)
