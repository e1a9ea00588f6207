"""Several hosts on one machine, for tests and benches of what happens between nodes.

Each host has its own network (one link to a common switch, with a declared rate in both directions), host name,
processes, IPC and /dev/shm; files are shared, as on a cluster with NFS. The switch is also the login node on which
MPI's launcher runs. Nothing has a name on the machine itself: a host lives in the namespaces of one holder process that
ends when its standard input does, so whatever way the owner ends, the kernel takes all of it away.

    with Hosts(2, rate_mbit=1000) as hosts:
        print(hosts.mpiexec(2, [sys.executable, "train.py"]))

Linux only, as root (``why_not()`` says what is missing), with iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jobs

HERE = Path(__file__).resolve().parent
_NETWORK = "10.77.0"  # seen only inside the namespaces
_SWITCH_ADDRESS = f"{_NETWORK}.254"
_MASTER_PORT = "29500"  # always free: every host has its own ports
_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv", "mount")
_MOST_HOSTS = 200

# Runs in the new namespaces: a /dev/shm and an /etc/hosts of its own, then wait for the end of standard input. The
# shell stays as the first process of the host, since somebody has to reap its orphans.
_HOLD = """
set -e
hostname "$0"
ip link set lo up
mount -t tmpfs -o size=50% tmpfs /dev/shm
printf '%s\\n' "$1" > /dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
rm /dev/shm/hosts
exec 3<&0
cat <&3 >/dev/null &
echo ready
wait
"""

# What MPI's launcher calls instead of ssh: [options] ADDRESS COMMAND. As with ssh, the environment does not travel.
_REMOTE_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
address=$1; shift
case $address in
{cases}
*) echo "no host has the address $address" >&2; exit 255;;
esac
exec env -i PATH="$PATH" HOME=/ {enter} sh -c "$*"
"""
_REMOTE_SHELL_PATH = "/dev/shm/remote_shell"  # in the login node's own /dev/shm


