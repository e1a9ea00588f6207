"""Whom the guard of a rank tells to end."""

import os
import signal
import time

import pytest

from accdp_comm.launch import agent, offspring

OWNER, RANK, HELPER = 10, 20, 30


class Table:
    """A process table in which the owner of MPS and the guard's helper start a command each between any two looks."""

    def __init__(self):
        self.looks = 0

    def descendants(self, roots):
        commands = range(self.looks)
        self.looks += 1
        below = {OWNER: [OWNER + 1 + n for n in commands], HELPER: [HELPER + 1 + n for n in commands]}
        below[os.getpid()] = [OWNER, *below[OWNER], RANK, HELPER, *below[HELPER]]
        found = {}
        for root in roots:
            found |= {pid: root for pid in (root, *below[root]) if pid not in found}
        return found


@pytest.mark.parametrize("looks_before", [0, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_spared_includes_what_it_starts_meanwhile(monkeypatch, number, looks_before):
    """Else a client of MPS is killed in its work: the command that was to end that was told to end itself."""
    table, sent = Table(), []
    table.looks = looks_before
    monkeypatch.setattr(agent.procfs, "descendants", table.descendants)
    monkeypatch.setattr(agent, "send_signal", lambda pid, _: sent.append(pid))
    guard = object.__new__(agent.Guard)  # its constructor would take over the signals of this process
    guard._owner, guard._helper = OWNER, HELPER
    guard._tell_family(number)
    helpers = [HELPER, *(HELPER + 1 + n for n in range(looks_before))]
    assert sent == ([RANK, *helpers] if number == signal.SIGKILL else [RANK])


def test_a_listing_of_gpus_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(offspring, "_ASK_S", 0.2)
    began = time.monotonic()
    assert offspring.ask_gpus(["sh", "-c", "echo 0; exec sleep 30"]) == ""
    assert time.monotonic() - began < 15
    assert offspring.ask_gpus(["sh", "-c", "echo 0; echo 1"]) == "0\n1\n"
    assert offspring.ask_gpus(["sh", "-c", "echo 0; exit 3"]) == offspring.ask_gpus(["/nowhere"]) == ""
