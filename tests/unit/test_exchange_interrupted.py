"""An attempt to form a group that a signal handler ended, and the next one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from accdp_comm.exchange import StoreExchange


class Late(Exception):
    pass


def test_rank_0_does_not_count_on_an_attempt_that_was_interrupted(monkeypatch):
    """It comes after that, and the next one is the one that it meets."""
    store = dist.HashStore()
    first = StoreExchange(store, 1, 2, 10.0)

    def interrupted():
        yield 0.0
        raise Late

    monkeypatch.setattr(first, "_pauses", interrupted)
    with pytest.raises(Late):
        first.allgather(b"of the first attempt")
    with ThreadPoolExecutor(1) as pool:
        of_rank_0 = pool.submit(StoreExchange(store, 0, 2, 10.0).allgather, b"of rank 0")
        assert StoreExchange(store, 1, 2, 10.0).allgather(b"of the second") == [b"of rank 0", b"of the second"]
        assert of_rank_0.result() == [b"of rank 0", b"of the second"]
