"""Where our daemons live on disk: one private folder each, with who owns it.

BASE/lock                  held while daemons are started and cleaned, and those that `accdp mps start` keeps stopped
BASE/<GPU>-<owner>/pipe    CUDA_MPS_PIPE_DIRECTORY
BASE/<GPU>-<owner>/log     CUDA_MPS_LOG_DIRECTORY
BASE/<GPU>-<owner>/owner.json
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ... import _core, procfs
from .. import processes

_DIRECTORY = "ACCDP_RUN_MPS_DIR"
# A socket's path has 108 bytes with its final zero; the daemon's longest is PIPE/control_privileged.
_SOCKET_PATH_BYTES = 107
_LONGEST = len("/12345678-4194304-16/pipe/control_privileged")
_RECORD = "owner.json"
_REFRESH_S = 3600.0
PIPE, LOG = "pipe", "log"


@dataclass(frozen=True)
class Record:
    """Who owns a daemon. Processes are named by pid and start time; both mean nothing after a reboot."""

    gpu: str  # UUID
    owner_pid: int
    owner_start: int
    boot_id: str
    is_kept: bool  # by `accdp mps start`: it outlives its owner's process
    daemon_pid: int = 0  # 0 until it has started
    daemon_start: int = 0

    def of_this_boot(self) -> bool:
        return self.boot_id == procfs.boot_id()

    def daemon_lives(self) -> bool:
        return self.of_this_boot() and processes.is_alive(self.daemon_pid, self.daemon_start)

    def is_orphan(self) -> bool:
        """Whether nobody will stop this daemon any more, so that whoever comes next must."""
        if self.is_kept:
            return not self.daemon_lives()
        return not (self.of_this_boot() and processes.is_alive(self.owner_pid, self.owner_start))


def of_this_process(gpu: str, *, is_kept: bool) -> Record:
    """Return the record of a daemon that this process is about to start."""
    return Record(gpu, os.getpid(), procfs.start_time(os.getpid()), procfs.boot_id(), is_kept)


def base_directory() -> Path:
    """Return the folder of all our daemons, made if need be, that nobody else can look into.

    It lies where logins and batch jobs of a user both find it, and no logout removes it: XDG_RUNTIME_DIR is neither.
    Each host, and each container with processes of its own, has another one, though they may share a file system: from
    one of them no process of another can be seen, so that all its owners would be taken for dead.

    Raises:
        UsageError: The folder belongs to somebody else, or is a link, or has too long a path, or cannot be made.
    """
    base = _base()
    if (longest := len(os.fsencode(base)) + _LONGEST) > _SOCKET_PATH_BYTES:
        raise _core.UsageError(
            f"{_DIRECTORY}: sockets in {base} would have paths of up to {longest} bytes, and {_SOCKET_PATH_BYTES} are "
            "the most: name a folder with a shorter path"
        )
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        pass  # whose it is, is looked at below
    except OSError as error:
        raise _core.UsageError(
            f"{base} could not be made: {error.strerror}; {_DIRECTORY} names another folder than {base.parent} for it"
        ) from error
    if not _is_private(base):
        raise _core.UsageError(
            f"{base} must be a folder of user {os.getuid()} with mode 0700, since whoever can write there controls the "
            f"MPS daemons in it: remove it, or set {_DIRECTORY} to another folder than {base.parent}"
        )
    return base


def existing_directory() -> Path | None:
    """Return that folder where it was made before."""
    return base if _is_private(base := _base()) else None


def _base() -> Path:
    # By whichever name it is called: daemons know their folder by one.
    return Path(os.environ.get(_DIRECTORY) or "/tmp").resolve() / f"accdp-mps-{os.getuid()}-{_place()}"


def _place() -> str:
    """Name this host and its table of processes, the same after a reboot."""
    place = f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    return hashlib.blake2s(place.encode(), digest_size=4).hexdigest()


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0


@contextlib.contextmanager
def locked(base: Path) -> Iterator[None]:
    """Keep other processes of this user from starting and cleaning daemons. Each may stop its own meanwhile."""
    with (base / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def folders(base: Path) -> list[Path]:
    """Return the folders of all daemons, ours and others', living or not."""
    return sorted(path for path in base.iterdir() if path.is_dir())


def make_folder(base: Path, record: Record) -> Path:
    """Make the folder of a daemon and say whose it is, before there is a daemon. To be called with the lock held."""
    stem = f"{record.gpu.removeprefix('GPU-')[:8]}-{record.owner_pid}"
    number = 0
    while (folder := base / (f"{stem}-{number}" if number else stem)).exists():
        number += 1  # one that could not be removed, of a process with our pid
    for path in (folder, folder / PIPE, folder / LOG):
        path.mkdir(mode=0o700)
    write(folder, record)
    return folder


def write(folder: Path, record: Record) -> None:
    """Write or replace a record; a reader sees the old one or the new one."""
    unfinished = folder / f"{_RECORD}.new"
    unfinished.write_text(json.dumps(asdict(record)))
    unfinished.replace(folder / _RECORD)


def refresh(folder: Path) -> None:
    """Show that a folder is in use to what removes old files of /tmp. Cheap enough to be called every second."""
    with contextlib.suppress(OSError):  # it is gone already
        if time.time() - (folder / _RECORD).stat().st_mtime > _REFRESH_S:
            os.utime(folder / _RECORD)


def read(folder: Path) -> Record | None:
    """Return a folder's record; None if its maker died before it had written one. Another version's may say more."""
    try:
        said = json.loads((folder / _RECORD).read_text())
        return Record(**{field.name: said[field.name] for field in fields(Record) if field.name in said})
    except (FileNotFoundError, ValueError, TypeError):
        return None


def with_daemon(record: Record, pid: int) -> Record:
    return replace(record, daemon_pid=pid, daemon_start=procfs.start_time(pid))
