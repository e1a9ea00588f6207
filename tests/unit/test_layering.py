"""The include arrows of csrc/ go one way, and each foreign thing has one home.

The rules are functions of a source tree, so that the last tests can break a copy of it and see that the break is found.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# Layer -> layers (folders) or single headers that it may include, besides itself.
MAY_INCLUDE = {
    "base": [],
    "device": ["base"],
    "codec": ["base", "device"],
    "node": ["base"],
    "mpi": ["base"],
    "coll": ["base", "device", "codec", "node", "mpi/wire.hpp"],
    "gpu": ["base", "device", "codec", "node", "coll"],
    "torch": ["base", "device", "node", "coll", "gpu"],
    "bind": ["base", "device", "codec", "node", "mpi", "coll", "gpu", "torch"],
}

# What must not spread: a pattern, and the folders or files that may contain it.
HOMES = {
    "MPI": (r"\bP?MPI_[A-Z]\w*", ["mpi", "bind/mpi_module.cpp"]),  # the bindings name its handles
    "calls of MPI": (r"\bP?MPI_[A-Z]\w*\s*\(|#include <mpi\.h>", ["mpi"]),
    "environment": (r"\b(?:secure_)?getenv\s*\(|\benviron\b", ["base"]),
    "torch": (r"#include [<\"](?:torch|ATen|c10)/|\b(?:at|c10d?|torch)::", ["torch", "bind/torch_module.cpp"]),
    "Python": (
        r"#include [<\"](?:pybind11/|Python\.h|torch/csrc/utils/pybind\.h)",
        ["bind", "torch/work.cpp", "base/no_gil.hpp"],
    ),
    "libraries opened at run time": (r"\bdl(?:open|sym|close)\s*\(", ["base/shared_library.hpp"]),
    "nvCOMP and zstd": (r"\b(?:bitcomp[A-Z]\w+|LZ4_\w+|ZSTD_\w+)", ["codec"]),
    "calls of CUDA": (r"\bcuda[A-Z]\w*\s*\(", ["device", "codec/cuda_launch.hpp"]),
    "CUDA's header": (
        r"#include <cuda\w*\.h>",
        [
            "device/cuda.hpp",
            "device/cuda_reduce.hpp",
            "device/cuda_reduce.cu",
            "codec/cuda_codec.hpp",
            "codec/cuda_qpk.hpp",
        ],
    ),
    "shared memory and futexes": (
        r"\b(?:mmap|munmap|mremap|memfd_create|shm_open)\s*\(|\bSYS_futex\b|#include <(?:linux/futex|sys/mman)\.h>",
        ["node"],
    ),
}


def sources(tree: Path) -> list[Path]:
    found = sorted(path for path in tree.rglob("*") if path.suffix in {".hpp", ".cpp", ".h", ".cu", ".cuh"})
    assert found, f"no sources in {tree}"
    return found


def code_of(path: Path) -> str:
    """A file's text without comments, line for line."""
    blank = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), path.read_text(), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", blank)


def is_within(name: str, homes: list[str]) -> bool:
    return any(name == home or name.startswith(home + "/") for home in homes)


def wrong_includes(tree: Path) -> Iterator[str]:
    for path in sources(tree):
        name = path.relative_to(tree).as_posix()
        layer = name.split("/")[0]
        for header in re.findall(r'#include\s+"([^"]+)"', code_of(path)):
            if not is_within(header, [layer, *MAY_INCLUDE.get(layer, [])]):
                yield f"{name} includes {header}"


def strays(tree: Path, thing: str) -> Iterator[str]:
    pattern, homes = HOMES[thing]
    for path in sources(tree):
        name = path.relative_to(tree).as_posix()
        if is_within(name, homes):
            continue
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if match := re.search(pattern, line):
                yield f"{name}:{number}: {match[0].strip()} belongs in {' or '.join(homes)}"


def test_every_folder_is_a_layer():
    assert {path.name for path in CSRC.iterdir()} == set(MAY_INCLUDE)
    assert [path.name for path in sources(CSRC) if path.parent == CSRC] == []


def test_includes_name_files_that_exist():
    """Project headers are included by their path from csrc/; otherwise the rule below would not see their layer."""
    for path in sources(CSRC):
        for header in re.findall(r'#include\s+"([^"]+)"', code_of(path)):
            assert (CSRC / header).is_file(), f"{path.relative_to(CSRC)} includes {header}"


def test_arrows_point_down():
    assert list(wrong_includes(CSRC)) == []


def test_layers_have_no_cycle():
    """The table itself must be an order: each layer may include only layers that come before it."""
    seen: set[str] = set()
    for layer, below in MAY_INCLUDE.items():
        assert {name.split("/")[0] for name in below} <= seen, layer
        seen.add(layer)


