"""Whom the guard of a rank tells to end."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from accdp_comm import procfs
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
@pytest.mark.parametrize("runs", [True, False])
def test_what_is_spared_includes_what_it_starts_meanwhile(monkeypatch, runs, looks_before):
    """Else a client of MPS is killed in its work: the command that was to end that was told to end itself."""
    table = Table()
    table.looks = looks_before
    monkeypatch.setattr(agent.procfs, "descendants", table.descendants)
    guard = object.__new__(agent.Guard)  # its constructor would take over the signals of this process
    guard._owner, guard._helpers = OWNER, {HELPER: None} if runs else {}
    helpers = [HELPER, *(HELPER + 1 + n for n in range(looks_before))]
    assert guard._family() == ([RANK] if runs else [RANK, *helpers])


GUARD = """
import json, os, sys, threading, time
from accdp_comm.launch import agent

class Link:
    lost = False
    def __init__(self, told):
        self.told, self.began = told, time.monotonic()
        self.end, mine = os.pipe()
        def ring():  # when the next order is due
            for when in [when for when, _ in told]:
                time.sleep(max(0, self.began + when - time.monotonic()))
                os.write(mine, b"x")
        threading.Thread(target=ring, daemon=True).start()
    def fileno(self): return self.end
    def receive(self): os.read(self.end, 1); return [self.told.pop(0)[1]]
    def tell(self, **message): print(round(time.monotonic() - self.began, 2), json.dumps(message), flush=True)
    def send(self, kind, data): print(data.decode(), end="", flush=True)

rank, helper, told, limit_s = json.loads(sys.argv[1])
agent._TERMINATE_CLIENT_S = limit_s
if not os.environ.get("LOOKS_AT_MAPS"):
    agent.procfs.maps = lambda pid, name: True  # all may be clients
held = os.pipe()
guard = agent.Guard(Link(told), held[0], 0)
guard.start({"argv": rank, "env": {}, "cpus": [], "grace_s": 1.0, "stdin": "", "terminate_client": helper})
guard.run()
print("took", time.monotonic() - guard._link.began, "used", time.process_time())
"""


def guarded(tmp_path, script, helper, *told, limit_s=20.0):
    """Run a guard: of a script of the shell, with a script as what is started to end clients' work.

    Args:
        told: (seconds, signal, grace) of each order to stop.
    Returns:
        What it said, after how many seconds it ended, and how many it computed.
    """
    orders = [(when, {"order": "stop", "number": number, "grace_s": grace_s}) for when, number, grace_s in told]
    words = json.dumps([["sh", "-c", script], ["/bin/sh", "-c", helper, "helper"], orders, limit_s])
    env = os.environ | {"F": str(tmp_path / "said")}
    done = subprocess.run([sys.executable, "-c", GUARD, words], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    took, used = map(float, re.search(r"took (\S+) used (\S+)", done.stdout).groups())
    return said, took, used


SAYS = 'echo "$@" >> $F'
OBEYS = f'{SAYS}; shift; n=$1; shift; kill -$n "$@"'
SAVES = (
    "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(3), print('saved', file=open(sys.argv[1], 'a'))"
)
SAVES = f'{shlex.quote(sys.executable)} -c "{SAVES}, sys.exit()))\nprint(flush=True)\nwhile True: signal.pause()" $F'


def test_whom_a_signal_ends_at_once_the_helper_tells(tmp_path):
    said, took, _ = guarded(tmp_path, "exec sleep 300", OBEYS, (0.5, 15, 5.0))
    assert said.split()[:2] == ["--signal", "15"] and len(said.split()) == 3 and took < 5


def test_whom_it_does_not_end_at_once_is_told_at_once(tmp_path):
    said, took, _ = guarded(tmp_path, f"exec {SAVES}", OBEYS, (1.5, 15, 20.0))
    assert said == "saved\n" and 4 < took < 15


def test_whom_a_helper_that_fails_did_not_tell_is_told(tmp_path):
    said, took, _ = guarded(tmp_path, "exec sleep 300", f"{SAYS}; exit 1", (0.5, 15, 30.0))
    assert said.startswith("--signal 15") and took < 15


DEAF = "trap '' 2 15; sleep 300 & sleep 300; :"


def test_after_ctrl_c_and_its_grace_little_time_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOKS_AT_MAPS", "1")
    _, took, _ = guarded(tmp_path, DEAF, "exit 0", (1.5, 2, 1.0))
    assert 3 < took < 10


def test_a_later_order_gives_no_more_time(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOKS_AT_MAPS", "1")
    _, took, _ = guarded(tmp_path, DEAF, "exit 0", (1.5, 15, 2.0), (2.0, 15, 30.0))
    assert 3 < took < 16


def test_a_helper_that_does_not_end_is_not_waited_for(tmp_path):
    """Nor is another one started, and the family is killed all the same."""
    script = "trap '' 2; sleep 300 & sleep 300; :"
    said, took, used = guarded(tmp_path, script, f"{SAYS}; sleep 1000", (0.5, 15, 1.0), limit_s=2.0)
    assert said.count("--signal") == 1 and 2 < took < 15 and used < 1.5


def test_a_program_below_a_shell_is_told_where_the_helper_does_not_end(tmp_path):
    script = f"{SAVES.replace('sleep(3)', 'sleep(0.1)')} & sleep 300; :"
    said, took, _ = guarded(tmp_path, script, "sleep 1000", (1.5, 15, 1.0), limit_s=3.0)
    assert said == "saved\n" and 4 < took < 15


def test_shells_do_not_go_on_when_their_programs_end(tmp_path, monkeypatch):
    """No client of MPS among them needs a helper."""
    monkeypatch.setenv("LOOKS_AT_MAPS", "1")
    inner = "sleep 300; echo goes on >> $F; sleep 300"
    said, took, _ = guarded(tmp_path, f"sh -c '{inner}'; echo goes on >> $F", SAYS, (0.5, 15, 5.0))
    assert said == "" and took < 5


def test_a_program_has_what_is_left_of_the_grace_whatever_the_helper_takes(tmp_path):
    """The shell ends when its helper says so, by when its program has begun to save."""
    said, took, _ = guarded(tmp_path, f"{SAVES} & sleep 300; :", OBEYS, (1.5, 15, 20.0))
    assert "saved" in said and took < 15


def test_who_hurries_is_heard_while_a_helper_runs(tmp_path):
    stubborn = "trap '' 15; sleep 300; sleep 300"
    _, took, _ = guarded(
        tmp_path,
        f"sh -c '{stubborn.replace(chr(39), chr(34))}' & sleep 300; :",
        f"sleep 2; {OBEYS}",
        (0.5, 15, 40.0),
        (3.0, 15, 0.0),
    )
    assert took < 15


WAITS = """
import signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [15])
if sys.argv[1] == "not all":
    begun = threading.Event()
    def waits_not():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [15])
        begun.set()
        signal.pause()
    threading.Thread(target=waits_not, daemon=True).start()
    begun.wait()
