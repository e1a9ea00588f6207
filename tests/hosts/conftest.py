"""Hosts for the tests of this folder; all are skipped, with the reason, where the machine does not allow any."""

import jobs
import pytest
import testbed


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == testbed.HERE:
            item.add_marker("needs_root")


def pytest_runtest_setup(item):
    reason = testbed.why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def mpich_launcher():
    """Skips where MPI is not MPICH, which alone reaches our hosts: by its launcher, or joined by others' ranks."""
    mpiexec = jobs.find_mpiexec()
    if jobs.is_open_mpi(mpiexec):
        pytest.skip(f"{mpiexec} is Open MPI's; hosts on one machine are reached by MPICH alone")


@pytest.fixture
def two_hosts():
    """Two hosts at 1 Gbit/s; nothing may be left on them after the test."""
    with testbed.Hosts(2, rate_mbit=1000) as hosts:
        yield hosts
        hosts.assert_clean()


@pytest.fixture
def four_hosts():
    """Four hosts at 1 Gbit/s; nothing may be left on them after the test."""
    with testbed.Hosts(4, rate_mbit=1000) as hosts:
        yield hosts
        hosts.assert_clean()
