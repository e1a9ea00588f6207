"""The kernels as nvcc has compiled them, on the simulated device, against the host's loops.

Elsewhere tests/cudasim runs what the host's compiler makes of them. nvcc 13.0 has two code generators, one for GPUs
before sm_100: each has its faults. One dropped all that followed `if constexpr (false)` before a `for` without braces,
in a lambda; the older shifts a byte with the sign of 16 bits.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accdp_comm import nvcomp

HERE = Path(__file__).resolve().parent
BUILT = HERE.parents[1] / "build" / f"{sys.implementation.cache_tag}-in-place" / "tests" / "cudasim"
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools")]

import ptx  # noqa: E402
import toolchain  # noqa: E402

UNDERSTOOD = "13.0"  # the nvcc all of whose instructions ptx.py must know
SKIPPED = 77


@pytest.fixture(scope="module")
def cuda():
    found, why_not = toolchain.find_cuda(toolchain.find_compiler())
    if found is None:
        pytest.skip(why_not)
    return found


def kernels_of(gpu: str, has_nvcomp: bool) -> set[str]:
    files = [each for each in BUILT.glob(f"*.{gpu.removeprefix('sm_')}.ptx") if has_nvcomp or "nvcomp" not in each.name]
    return {f"{gpu} {ptx.host_name(entry['name'])}" for each in files for entry in ptx.ENTRY.finditer(each.read_text())}


@pytest.mark.parametrize("generator", ["older", "newest"])
def test_kernels(generator, cuda, tmp_path):
    """All kernels run, and what the programs check of them holds."""
    newest = f"sm_{cuda.architectures.rsplit(';', 1)[-1]}"
    gpu = "sm_90" if generator == "older" else newest
    if generator == "newest" and newest == "sm_90":
        pytest.skip(f"nvcc {cuda.version} has one code generator")
    nvcomp_directory, launched = nvcomp.find_directory(), tmp_path / "launched"
    programs = (BUILT / "by_nvcc.txt").read_text().split()
    assert programs
    env = {**os.environ, "CUDASIM_KERNELS": gpu, "CUDASIM_LAUNCHED": str(launched)}
    if nvcomp_directory:
        env["ACCDP_TEST_NVCOMP_DIR"] = nvcomp_directory
    else:
        programs.remove("test_device_nvcomp")

    def run(program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(BUILT / program)], env=env, timeout=100, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = dict(zip(programs, pool.map(run, programs), strict=True))
    unknown = [result.stdout for result in results.values() if result.returncode == SKIPPED]
    for program, result in results.items():
        accepted = (0,) if cuda.version == UNDERSTOOD else (0, SKIPPED)
        assert result.returncode in accepted, f"{program} on {gpu}: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    if unknown:
        pytest.skip(f"nvcc {cuda.version}: {unknown[0]}")
    kernels = kernels_of(gpu, nvcomp_directory is not None)
    assert kernels, f"no PTX in {BUILT}"
    assert kernels - set(launched.read_text().splitlines()) == set()


def test_registers_suffice(cuda):
    """No kernel puts values aside into memory: what moves as fast as memory does has no room for that."""
    ptxas = shutil.which("ptxas", path=os.pathsep.join([str(Path(cuda.nvcc).resolve().parent), os.environ["PATH"]]))
    if ptxas is None:
        pytest.skip(f"no ptxas beside {cuda.nvcc} or on PATH")

    def said_of(source: Path) -> str:
        words = [ptxas, "-v", "-arch=sm_90", str(source), "-o", os.devnull]
        return subprocess.run(words, timeout=300, capture_output=True, text=True, check=True).stderr

    sources = sorted(BUILT.glob("*.90.ptx"), key=lambda path: path.stat().st_size)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        said = "".join(pool.map(said_of, sources))
    spilled = re.findall(r"(\d+) bytes spill stores", said)
    assert len(spilled) == sum(len(ptx.ENTRY.findall(source.read_text())) for source in sources) > 100
    assert set(spilled) == {"0"}, said


UNKNOWN = """
.target sm_90
.visible .entry waits(
\t.param .u64 waits_param_0
)
{
\t.reg .b32 \t%r<2>;
\tbar.sync \t0;
\tret;

}
"""


@pytest.mark.parametrize("instruction", ["bar.sync", "fma.rn.f32", "mul.f32", "ld.shared.u32"])
def test_what_cannot_run_is_said(instruction):
    """Threads that wait, and floats that may be fused, among others."""
    lines = list(ptx.translate(UNKNOWN.replace("bar.sync", instruction)))
    assert 'registered_0("sm_90 waits", {sizeof(ptx::u64)}, nullptr, R"(' in lines[-2]


def test_names_of_the_host():
    device = "_ZN5accdp51_GLOBAL__N__0e9c8f13_18_cuda_transforms_cu_b162b0985deltaILb1EEEvPKT_"
    assert ptx.host_name(device) == "_ZN5accdp12_GLOBAL__N_15deltaILb1EEEvPKT_"
    assert ptx.host_name("_ZN5accdp12device_codec4planEv") == "_ZN5accdp12device_codec4planEv"
    assert not re.search("[0-9a-f]{8}", ptx.host_name(device))
