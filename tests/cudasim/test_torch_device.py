"""The torch backend on device tensors, on a CUDA runtime of host memory; `make test-cudasim` builds what it needs."""

import sys
from pathlib import Path

import jobs
import pytest

HERE = Path(__file__).resolve().parent
BUILT = HERE.parents[1] / "build" / f"{sys.implementation.cache_tag}-in-place" / "tests" / "cudasim"


@pytest.mark.parametrize(
    ("ranks", "path", "env"),
    [
        (1, "shared GPU, ordered by events", {}),
        (2, "shared GPU, ordered by events", {}),
        (3, "shared GPU, ordered by events", {}),
        (2, "staged: ACCDP_GPU_PATH=staged", {"ACCDP_GPU_PATH": "staged"}),
        (2, "staged: the ranks are on several nodes", {"ACCDP_TOPOLOGY": "0,1"}),
        (4, "shared GPU on each of 2 nodes", {"ACCDP_TOPOLOGY": "2x2"}),
        (2, "shared GPU on each of 2 nodes", {"ACCDP_TOPOLOGY": "0,1", "ACCDP_MPI_CUDA": "on"}),
    ],
)
def test_backend(ranks, path, env):
    if not list(BUILT.glob("sim_torch*.so")):
        pytest.skip("make test-cudasim builds the module sim_torch")
    command = [*jobs.mpiexec_command(ranks), sys.executable, str(HERE / "torch_rank.py"), str(BUILT), path]
    # The machine's nvCOMP knows no simulated device: "auto" finds that out, and goes on without it.
    result = jobs.run(command, env={"ACCDP_GPU_SLOT_BYTES": "128k", **env}, timeout=115)
    # 9: mpiexec may kill ranks that end later than the first (torch_rank.py says why). A crash at the end has another.
    assert result.returncode in (0, 9), str(result)
    assert "did not finish" not in result.stderr, str(result)
    assert sorted(report["passed"] for report in result.reports) == list(range(ranks)), str(result)


def test_a_device_that_fails_before_a_future_has_its_value():
    if not list(BUILT.glob("sim_torch*.so")):
        pytest.skip("make test-cudasim builds the module sim_torch")
    command = [sys.executable, str(HERE / "torch_future.py"), str(BUILT), ""]
    result = jobs.run(command, env={"ACCDP_GPU_SLOT_BYTES": "128k"}, timeout=60)
    assert result.returncode == 0 and result.stdout == "passed\n", str(result)