class Hosts:
    """A context manager: ``count`` hosts, each with a link of ``rate_mbit`` Mbit/s (None: as fast as it goes).

    Raises:
        RuntimeError: The machine does not allow it; the message is that of the command that failed.
    """

    def __init__(self, count: int, rate_mbit: float | None = None):
        if not 1 <= count <= _MOST_HOSTS:
            raise ValueError(f"count must be 1..{_MOST_HOSTS}, not {count}")
        self.rate_mbit = rate_mbit
        self.names = [f"node{index}" for index in range(count)]
        self.addresses = [f"{_NETWORK}.{index + 1}" for index in range(count)]
        self._hosts: list[subprocess.Popen] = []
        self._login: subprocess.Popen | None = None
        self._started: list[subprocess.Popen] = []
        self.holders: set[int] = set()  # processes that keep the namespaces, and do nothing else

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> Hosts:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of every host, and with them the hosts."""
        for holder in filter(None, [*self._hosts, self._login]):
            holder.kill()  # --kill-child: the host's first process goes, and with it all others
            holder.communicate()
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._hosts, self._login, self._started = [], None, []

    # -- running things ----------------------------------------------------------------------------------------------

    def popen(
        self, index: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen:
        """Start a command on one host.

        Args:
            index: Which host.
            argv: The command. It starts in this process's working directory and dies with the returned process.
            env: Variables on top of ``jobs.environment()``.
            options: Further arguments of subprocess.Popen.
        """
        full = jobs.environment(**dict(env or {}))
        command = [*_enter_host(self._hosts[index].pid), *_run_in(os.getcwd()), *argv]
        self._started.append(subprocess.Popen(command, env=full, **options))
        return self._started[-1]

    def mpiexec(
        self,
        ranks_per_host: int | Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> jobs.Result:
        """Run one MPI job over all hosts, host by host, with the ``mpiexec`` (MPICH's family) of this environment.

        Args:
            ranks_per_host: One number for all hosts, or one per host.
            argv: The command of every rank.
            env: Variables on top of ``jobs.environment()``; the launcher hands them to the ranks.
            timeout: Seconds until everything is killed.
        Raises:
            AssertionError: Not finished in time.
        """
        ranks = self._per_host(ranks_per_host)
        lines = [f"{address}:{count}\n" for address, count in zip(self.addresses, ranks, strict=True) if count]
        reach = ["-bootstrap", "ssh", "-bootstrap-exec", _REMOTE_SHELL_PATH, "-localhost", _SWITCH_ADDRESS]
        with tempfile.NamedTemporaryFile("w", prefix="accdp-hosts-") as file:
            file.writelines(lines)
            file.flush()
            places = ["-machinefile", file.name, "-n", str(sum(ranks))]
            return self.login([jobs.find_mpiexec(), *reach, *places, *argv], env, timeout)

    def login(self, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 60.0) -> jobs.Result:
        """Run a command that starts a job on the login node, where MPICH's mpiexec finds its way to the hosts.

        Raises:
            AssertionError: Not finished in time.
        """
        assert self._login is not None
        enter = ["nsenter", "--target", str(self._login.pid), "--net", "--uts", "--mount", *_run_in(os.getcwd())]
        launcher = [*enter, *argv]
        reach = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": _REMOTE_SHELL_PATH}
        full = jobs.environment(**reach, **dict(env or {}))

        def start(out: IO[str], err: IO[str]) -> list[subprocess.Popen]:
            return [subprocess.Popen(launcher, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=full, text=True)]

        return jobs.finish(start, self.processes, timeout)

    def torchrun(
        self,
        ranks_per_host: int | Sequence[int],
        script: str | Path,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> jobs.Result:
        """Run one job over all hosts with one torchrun on each, the first host being the master. Like ``mpiexec``."""
        ranks = self._per_host(ranks_per_host)

        def start(out: IO[str], err: IO[str]) -> list[subprocess.Popen]:
            rendezvous = ["--nnodes", str(len(self)), "--master-addr", self.addresses[0], "--master-port", _MASTER_PORT]
            command = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
            return [
                self.popen(
                    index,
                    [*command, "--node-rank", str(index), "--nproc-per-node", str(count), str(script), *args],
                    env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                for index, count in enumerate(ranks)
            ]

        return jobs.finish(start, self.processes, timeout)

    # -- looking at them ---------------------------------------------------------------------------------------------

    def processes(self, index: int | None = None) -> list[int]:
        """Processes (ids on this machine) that run on one host, or on any."""
        chosen = self._hosts if index is None else [self._hosts[index]]
        spaces = {os.readlink(f"/proc/{holder.pid}/ns/pid_for_children") for holder in chosen}
        return jobs.living(lambda pid: pid not in self.holders and _pid_space(pid) in spaces)

    def shm_files(self, index: int) -> list[str]:
        """What lies in a host's /dev/shm."""
        return sorted(os.listdir(f"/proc/{self._hosts[index].pid}/root/dev/shm"))

    def assert_clean(self) -> None:
        """No process runs on any host, and nothing lies in any /dev/shm."""
        stayed = jobs.until_empty(self.processes)
        assert not stayed, f"processes stayed: {jobs.describe(stayed)}"
        for index, name in enumerate(self.names):
            assert not self.shm_files(index), f"stayed in /dev/shm of {name}: {self.shm_files(index)}"

    # -- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise RuntimeError(f"not installed: {', '.join(missing)}")
        pairs = [*zip(self.addresses, self.names, strict=True), (_SWITCH_ADDRESS, "switch")]
        table = "\n".join(["127.0.0.1 localhost", *(f"{address} {name}" for address, name in pairs)])
        self._login = self._hold("switch", table, own_processes=False)
        on_switch = ["nsenter", "--target", str(self._login.pid), "--net"]
        _command(*on_switch, "ip", "link", "add", "lan", "type", "bridge")
        _command(*on_switch, "ip", "address", "add", f"{_SWITCH_ADDRESS}/24", "dev", "lan")
        _command(*on_switch, "ip", "link", "set", "lan", "up")
        for index, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            self._hosts.append(self._hold(name, table, own_processes=True))
            pid, port = str(self._hosts[-1].pid), f"port{index}"
            on_host = ["nsenter", "--target", pid, "--net"]
            link = ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pid]
            _command(*on_switch, *link)
            _command(*on_switch, "ip", "link", "set", port, "master", "lan", "up")
            _command(*on_host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            _command(*on_host, "ip", "link", "set", "eth0", "up")
            if self.rate_mbit is not None:
                _command(*on_switch, *_limit(port, self.rate_mbit))
                _command(*on_host, *_limit("eth0", self.rate_mbit))
        self._write_remote_shell()

    def _hold(self, name: str, table: str, own_processes: bool) -> subprocess.Popen:
        """Start the holder of one host's namespaces; it is ready when this returns."""
        more = ["--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"] if own_processes else []
        argv = ["unshare", "--net", "--uts", "--mount", *more, "sh", "-c", _HOLD, name, table]
        pipe = subprocess.PIPE
        holder = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"namespaces are not allowed here: {holder.communicate()[1].strip()}")
        self.holders.update(_with_descendants(holder.pid))
        return holder

    def _write_remote_shell(self) -> None:
        assert self._login is not None
        cases = "\n".join(
            f"{address}) host={holder.pid};;" for address, holder in zip(self.addresses, self._hosts, strict=True)
        )
        text = _REMOTE_SHELL.format(cases=cases, enter=" ".join(_enter_host("$host")))
        path = Path(f"/proc/{self._login.pid}/root{_REMOTE_SHELL_PATH}")
        path.write_text(text)
        path.chmod(0o755)

    def _per_host(self, ranks: int | Sequence[int]) -> list[int]:
        counts = [ranks] * len(self) if isinstance(ranks, int) else list(ranks)
        if len(counts) != len(self):
            raise ValueError(f"{len(counts)} numbers of ranks for {len(self)} hosts")
        return counts


