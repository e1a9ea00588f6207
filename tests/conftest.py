"""Under an MPI launcher only tests of several ranks run: the others are of one process, or start ranks themselves."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the collector, which a test makes run often, need not look through them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--with-mpi", default=False):
        return
    from mpi4py import MPI

    if MPI.COMM_WORLD.size == 1:
        return
    is_for_ranks = [item.get_closest_marker("mpi") is not None for item in items]
    others = [item for item, is_one in zip(items, is_for_ranks, strict=True) if not is_one]
    items[:] = [item for item, is_one in zip(items, is_for_ranks, strict=True) if is_one]
    config.hook.pytest_deselected(items=others)