@pytest.mark.parametrize("thing", HOMES)
def test_home(thing):
    assert list(strays(CSRC, thing)) == []
    pattern, homes = HOMES[thing]
    at_home = [path for path in sources(CSRC) if is_within(path.relative_to(CSRC).as_posix(), homes)]
    assert any(re.search(pattern, code_of(path)) for path in at_home), f"{pattern} matches nothing in {homes}"


@pytest.fixture
def tree(tmp_path):
    """A copy of csrc/ that a test may break."""
    return Path(shutil.copytree(CSRC, tmp_path / "csrc"))


def append(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line + "\n")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("base/types.hpp", "device/reduce.hpp"),
        ("device/reduce.hpp", "node/board.hpp"),
        ("codec/codec.hpp", "coll/stream.hpp"),
        ("node/board.hpp", "codec/codec.hpp"),
        ("node/waiter.hpp", "coll/fabric.hpp"),
        ("mpi/world.hpp", "node/board.hpp"),
        ("coll/group.hpp", "mpi/world.hpp"),
        ("coll/group.cpp", "torch/process_group.hpp"),
        ("torch/work.hpp", "mpi/wire.hpp"),
        ("device/cuda.hpp", "coll/context.hpp"),
        ("coll/group.cpp", "gpu/pool.hpp"),
        ("torch/work.hpp", "bind/capsule.hpp"),
    ],
)
def test_an_arrow_that_points_up_is_found(tree, name, header):
    append(tree / name, f'#include "{header}"')
    assert list(wrong_includes(tree)) == [f"{name} includes {header}"]


@pytest.mark.parametrize(
    ("thing", "name", "line"),
    [
        ("MPI", "coll/group.hpp", "MPI_Comm comm;"),
        ("calls of MPI", "coll/group.cpp", "void f() { MPI_Barrier(0); }"),
        ("calls of MPI", "bind/mpi_module.cpp", "int g_code = MPI_Finalize ();"),
        ("calls of MPI", "torch/queue.cpp", "#include <mpi.h>"),
        ("libraries opened at run time", "coll/group.cpp", 'void* p = dlopen("libm.so", 1);'),
        ("nvCOMP and zstd", "coll/group.cpp", "int ZSTD_compress();"),
        ("calls of CUDA", "gpu/pool.cpp", "void f() { cudaDeviceSynchronize(); }"),
        ("CUDA's header", "device/reduce.hpp", "#include <cuda_runtime.h>"),
        ("environment", "coll/context.cpp", 'const char* home = std::getenv("HOME");'),
        ("torch", "coll/group.hpp", "#include <c10/util/Exception.h>"),
        ("torch", "bind/core_module.cpp", "#include <torch/extension.h>"),
        ("Python", "coll/group.hpp", "#include <pybind11/pybind11.h>"),
        ("Python", "torch/queue.cpp", "#include <torch/csrc/utils/pybind.h>"),
        ("shared memory and futexes", "coll/fabric.cpp", "void* p = mmap (nullptr, 1, 0, 0, -1, 0);"),
        ("shared memory and futexes", "base/deadline.cpp", "long f() { return syscall(SYS_futex); }"),
    ],
)
def test_a_stray_is_found(tree, thing, name, line):
    append(tree / name, line)
    found = list(strays(tree, thing))
    assert len(found) == 1 and found[0].startswith(f"{name}:"), found


def test_nothing_of_os_that_some_builds_of_python_lack():
    """Those that are made for old systems, such as conda's and uv's, go without, however new the kernel is."""
    lacking = re.compile(r"\bos\.(?:memfd_create|MFD_\w+|pidfd_open|eventfd\w*|copy_file_range|splice)\b")
    files = sorted((CSRC.parent / "accdp_comm").rglob("*.py"))
    assert files and [path.name for path in files if lacking.search(path.read_text())] == []


def test_only_files_named_cuda_need_cuda():
    """What the build leaves out where there is no CUDA (CMakeLists.txt) is what includes it, and nobody else does."""

    def includes(path: Path) -> set[str]:
        return set(re.findall(r'#include\s+"([^"]+)"', code_of(path)))

    cuda = {"device/cuda.hpp", "device/cuda_reduce.hpp", "codec/cuda_codec.hpp"}
    for path in sources(CSRC):
        cuda |= {path.relative_to(CSRC).as_posix()} if path.suffix == ".hpp" and includes(path) & cuda else set()
    for path in sources(CSRC):
        name = path.relative_to(CSRC).as_posix()
        left_out = name.startswith("gpu/") or re.fullmatch(r"(device|codec)/cuda_\w+\.(cpp|cu)", name)
        if path.suffix in {".cpp", ".cu"} and includes(path) & cuda:
            assert left_out, name


def test_comments_are_not_code(tree):
    append(tree / "base/types.hpp", '// #include "coll/group.hpp" and MPI_Send(...)\n/* getenv(\n MPI_Recv( */')
    assert list(wrong_includes(tree)) == []
    assert [stray for thing in HOMES for stray in strays(tree, thing)] == []
