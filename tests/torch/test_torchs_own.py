"""The tests in torch's wheel for torch's own backends, unchanged, on CPU: "accdp" does what is asked of Gloo and MPI.

torch decides by the name of a backend what is tested of it. Here the module is read once as if for Gloo and once as if
for MPI, of which only what Gloo is not asked for is taken. The groups know that they are "accdp".
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

import accdp_comm

RANKS = 4  # torch's own number: some of its tests name ranks 0 to 3
SUITE = "torch.testing._internal.distributed.distributed_test"
# Tests of nothing but a backend's name: get_backend() says ours, DDP's logger calls all that are not torch's "custom".
NAMED = {"test_get_backend", "test_ddp_logging_data_cpu"}


def _gpus(*_: int):
    return unittest.skip("for GPUs")


def _as_it_is(test):
    return test


def _read(peer: str) -> ModuleType:
    """The suite as it is for ``peer``, whose place we take then."""
    spec = importlib.util.find_spec(SUITE)
    name = f"torchs_own_for_{peer}"
    spec = importlib.util.spec_from_file_location(name, spec.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its classes are pickled
    asked = {"BACKEND": peer, "WORLD_SIZE": str(RANKS), "INIT_METHOD": "file://", "TEMP_DIR": tempfile.gettempdir()}
    # Decorators that look for GPUs or at the environment do so when a test runs, and end its process: said here.
    decorators = {"skip_if_lt_x_gpu": _gpus, "skip_if_no_gpu": _gpus(), "skip_if_small_worldsize": _as_it_is}
    with (
        mock.patch.dict(os.environ, asked),
        mock.patch.multiple(common_distributed, **decorators),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of torch about itself
        spec.loader.exec_module(module)
    module.PROFILING_SUPPORTED_BACKENDS.append("accdp")
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("accdp")
    return module


def _names(module: ModuleType) -> set[str]:
    tests = module.DistributedTest._DistTestBase
    names = {name for name in dir(tests) if name.startswith("test_")}
    return {name for name in names if not getattr(getattr(tests, name), "__unittest_skip__", False)} - NAMED


MODULES = {peer: _read(peer) for peer in ("gloo", "mpi")}
NAMES = {"gloo": _names(MODULES["gloo"])}
NAMES["mpi"] = _names(MODULES["mpi"]) - NAMES["gloo"]
assert len(NAMES["gloo"]) > 80 and NAMES["mpi"], "torch's suite is not where it was"


@contextlib.contextmanager
def _surroundings(module: ModuleType, folder: Path) -> Iterator[None]:
    """Folders and a store where the suite looks for them, our backend where it makes groups by name, and our
    monitored_barrier(): torch's refuses all but Gloo. Time-outs are for operations: of a second, it is not to fail
    where ranks need that long to meet. Of a debug level that a test leaves behind the next one hears nothing."""
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir(exist_ok=True)
    module.Barrier.barrier_id = 0
    module.INIT_METHOD = f"file://{folder}/store"
    init_process_group, new_group = dist.init_process_group, dist.new_group

    def init(*args, backend, timeout=None, **kwargs):
        assert backend == module.BACKEND and not args
        init_process_group("accdp", **kwargs)
        if timeout:
            dist.distributed_c10d._get_default_group().set_timeout(timeout)

    def new(*args, timeout=None, **kwargs):
        group = new_group(*args, **kwargs)
        if timeout and group is not dist.GroupMember.NON_GROUP_MEMBER:
            group.set_timeout(timeout)
        return group

    environment = {"TEMP_DIR": str(folder), "WORLD_SIZE": str(RANKS), "BACKEND": module.BACKEND}
    ours = {"init_process_group": init, "new_group": new, "monitored_barrier": accdp_comm.monitored_barrier}
    level = dist.get_debug_level()
    with mock.patch.dict(os.environ, environment), mock.patch.multiple(dist, **ours):
        try:
            yield
        finally:
            dist.set_debug_level(level)


@pytest.mark.on_ranks(RANKS, fresh=True)
@pytest.mark.parametrize("peer, name", [(peer, name) for peer, names in NAMES.items() for name in sorted(names)])
def test_torchs_own(rank, size, peer, name, tmp_path):
    module = MODULES[peer]

    class Suite(common_utils.TestCase, module.DistributedTest._DistTestBase):
        pass

    case = Suite(name)
    case.rank, case.world_size, case.init_method = rank, size, f"file://{tmp_path}/another_store"
    with _surroundings(module, tmp_path), torch.random.fork_rng():
        common_utils.set_rng_seed(0)  # ranks make the same models
        getattr(case, name)()
