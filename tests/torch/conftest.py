"""``@pytest.mark.on_ranks(2, 4)``: the body of the test runs on every rank of a group of 2, and of 4.

It takes ``rank`` and ``size``; its other arguments are made here and must be such that pickle takes them. The processes
stay for all tests, and so does the group from one test of a file to the next, unless the mark says ``fresh=True``.
"""

from __future__ import annotations

import pytest
import ranks

LIMIT_S = 60.0


def pytest_configure(config):
    config.addinivalue_line("markers", "on_ranks(*sizes, fresh=False): run on every rank of groups of these sizes")


def pytest_generate_tests(metafunc):
    mark = metafunc.definition.get_closest_marker("on_ranks")
    if mark:
        metafunc.parametrize("size", mark.args, ids=lambda size: f"ranks{size}", scope="module")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("on_ranks"):
            item.fixturenames.append("crew")
            item.add_marker(
                pytest.mark.xdist_group("crew")
            )  # one crew: where tests run at a time, the others beside it


@pytest.fixture(scope="session")
def crew():
    """The ranks; at the end of the session they must leave in good order."""
    nursery = ranks.Nursery()
    try:
        made = ranks.Crew(nursery)
        yield made
        made.dismiss()
    finally:
        nursery.close()


@pytest.fixture
def rank() -> None:
    """Every rank has its own; here there is none."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("on_ranks")
    if not mark:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    size = given.pop("size")
    del given["rank"]
    path = str(pyfuncitem.path)
    scene = None if mark.kwargs.get("fresh") else path
    failure = None
    try:
        pyfuncitem.funcargs["crew"].run(path, pyfuncitem.originalname, given, size, scene, LIMIT_S)
    except ranks.RankFailure as error:
        failure = str(error)
    if failure:
        # What happened happened on the ranks: their tracebacks are in the text, this one would say nothing.
        pytest.fail(failure, pytrace=False)
    return True
