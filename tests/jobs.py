"""Run a job (a launcher and all its ranks) with a time limit, and see that nothing of it stays behind.

Every process of a job carries a token in its environment, so that those that outlive their launcher are found.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TESTS = Path(__file__).resolve().parent
_TOKEN = "TEST_JOB_TOKEN"
# What launchers tell their children. A job of ours must not believe that it belongs to the launcher around the tests.
_LAUNCHER_VARIABLE = re.compile(
    r"(PMI|PMIX|PRTE|PALS|OMPI|OPAL|HYD|SLURM|MPI|MPIR|MPIEXEC|TORCHELASTIC|MASTER|GROUP|ROLE|LOCAL|ACCDP|UCX|FI)_"
    r"|(RANK|WORLD_SIZE|MPI_LOCALRANKID|MPI_LOCALNRANKS|TORCH_DISTRIBUTED_DEBUG)$"
)
_SHM = Path("/dev/shm")
# What takes a rank a moment may take so long where many wait for a core. Deadlines that tests tell from it are longer.
SOON_S = 15.0


@dataclass(frozen=True)
class Result:
    """What a job left: the first exit status that is not 0, all output, and how long it took."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def reports(self) -> list[dict]:
        """The JSON lines of standard output; launchers may put a prefix before them or words between them."""
        found = [line[line.index("{") :] for line in self.stdout.splitlines() if "{" in line and line.endswith("}")]
        return [json.loads(text) for text in found]

    def __str__(self) -> str:
        return f"exit status {self.returncode} after {self.seconds:.1f} s\n{self.stdout}\n--- stderr\n{self.stderr}"


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without any launcher's variables, one thread per rank, whole lines, plus ``extra``."""
    env = {name: value for name, value in os.environ.items() if not _LAUNCHER_VARIABLE.match(name)}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"} | extra
    folders = [str(TESTS / "whole_lines"), *filter(None, [env.get("PYTHONPATH")])]
    return env | {"PYTHONPATH": os.pathsep.join(folders)}


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0) -> Result:
    """Run one job to its end.

    Args:
        argv: The launcher's command line.
        env: Variables on top of ``environment()``.
        timeout: Seconds until the stacks of all Python processes are printed and the job is killed.
    Raises:
        AssertionError: The job ran too long, or a process or a file in /dev/shm stayed.
    """
    token = secrets.token_hex(8)
    full = environment(**{_TOKEN: token}, **dict(env or {}))
    shm_before = _shm_files()

    def start(out: IO[str], err: IO[str]) -> list[subprocess.Popen]:
        return [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=full, text=True)]

    result = finish(start, lambda: _carrying(token), timeout)
    stayed = until_empty(lambda: _carrying(token))
    who = describe(stayed)
    kill(stayed)
    assert not stayed, f"processes stayed: {who}\n{result}"
    files = until_empty(lambda: _orphaned_shm(_shm_files() - shm_before))
    assert not files, f"stayed in {_SHM}: {sorted(files)}\n{result}"
    return result


def finish(
    start: Callable[[IO[str], IO[str]], list[subprocess.Popen]], members: Callable[[], list[int]], timeout: float
) -> Result:
    """Start launchers, wait for them, and collect what they said; kill them and ``members()`` if that takes too long.

    Output goes to files: a pipe would stay open, and the reader wait, as long as any stray child lives.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        launchers = start(out, err)
        overdue = False
        try:
            for launcher in launchers:
                launcher.wait(max(0.0, began + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            overdue = True
        finally:
            if any(launcher.poll() is None for launcher in launchers):
                _dump_and_kill(launchers, members)
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        codes = [launcher.returncode for launcher in launchers]
        result = Result(next((code for code in codes if code), 0), out.read(), err.read(), seconds)
    assert not overdue, f"not finished within {timeout} s: {result}"
    return result


def find_mpiexec(python: str = sys.executable) -> str:
    """The launcher of the MPI in a Python's environment, else the one on PATH."""
    beside = Path(python).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError(f"no mpiexec beside {python} or on PATH")
    return found


@functools.cache
def is_open_mpi(mpiexec: str) -> bool:
    """Whether a launcher is Open MPI's."""
    return re.search("open.?(mpi|rte)", _version(mpiexec), re.IGNORECASE) is not None


@functools.cache
def is_intel_mpi(mpiexec: str) -> bool:
    """Whether a launcher is Intel MPI's, which goes over libfabric where MPICH does over UCX."""
    return "Intel(R) MPI" in _version(mpiexec)


def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30).stdout


def mpiexec_command(ranks: int, python: str = sys.executable) -> list[str]:
    """How to start so many ranks by MPI; Open MPI wants to be told that root and few cores are meant."""
    mpiexec = find_mpiexec(python)
    return [mpiexec, *(["--allow-run-as-root", "--oversubscribe"] if is_open_mpi(mpiexec) else []), "-n", str(ranks)]


def write_program(path: Path, *lines: str) -> None:
    """Write a script of the shell that can be run, in the place of some program."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def free_port() -> int:
    """A port that nobody listens on just now, nor gets by chance: those that the system gives away are others."""
    first, last = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    while True:
        port = secrets.choice(range(10_000, first) or range(last + 1, 65_536))
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # somebody does
            continue
        return port


def until(is_so: Callable[[], bool], seconds: float = 100) -> None:
    """Wait for what must come within some time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_empty(find: Callable[[], Collection], seconds: float = SOON_S) -> Collection:
    """What ``find`` still finds after it had ``seconds`` to become empty."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def kill(pids: Collection[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of these processes that still are."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def describe(pids: Collection[int]) -> list[str]:
    """Command lines, for messages."""
    return [f"{pid}: {_read(pid, 'cmdline').replace(chr(0), ' ')[:200]}" for pid in pids]


def living(wanted: Callable[[int], bool]) -> list[int]:
    """Processes, other than this one and zombies, for which ``wanted`` holds."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and wanted(pid) and _state(pid) not in ("Z", "X", "")]


def _state(pid: int) -> str:
    return "".join(_read(pid, "stat").rpartition(")")[2].split()[:1])


def _dump_and_kill(launchers: list[subprocess.Popen], members: Callable[[], list[int]]) -> None:
    # Not launchers, in whose words there is a python, too: they pass on what the ranks say.
    ranks = [pid for pid in members() if "python" in Path(_read(pid, "cmdline").split("\0")[0]).name]
    kill(ranks, signal.SIGABRT)  # faulthandler prints the stacks of all threads
    until_empty(lambda: [pid for pid in ranks if pid in members()], 1.0)
    until_empty(lambda: [launcher for launcher in launchers if launcher.poll() is None], 1.0)
    for launcher in launchers:
        launcher.kill()
        launcher.wait()
    kill(members())


def _carrying(token: str) -> list[int]:
    entry = f"{_TOKEN}={token}"
    return living(lambda pid: entry in _read(pid, "environ"))


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # gone in the meantime, or another user's
        return ""


def _shm_files() -> set[str]:
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def _orphaned_shm(names: Collection[str]) -> list[str]:
    """Those that no living process maps: others may use /dev/shm at the same time."""
    if not names:
        return []
    mapped = "".join(_read(pid, "maps") for pid in living(lambda pid: True))
    return [name for name in names if (_SHM / name).exists() and f"{_SHM}/{name}" not in mapped]
