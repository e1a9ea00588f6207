"""One daemon of MPS with its folder: started, stopped after its clients, cleaned up after an owner that crashed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import procfs
from .. import processes
from ..interruption import undisturbed
from ..kinship import adopt_orphans
from . import records
from .control import BINARY, PID_FILE, SERVER, Control, MpsError, MpsSilent
from .records import LOG, PIPE, Record

_CLIENT_S = 5.0  # for clients to end after SIGTERM
_QUIT_S = 10.0  # for the daemon and its servers to end after `quit`
_KILL_S = 2.0
_PID_S = 5.0
_POLL_S = 0.02
LOGS_VARIABLE = (
    "ACCDP_RUN_MPS_LOGS"  # a folder for the logs of daemons that are stopped; else they go with the daemon's
)


@dataclass(frozen=True)
class Daemon:
    """A daemon that serves one GPU."""

    folder: Path
    record: Record

    @property
    def pipe_directory(self) -> str:
        return str(self.folder / PIPE)

    @property
    def log_directory(self) -> str:
        return str(self.folder / LOG)

    def control(self) -> Control:
        return Control(self.pipe_directory, self.log_directory)


def adopt_daemons() -> None:
    """Become the parent of the daemons that this process starts, to take their exit status.

    They make themselves children of process 1, and in many containers that never looks after its children: two
    zombies would stay for every daemon.
    """
    adopt_orphans()


def start(base: Path, gpu: str, *, is_kept: bool) -> Daemon:
    """Start a daemon for one GPU and see that it answers. To be called with the lock held.

    Raises:
        MpsError: It did not start; nothing of it is left.
    """
    record = records.of_this_process(gpu, is_kept=is_kept)
    folder = records.make_folder(base, record)
    daemon = Daemon(folder, record)
    try:
        daemon.control().start(gpu)
        record = records.with_daemon(record, _daemon_pid(folder))
        records.write(folder, record)
    except BaseException:
        undisturbed(lambda: stop(daemon))
        raise
    return Daemon(folder, record)


def _daemon_pid(folder: Path) -> int:
    """Return the daemon's pid from the file that it writes."""
    deadline = time.monotonic() + _PID_S
    while time.monotonic() < deadline:
        # No event tells that another program has written its file.
        pid = _read_pid(folder)
        if procfs.start_time(pid):
            return pid
        time.sleep(_POLL_S)
    raise MpsError(f"the MPS daemon of {folder} did not say its pid within {_PID_S:g} s")


def _read_pid(folder: Path) -> int:
    try:
        text = (folder / PIPE / PID_FILE).read_text().strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdecimal() else 0


def stop(daemon: Daemon) -> list[str]:
    """Stop a daemon after its clients, and remove its folder. Never kills a process that has work on the GPU.

    Args:
        daemon: May be dead, or never have started.
    Returns:
        What did not go as it should; empty where all went well.
    """
    pid, started = daemon.record.daemon_pid, daemon.record.daemon_start
    if not pid and _is_daemon(_words(written := _read_pid(daemon.folder))):
        pid, started = written, procfs.start_time(written)
    if not daemon.record.of_this_boot():
        pid = 0  # the number is another process's by now
    trouble: list[str] = []
    daemons, members = _processes_of(daemon.pipe_directory)
    if processes.is_alive(pid, started) and (pid, started) not in daemons:
        daemons.append((pid, started))
    members += daemons
    patience = 0.0  # servers without a daemon take no orders
    if daemons:
        try:
            control = daemon.control()
            trouble += end_clients(control, list(control.clients()), _CLIENT_S)
            control.quit()
            patience = _QUIT_S
        except MpsError as error:
            trouble.append(str(error))
    left = processes.wait_all(members, patience)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if left:
            trouble.append(f"MPS processes {[member for member, _ in left]} got {number.name}")
        for member, member_start in left:
            processes.send_signal(member, member_start, number)
        left = processes.wait_all(left, _KILL_S)
    _reap([member for member, _ in members])
    trouble += _keep_logs(daemon)
    try:
        _remove(daemon.folder)
    except OSError as error:
        trouble.append(f"{daemon.folder} could not be removed: {error.strerror}")
    return trouble


def _remove(folder: Path) -> None:
    """Remove a folder, the record last: who cleans takes one without it for abandoned, and may remove it just then."""
    for path in (folder / PIPE, folder / LOG, folder):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _keep_logs(daemon: Daemon) -> list[str]:
    """Copy a daemon's logs to where they were asked for, if they were; return what did not go as it should."""
    wanted = os.environ.get(LOGS_VARIABLE)
    if not wanted:
        return []
    try:
        shutil.copytree(daemon.log_directory, Path(wanted, daemon.folder.name), dirs_exist_ok=True)
    except OSError as error:
        return [f"the logs of {daemon.folder} were not kept: {error}"]
    return []


