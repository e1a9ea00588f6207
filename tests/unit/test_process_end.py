"""What a process does when it ends; what others see of it is tested in tests/mpi and tests/failure."""

import weakref

import pytest

from accdp_comm import at_end, leaving, mpi_world


@pytest.mark.parametrize("fails", [False, True])
def test_others_read_device_memory_before_it_goes(monkeypatch, fails):
    done = []
    monkeypatch.setattr(leaving, "_groups", weakref.WeakSet())
    monkeypatch.setattr(leaving, "_closers", [lambda: done.append("closes")])
    monkeypatch.setattr(leaving._core, "await_readers", lambda seconds: done.append(seconds))
    monkeypatch.setattr(mpi_world._world, "pid", 0)  # MPI stays
    monkeypatch.setattr(leaving.uncaught, "last", lambda: RuntimeError("of the script") if fails else None)
    at_end._run()
    assert done == (["closes"] if fails else ["closes", 10])
