"""Talking to a daemon of MPS: commands on the standard input of ``nvidia-cuda-mps-control``."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from ... import _core

BINARY = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
PID_FILE = f"{BINARY}.pid"  # in the pipe directory
_START_S = 30.0
_ANSWER_S = 10.0
_LISTEN_S = 5.0  # from the end of `-d` until the daemon answers
_POLL_S = 0.02
_NOBODY = "Cannot find MPS control daemon"
_PREFIX = "CUDA_MPS_"
_PROTOCOL = {"CUDA_MPS_PROTOCOL_VERSION": "2"}  # whose commands these are; drivers from R615 on have others, too


class MpsError(_core.Error):
    """A daemon of MPS did not start, does not answer, or refused a command."""


class MpsSilent(MpsError):
    """A daemon of MPS does not answer in time."""


class _NobodyListens(MpsError):
    """There is no daemon, or it does not listen yet."""


def find_binary() -> str | None:
    """Return the path of nvidia-cuda-mps-control, None where it is not installed."""
    return shutil.which(BINARY)


class Control:
    """The commands of one daemon.

    Args:
        pipe_directory: Names the daemon.
        log_directory: Where it writes its logs.
    Raises:
        MpsError: The program is not installed.
    """

    def __init__(self, pipe_directory: str, log_directory: str):
        binary = find_binary()
        if binary is None:
            raise MpsError(f"{BINARY} is not in PATH")
        self._binary = binary
        self.pipe_directory = pipe_directory
        self._log_directory = log_directory

    def start(self, uuid: str) -> None:
        """Start the daemon for one GPU, and see that it answers.

        Raises:
            MpsError: It did not start, or does not answer in time.
        """
        environment = self._environment() | {"CUDA_VISIBLE_DEVICES": uuid}
        # Not to be inherited by the daemon: whoever reads the ends of our pipes would wait for it.
        command = [self._binary, "-d"]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_START_S,
                start_new_session=True,  # Ctrl-C at the terminal must not end it before its clients
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{BINARY} -d for {uuid} did not return within {_START_S:g} s") from error
        if done.returncode != 0:
            raise MpsError(f"{BINARY} -d for {uuid} failed with status {done.returncode}; {self.last_log()}")
        self._await_answer()

    def _await_answer(self) -> None:
        """Ask until the daemon answers: `-d` may return before it listens, and no event tells that it does."""
        deadline = time.monotonic() + _LISTEN_S
        while True:
            try:
                self.servers()
                return
            except _NobodyListens as error:
                if time.monotonic() > deadline:
                    raise MpsError(f"{error}, for {_LISTEN_S:g} s after it was started; {self.last_log()}") from error
            time.sleep(_POLL_S)

    def servers(self) -> list[int]:
        """Return the pids of its servers; none before the first client came."""
        return _pids(self._ask("get_server_list"))

    def clients(self) -> dict[int, int]:
        """Return its clients, pid -> pid of its server."""
        return {client: server for server in self.servers() for client in _pids(self._ask(f"get_client_list {server}"))}

    def terminate_client(self, server: int, client: int) -> None:
        """End what a client does on the GPU; returns when its work has been torn down. It may be killed then."""
        self._ask(f"terminate_client {server} {client}")

    def quit(self) -> None:
        """Tell the daemon and its servers to end. Clients must have gone."""
        self._ask("quit")

    def last_log(self) -> str:
        """Return the last line that the daemon logged, for messages."""
        path = os.path.join(self._log_directory, "control.log")
        try:
            with open(path, errors="replace") as file:
                lines = file.read().strip().splitlines()
        except FileNotFoundError:
            return "it wrote no log"
        return f"its log ends: {lines[-1]}" if lines else "its log is empty"

    def _environment(self) -> dict[str, str]:
        """Return what the program gets: none of the user's settings, which are for clients or another daemon."""
        others = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
        ours = {"CUDA_MPS_PIPE_DIRECTORY": self.pipe_directory, "CUDA_MPS_LOG_DIRECTORY": self._log_directory}
        return others | _PROTOCOL | ours

    def _ask(self, command: str) -> str:
        try:
            done = subprocess.run(
                [self._binary],
                input=f"{command}\n",
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_ANSWER_S,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsSilent(
                f"the MPS daemon of {self.pipe_directory} did not answer {command!r} within {_ANSWER_S:g} s"
            ) from error
        said = (done.stdout + done.stderr).strip()
        if done.returncode != 0 or _NOBODY in said:
            kind = _NobodyListens if _NOBODY in said else MpsError
            said = said or f"status {done.returncode}"
            raise kind(f"the MPS daemon of {self.pipe_directory} refused {command!r}: {said}")
        return done.stdout


def _pids(text: str) -> list[int]:
    """Return the pids of a list. A number in a sentence may be any process's, and who has a pid may be killed."""
    return [int(line) for line in text.splitlines() if line.strip().isdecimal()]
