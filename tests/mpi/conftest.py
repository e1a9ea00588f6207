"""All ranks run every test of this folder together: ``mpiexec -n 3 python -m pytest --with-mpi tests/mpi``.

If a rank could fail a test and go on to the next while its peers still wait for it, their calls would pair up across
the two tests, and the hang or the wrong result would be blamed on the wrong one. So each test has communicators of its
own, and the ranks tell each other how it went before any of them leaves it. A rank that fails says so at once and
aborts its communicators, which wakes the peers that wait for it; one that never comes is ended by pytest-timeout.
"""

import collections
import os
import time
import traceback
import types

import cases
import numpy
import pytest
from compress_data import DATATYPES

from accdp_comm import Communicator, settings

# Small pieces, so that small tests send many of them.
SIZES = {"flat_bytes": "1k", "eager_bytes": "1k", "chunk_bytes": "4k", "ring_bytes": "4k"}
# Where the ranks are declared to be, by number of ranks; "" is where they are: on one node.
TOPOLOGIES = {
    1: [""],
    2: ["", "2x1"],
    3: ["", "0,1,0", "3x1"],
    4: ["", "2x2", "4x1", "0,0,0,1"],
    5: ["", "0,1,0,1,2", "5x1"],
    6: ["3x2", "0,1,1,0,0,2"],
    7: ["", "0,0,0,1,1,1,2", "7x1"],
    8: ["", "2x4", "8x1", "0,1,0,2,2,2,1,3"],
}

_NO_CASES = types.SimpleNamespace(params={})
_ALL_PASSED = pytest.StashKey[bool]()
_control = None  # carries the verdicts; never handed to a test


def pytest_configure(config):
    global _control
    if config.getoption("with_mpi", False):
        from mpi4py import MPI

        _control = MPI.COMM_WORLD.Dup()


def _story(error):
    """A traceback that begins in the test, not in pytest."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((n for n, frame in enumerate(frames) if os.path.basename(frame.filename).startswith("test_")), 0)
    return "".join(traceback.format_list(frames[first:]) + traceback.format_exception_only(error))


def _meet(item):
    """Run one stage of a test; leave it only with all ranks, and fail here too if another rank failed."""
    failure = result = None
    try:
        result = yield
    except BaseException as error:  # pytest.skip and pytest.fail are no Exceptions
        failure = error
    if _control is None:
        if failure is not None:
            raise failure
        return result
    if failure is not None and not isinstance(failure, pytest.skip.Exception):
        os.write(2, f"\n[rank {_control.rank}] {item.nodeid} failed\n{_story(failure)}".encode())
        for value in list(item.funcargs.values()):
            if isinstance(value, Communicator):
                value.__exit__(type(failure), failure, None)
    fell = numpy.zeros(1, "i4")
    told = _control.Iallreduce(numpy.full(1, failure is not None, "i4"), fell)
    while not told.Test():  # sleeping: a rank that waits must not keep the others from their core
        time.sleep(0.0002)
    item.stash[_ALL_PASSED] = fell[0] == 0
    if fell[0] == 0:
        return result
    verdicts = _control.allgather(None if failure is None else f"{type(failure).__name__}: {failure}"[:200])
    if failure is not None:
        raise failure
    rank, verdict = next((rank, verdict) for rank, verdict in enumerate(verdicts) if verdict is not None)
    pytest.fail(f"well on this rank, but rank {rank} ended by {verdict}", pytrace=False)


def pytest_itemcollected(item):
    if not item.get_closest_marker("mpi"):  # without it tests/conftest.py leaves it out where there are several ranks
        item.add_marker(pytest.mark.mpi)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    return (yield from _meet(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    return (yield from _meet(item))


@pytest.fixture(scope="session", autouse=True)
def small_pieces():
    """Settings of all groups that these tests form."""
    with settings.override(**SIZES):
        yield


@pytest.fixture
def comm(request):
    """A fresh mpi4py communicator of all ranks."""
    from mpi4py import MPI

    made = MPI.COMM_WORLD.Dup()
    yield made
    if request.node.stash.get(_ALL_PASSED, False):
        made.Free()  # collective, so only where all ranks come here


@pytest.fixture
def world(comm, topology):
    """A fresh Communicator of all ranks, on nodes as declared."""
    with settings.override(topology=topology):  # for its parts too
        made = Communicator(comm, timeout_s=60)
        yield made
        made.close()


@pytest.fixture
def wide(comm, topology):
    """A Communicator as users have it, with chunks of 64 KiB at most."""
    with settings.override(topology=topology, chunk_bytes="128k", codec_chunk_bytes="64k"):
        made = Communicator(comm, timeout_s=60)
        yield made
        made.close()


def _in_turn(items, each=1):
    """Each case of a test on `each` of the declared topologies, these in turn; of a test with fewer cases, all."""
    declared, cases_of = TOPOLOGIES[_control.size], collections.defaultdict(dict)
    where = {}
    for item in items:
        params = dict(getattr(item, "callspec", _NO_CASES).params)
        topology, known = params.pop("topology", None), cases_of[item.path, item.originalname]
        where[item] = known, known.setdefault(str(params), len(known)), topology
    for item, (known, case, topology) in where.items():
        # Not of `case` alone: where each has 4 datatypes, say, one datatype would be on one topology only.
        turn = (case + case // len(declared)) % len(declared)
        on = [declared[(turn + i * len(declared) // each) % len(declared)] for i in range(each)]
        if topology is None or len(known) < len(declared) or topology in on:
            yield item


def _is_one_of_many(item):
    """Whether it is of a test of all codecs, or of one of all datatypes and has none that stands for its size."""
    if item.path.name.startswith("test_comm_compress"):
        return True
    takes_all = any(
        mark.args[1] in (cases.MOVED, cases.REDUCED, DATATYPES) for mark in item.iter_markers("parametrize")
    )
    return takes_all and item.callspec.params["datatype"] not in cases.OF_EACH_SIZE


def pytest_collection_modifyitems(items):
    """1 and 2 ranks run every case on every topology; more, which may be more than the cores, would take far longer."""
    if _control is None or _control.size not in (3, 4, 8):
        return
    many = [item for item in items if _is_one_of_many(item)]
    left = [item for item in items if not _is_one_of_many(item)]
    if _control.size == 8:
        left = set(_in_turn(left))
    else:
        left = {*_in_turn(left, each=2), *_in_turn(many)}
    items[:] = [item for item in items if item in left]


def pytest_generate_tests(metafunc):
    if "topology" in metafunc.fixturenames:
        declared = TOPOLOGIES.get(_control.size if _control else 1, [""])
        metafunc.parametrize("topology", declared, ids=[text or "one-node" for text in declared])
