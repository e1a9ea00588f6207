"""Build the native parts of accdp with CMake: libaccdp.so and the modules _core, _mpi and _torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
MODULES = ("_core", "_mpi", "_torch")
sys.path.insert(0, str(ROOT / "tools"))
import cores  # noqa: E402  (found only after the line above)
import toolchain  # noqa: E402


class CMakeBuild(build_ext):
    """Builds all native targets in one CMake run, into the package's folder or into setuptools' build folder."""

    def run(self) -> None:
        compiler = toolchain.find_compiler()
        torch, mpi = toolchain.find_torch(), toolchain.find_mpi(compiler)
        cuda, no_cuda = toolchain.find_cuda(compiler)
        gpus = f"CUDA {cuda.version} ({cuda.nvcc})" if cuda else f"no CUDA ({no_cuda})"
        print(f"accdp: {compiler}, torch {torch.version}, {mpi.name} ({mpi.mpicc}), {gpus}", flush=True)
        in_place = self.inplace or self.editable_mode
        package = (ROOT if in_place else Path(self.build_lib).resolve()) / "accdp_comm"
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        folder = ROOT / "build" / f"{sys.implementation.cache_tag}-{'in-place' if in_place else 'wheel'}"
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_COMPILER": compiler,
            "CMAKE_MAKE_PROGRAM": toolchain.find_ninja(),
            "ACCDP_OUTPUT_DIR": folder,
            "ACCDP_MODULE_SUFFIX": suffix,
            "ACCDP_PYTHON_INCLUDE": toolchain.python_include(),
            "ACCDP_PYBIND11_INCLUDE": toolchain.pybind11_include(),
            "ACCDP_TORCH_VERSION": torch.version,
            "ACCDP_TORCH_INCLUDES": ";".join(torch.includes),
            "ACCDP_TORCH_LIB_DIR": torch.root / "lib",
            "ACCDP_MPI_INCLUDES": ";".join(mpi.includes),
            "ACCDP_MPI_LINK": ";".join(mpi.link),
            "ACCDP_MPI_RPATH": mpi_rpath(mpi, in_place),
            "ACCDP_CUDA": "ON" if cuda else "OFF",
        }
        if cuda:
            settings |= {
                "CMAKE_CUDA_COMPILER": cuda.nvcc,
                "CMAKE_CUDA_HOST_COMPILER": compiler,
                "CMAKE_CUDA_ARCHITECTURES": cuda.architectures,
            }
        cmake = toolchain.find_cmake()
        forget_others_cache(folder, settings)
        configure = [cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), "--log-level=WARNING"]
        call([*configure, *(f"-D{name}={value}" for name, value in settings.items())])
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(cores.cores()))
        call([cmake, "--build", str(folder), "--parallel", jobs])
        put_in_place([folder / "libaccdp.so", *(folder / f"{name}{suffix}" for name in MODULES)], package)

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # an editable install uses the libraries where they are built


def put_in_place(libraries: list[Path], package: Path) -> None:
    """Copy what was built, once all of it was: of two builds at once they would crash, as after Ctrl-C."""
    package.mkdir(parents=True, exist_ok=True)
    copies = {library: package / f"{library.name}.{os.getpid()}.new" for library in libraries}
    try:
        for library, copy in copies.items():
            shutil.copy2(library, copy)
        for library, copy in copies.items():
            copy.replace(package / library.name)
    finally:
        for copy in copies.values():
            copy.unlink(missing_ok=True)


def mpi_rpath(mpi: toolchain.Mpi, in_place: bool) -> str:
    """Where the module _mpi looks for libmpi.

    A wheel that brings an MPI puts it at a fixed distance from the installed package. While pip builds, that MPI may
    lie in a temporary folder; at run time it is the one in the environment.
    """
    if toolchain.mpi_wheel(mpi.mpicc) is None:
        return mpi.lib_dir
    lib = str(Path(sysconfig.get_path("data"), "lib"))  # of Debian's own Python not that of sys.prefix
    beside = "$ORIGIN/" + os.path.relpath(lib, Path(sysconfig.get_path("platlib"), "accdp_comm"))
    # Where the MPI was there already, in another prefix than what is built goes to: the user's, for one.
    is_passing = re.search(r"/(pip-)?build-env-|/builds-v\d+/", mpi.lib_dir)  # of pip, build and uv
    return ";".join([lib if in_place else beside, *([] if is_passing else [mpi.lib_dir])])


def forget_others_cache(folder: Path, settings: Mapping[str, object]) -> None:
    """Drop a CMake cache of another checkout (a copied or renamed folder), or of other compilers.

    CMake refuses the former; of the latter it forgets all other settings, in the very run that states them.
    """
    cache = folder / "CMakeCache.txt"
    text = cache.read_text() if cache.is_file() else ""
    compilers = {
        name: str(settings[name]) for name in ("CMAKE_CXX_COMPILER", "CMAKE_CUDA_COMPILER") if name in settings
    }
    for name, now in {"CMAKE_HOME_DIRECTORY": str(ROOT), **compilers}.items():
        had = re.search(rf"^{name}:\w+=(.*)$", text, re.M)
        if had and had.group(1) != now:
            shutil.rmtree(folder)
            return


def call(command: list[str]) -> None:
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        toolchain.stop(f"{Path(command[0]).name} failed with status {status}; its messages are above.")


def dependencies() -> list[str]:
    """What the built package needs: the torch release it is compiled against, and its MPI if that is a wheel."""
    torch = toolchain.torch_if_any()
    release = torch.version if torch else toolchain.read_requirements("torch.txt")[0].split("==")[1]
    needed = ["numpy>=1.26", "rich>=13", f"torch=={'.'.join(release.split('.')[:2])}.*"]
    mpicc = toolchain.mpicc_if_any()
    wheel = toolchain.mpi_wheel(mpicc) if mpicc else None
    needed += [wheel] if wheel else []
    return needed


# pip applies pyproject.toml's `requires` where it isolates builds alone, and what an older one says fills a page.
toolchain.require_setuptools(setuptools.__version__)
setup(
    ext_modules=[Extension(f"accdp_comm.{name}", sources=[]) for name in MODULES],
    cmdclass={"build_ext": CMakeBuild},
    install_requires=dependencies(),
)