def _processes_of(pipe_directory: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return daemons and servers of a pipe directory, as pid and start time: a daemon may never have written its pid,
    and a dead one cannot name its servers."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory}".encode()
    daemons, servers = [], []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # Of other users' processes the environment cannot be read; they are none of ours.
            if wanted not in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                continue
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        words = _words(int(name))
        found = (int(name), procfs.start_time(int(name)))
        if SERVER.encode() in map(os.path.basename, words):
            servers.append(found)
        elif _is_daemon(words):
            daemons.append(found)
    return daemons, servers


def _words(pid: int) -> list[bytes]:
    """Return the command line of a process; nothing of one that cannot be seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _is_daemon(words: list[bytes]) -> bool:
    return BINARY.encode() in map(os.path.basename, words) and b"-d" in words


def end_clients(control: Control, pids: Sequence[int], seconds: float) -> list[str]:
    """End processes that are clients: SIGTERM, after ``seconds`` terminate_client, and only then SIGKILL.

    Whom SIGTERM ends at once, for that one terminate_client comes before it.

    Returns:
        What did not go as it should.
    """
    wanted = [(pid, procfs.start_time(pid)) for pid in pids]
    if exposed := [pid for pid in pids if not procfs.heeds(pid, signal.SIGTERM)]:
        terminate_work(control, exposed)  # what goes wrong is said of those that are left
    for pid, started in wanted:
        processes.send_signal(pid, started, signal.SIGTERM)
    left = processes.wait_all(wanted, seconds)
    if not left:
        return []
    _, trouble = terminate_work(control, [pid for pid, _ in left])
    for pid, started in left:
        processes.send_signal(pid, started, signal.SIGKILL)
    return trouble + [f"client {pid} of MPS did not end" for pid, _ in processes.wait_all(left, _KILL_S)]


def terminate_work(control: Control, pids: Sequence[int]) -> tuple[list[int], list[str]]:
    """End what these processes do on the GPU, so that they may be killed; those that are no clients are left alone.

    Returns:
        Those whose work was ended, and what did not go as it should.
    """
    ended: list[int] = []
    trouble: list[str] = []
    try:
        clients = control.clients()
    except MpsError as error:
        return ended, [str(error)]
    for client, server in clients.items():
        if client not in pids:
            continue
        try:
            control.terminate_client(server, client)
            ended.append(client)
        except MpsError as error:
            if procfs.start_time(client):  # else it has left by itself, and is refused for that
                trouble.append(str(error))
            if isinstance(error, MpsSilent):
                break  # it would keep us waiting for each
    return ended, trouble


def _reap(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue  # somebody else's child


def terminate_clients(pids: Sequence[int]) -> None:
    """End what these processes do on the GPUs, of whichever daemon of this user and node they are clients."""
    for found in find_all(records.base_directory()):
        if found.record.daemon_lives():  # else their contexts are gone with it
            terminate_work(found.control(), pids)


def find_all(base: Path) -> list[Daemon]:
    """Return the daemons on disk whose record can be read."""
    found = [(folder, records.read(folder)) for folder in records.folders(base)]
    return [Daemon(folder, record) for folder, record in found if record is not None]


def clean(base: Path) -> list[str]:
    """Stop the daemons whose owner is gone and remove their folders. To be called with the lock held.

    Returns:
        One line for each, with what did not go as it should.
    """
    lines = []
    for folder in records.folders(base):
        record = records.read(folder)
        if record is None:
            lines.append(_clean_unowned(folder))
        elif record.is_orphan():
            trouble = stop(Daemon(folder, record))
            gone = "its daemon was gone" if record.is_kept else f"its owner (pid {record.owner_pid}) was gone"
            lines.append("; ".join([f"{folder}: stopped and removed, {gone}", *trouble]))
    return lines


def _clean_unowned(folder: Path) -> str:
    """Remove a folder that does not say whose it is, unless somebody uses it: what tidies /tmp may have taken that."""
    daemons, servers = _processes_of(str(folder / PIPE))
    if daemons or servers:
        pids = " ".join(str(pid) for pid, _ in [*daemons, *servers])
        by_hand = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={folder / PIPE} {BINARY}"
        return f"{folder}: left alone, it does not say whose MPS processes {pids} are: `{by_hand}` ends them"
    _remove(folder)  # its maker died before it started anything
    return f"{folder}: removed, it had no owner"