@functools.cache
def why_not() -> str | None:
    """Why hosts cannot be made here, found by making some; None where they can."""
    if os.geteuid() != 0:
        return "hosts on one machine need root"
    try:
        with Hosts(2, rate_mbit=1000):
            return None
    except (RuntimeError, OSError) as error:
        return f"hosts on one machine: {error}"


def _enter_host(pid: int | str) -> list[str]:
    """Prefix of a command that shall run on the host with this holder.

    The holder itself is outside the process namespace it made for its children. Whatever runs inside dies with the
    nsenter outside, which is the process that launchers and tests know.
    """
    spaces = ["--net", "--uts", "--ipc", "--mount", f"--pid=/proc/{pid}/ns/pid_for_children"]
    return ["nsenter", "--target", str(pid), *spaces, "setpriv", "--pdeathsig", "KILL"]


def _run_in(folder: str) -> list[str]:
    """Prefix of a command that shall run in a folder: entering a mount namespace leads to its root."""
    return ["sh", "-c", 'cd "$0" && exec "$@"', folder]


def _limit(device: str, rate_mbit: float) -> list[str]:
    # The bucket holds 2 ms of traffic (the kernel refills it once per timer tick), the queue 20 ms, like a switch's.
    burst = max(128 * 1024, int(rate_mbit * 1e6 / 8 * 0.002))
    rate = ["rate", f"{int(rate_mbit * 1000)}kbit", "burst", str(burst), "latency", "20ms"]
    return ["tc", "qdisc", "add", "dev", device, "root", "tbf", *rate]


def _command(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit status {done.returncode}'}")


def _pid_space(pid: int) -> str:
    with contextlib.suppress(OSError):  # gone in the meantime
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _with_descendants(int(child))
