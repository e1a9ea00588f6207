"""The kernels as nvcc has compiled them, on the simulated device, byte for byte against the host's loops.

Elsewhere tests/cudasim runs what the host's compiler makes of them. nvcc 13.0 has two code generators, one for GPUs
before sm_100: each has its faults. One dropped all that followed `if constexpr (false)` before a `for` without braces,
in a lambda; the older shifts a byte with the sign of 16 bits.
"""

import os
import re
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

PROGRAMS = ("reduce", "codec", "transforms", "sums", "nvcomp", "workshop")
UNDERSTOOD = "13.0"  # the nvcc all of whose instructions ptx.py must know


@pytest.fixture(scope="module")
def cuda():
    found, why_not = toolchain.find_cuda(toolchain.find_compiler())
    if found is None:
        pytest.skip(why_not)
    return found


def kernels_of(gpu: str) -> set[str]:
    sources = BUILT.glob(f"*.{gpu.removeprefix('sm_')}.ptx")
    return {
        f"{gpu} {ptx.host_name(entry['name'])}" for each in sources for entry in ptx.ENTRY.finditer(each.read_text())
    }


@pytest.mark.parametrize("generator", ["older", "newest"])
def test_kernels(generator, cuda, tmp_path):
    """All kernels are launched, and what the programs check of them holds."""
    gpu = "sm_90" if generator == "older" else f"sm_{cuda.architectures.rsplit(';', 1)[-1]}"
    launched = tmp_path / "launched"
    env = {**os.environ, "CUDASIM_KERNELS": gpu, "CUDASIM_LAUNCHED": str(launched)}
    env["ACCDP_TEST_NVCOMP_DIR"] = nvcomp.find_directory() or ""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        command = [str(BUILT / f"test_device_{program}")]
        return subprocess.run(command, env=env, timeout=100, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = dict(zip(PROGRAMS, pool.map(run, PROGRAMS), strict=True))
    skipped = [result.stdout for result in results.values() if result.returncode == 77]
    if skipped and cuda.version != UNDERSTOOD:
        pytest.skip(f"nvcc {cuda.version}: {skipped[0]}")
    for program, result in results.items():
        assert result.returncode == 0, f"{program} on {gpu}: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    assert kernels_of(gpu) - set(launched.read_text().splitlines()) == set()


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


def test_what_cannot_run_is_said():
    lines = list(ptx.translate(UNKNOWN))
    assert 'registered_0("sm_90 waits", {sizeof(ptx::u64)}, nullptr, R"(instruction bar.sync)");' in lines[-2]


def test_names_of_the_host():
    device = "_ZN5accdp51_GLOBAL__N__0e9c8f13_18_cuda_transforms_cu_b162b0985deltaILb1EEEvPKT_"
    assert ptx.host_name(device) == "_ZN5accdp12_GLOBAL__N_15deltaILb1EEEvPKT_"
    assert ptx.host_name("_ZN5accdp12device_codec4planEv") == "_ZN5accdp12device_codec4planEv"
    assert not re.search("[0-9a-f]{8}", ptx.host_name(device))