print(flush=True)
signal.sigwait([15])
"""


@pytest.mark.parametrize("seconds", [0.0, 0.3])  # until it waits, perhaps
@pytest.mark.parametrize("threads", ["all", "not all"])
def test_who_waits_for_a_signal_is_not_ended_by_it(threads, seconds):
    """Where a thread does not block it, it ends the process."""
    with subprocess.Popen([sys.executable, "-c", WAITS, threads], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(seconds)
        found = [procfs.heeds(process.pid, number) for number in (signal.SIGTERM, signal.SIGINT)]
        process.kill()
    assert found == [threads == "all", True]  # SIGINT is Python's own
    assert procfs.heeds(process.pid, signal.SIGTERM)  # there is nobody


def test_who_is_about_to_wait_for_a_signal_is_not_ended_by_it():
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-S", "-c", WAITS, "all"], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            found = [procfs.heeds(process.pid, signal.SIGTERM) for _ in range(6)]  # before, on the way to, in sigwait()
            process.kill()
        assert all(found)


def test_who_is_busy_is_ended_by_a_signal():
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        found = procfs.heeds(process.pid, signal.SIGTERM)
        process.kill()
    assert not found


CHANGES = """
import threading, time
for _ in range(10): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
while True: threading.Thread(target=time.sleep, args=(0.001,)).start()
"""


def test_threads_that_end_meanwhile_do_not_matter():
    with subprocess.Popen([sys.executable, "-c", CHANGES], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = [procfs.heeds(process.pid, signal.SIGTERM) for _ in range(100)]
        has = [procfs.maps(process.pid, name) for name in (b"libc", agent._CUDA)]
        process.kill()
    assert not any(found) and has == [True, False]
    assert not procfs.maps(process.pid, b"lib")


def test_a_listing_of_gpus_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(offspring, "_ASK_S", 0.2)
    began = time.monotonic()
    assert offspring.ask_gpus(["sh", "-c", "echo 0; exec sleep 30"]) == (128 + signal.SIGKILL, "0\n")
    assert time.monotonic() - began < 15
    assert offspring.ask_gpus(["sh", "-c", "echo 0; echo 1"]) == (0, "0\n1\n")
    assert offspring.ask_gpus(["sh", "-c", "echo 0; exit 3"]) == (3, "0\n")
    assert offspring.ask_gpus(["/nowhere"]) == (127, "") and offspring.ask_gpus([]) == (0, "")
