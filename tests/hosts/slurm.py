"""A private Slurm over the hosts of testbed.py: its daemons run on the hosts and end with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import jobs
import testbed

_DAEMONS = ("munged", "slurmctld", "slurmd")
_READY_S = 30.0
# What a host keeps for itself lies in its own /dev/shm, under the same path on every host.
_OWN = "/dev/shm/slurm"
# OverSubscribe: more tasks than cores. linuxproc and task/none: no cgroups are asked for.
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={names[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={own}/munge.socket
StateSaveLocation={own}/state
SlurmdSpoolDir={own}/spool
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes={all} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def why_not() -> str | None:
    """Why Slurm cannot be started here; None where its programs are installed."""
    missing = [name for name in (*_DAEMONS, "srun", "sbatch", "sinfo") if _program(name) is None]
    return f"Slurm: not installed: {', '.join(missing)}" if missing else None


class Slurm:
    """Slurm on these hosts, each a node of 4 CPUs; the first is the controller, and ``srun`` is called there.

    Args:
        hosts: They end the daemons when they are closed.
        folder: Empty; for the configuration, the key and logs.
    Raises:
        AssertionError: The nodes are not ready in time; the message has the daemons' logs.
    """

    def __init__(self, hosts: testbed.Hosts, folder: Path):
        self._hosts = hosts
        self._folder = folder
        self._env = {"SLURM_CONF": str(folder / "slurm.conf")}
        nodes = [f"NodeName={n} NodeAddr={a} CPUs=4" for n, a in zip(hosts.names, hosts.addresses, strict=True)]
        text = _CONFIGURATION.format(
            names=hosts.names, own=_OWN, folder=folder, nodes="\n".join(nodes), all=",".join(hosts.names)
        )
        (folder / "slurm.conf").write_text(text)
        key = folder / "munge.key"
        key.touch(mode=0o600)  # munged refuses a key that others may read
        key.write_bytes(os.urandom(128))
        for index in range(len(hosts)):
            self._start(index)
        self._await_nodes()
        self._daemons = set(hosts.processes())

    def srun(self, options: Sequence[str], argv: Sequence[str], timeout: float = 60.0) -> jobs.Result:
        """Run one step; the environment of the tests travels to its tasks.

        Raises:
            AssertionError: Not finished in time, or a process of it stayed.
        """
        return self.call([_program("srun") or "srun", *options, *argv], timeout)

    def sbatch(self, script: Path, argv: Sequence[str], timeout: float = 60.0) -> jobs.Result:
        """Run a batch script to its end; the result's output is that of the job.

        Raises:
            AssertionError: Not finished in time, or a process of it stayed.
        """
        output = self._folder / "batch.out"
        options = ["--wait", f"--output={output}", f"--chdir={self._folder}"]
        result = self.call([_program("sbatch") or "sbatch", *options, str(script), *argv], timeout)
        return replace(result, stdout=output.read_text() if output.exists() else result.stdout)

    def call(self, command: Sequence[str], timeout: float = 60.0) -> jobs.Result:
        """Run a command on the first host, where it finds this Slurm.

        Raises:
            AssertionError: Not finished in time, or a process of it stayed.
        """
        # The hosts have one kernel: UCX sees memory of the other host's ranks, and then cannot reach it.
        env = {**self._env, "UCX_TLS": "tcp,self"}

        def start(out: IO[str], err: IO[str]) -> list[subprocess.Popen]:
            return [self._hosts.popen(0, command, env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True)]

        result = jobs.finish(start, self._of_steps, timeout)
        # A step's own daemon takes some seconds to report its end.
        stayed = jobs.until_empty(self._of_steps)
        assert not stayed, f"processes stayed: {jobs.describe(stayed)}\n{result}"
        return result

    def _of_steps(self) -> list[int]:
        return [pid for pid in self._hosts.processes() if pid not in self._daemons]

    def _start(self, index: int) -> None:
        own_munge = [f"--{name}={_OWN}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "seed-file")]
        munged = ["--foreground", f"--key-file={self._folder}/munge.key", f"--log-file={_OWN}/munge.log", *own_munge]
        # --force: warn where a folder above the key may be written by others, instead of refusing.
        self._daemon(index, "mkdir", "-p", f"{_OWN}/state", f"{_OWN}/spool").wait(_READY_S)
        self._daemon(index, "munged", "--force", *munged)
        if index == 0:
            self._daemon(index, "slurmctld", "-D")
        self._daemon(index, "slurmd", "-D")

    def _daemon(self, index: int, name: str, *arguments: str) -> subprocess.Popen:
        with (self._folder / f"{name}-{index}.out").open("w") as out:
            command = [_program(name) or name, *arguments]
            return self._hosts.popen(
                index, command, self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def _await_nodes(self) -> None:
        deadline = time.monotonic() + _READY_S
        ask = [_program("sinfo") or "sinfo", "--noheader", "--Node", "--format=%N %t"]
        wanted = [f"{name} idle" for name in self._hosts.names]
        answer = ""
        while time.monotonic() < deadline:
            asked = self._hosts.popen(0, ask, self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                answer = asked.communicate(timeout=_READY_S)[0]
            except subprocess.TimeoutExpired:
                asked.kill()
                continue
            if answer.split("\n")[:-1] == wanted:
                return
            time.sleep(0.2)
        logs = "".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self._folder.glob("*.[lo]*")))
        raise AssertionError(f"Slurm's nodes are not idle within {_READY_S:g} s but: {answer}\n{logs}")


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
