"""What nvcc makes of the kernels, where it is there; no GPU is needed.

tests/cudasim runs only what the host's compiler makes of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import toolchain  # noqa: E402

SOURCES = sorted(path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.cu"))
KERNEL = re.compile(r"\.entry (\w+)\(.*?^}", re.DOTALL | re.MULTILINE)
WRITES = re.compile(r"\b(st|atom|red)\.(?!shared|local|param)")


@pytest.mark.skipif(os.environ.get("ACCDP_CUDA") == "off", reason="ACCDP_CUDA=off")
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_every_kernel_writes_to_memory(source, tmp_path):
    """nvcc 13.0 has dropped all that followed `if constexpr (false)` before a `for` without braces, in a lambda."""
    cuda, why_not = toolchain.find_cuda(toolchain.find_compiler())
    if cuda is None:
        pytest.skip(why_not)
    ptx = tmp_path / "kernels.ptx"
    newest = cuda.architectures.rsplit(";", 1)[-1]
    flags = ["-std=c++20", "-O3", "-fmad=false", f"-I{ROOT / 'csrc'}", f"-arch=compute_{newest}"]
    subprocess.run([cuda.nvcc, *flags, "-ptx", str(ROOT / source), "-o", str(ptx)], check=True, timeout=300)
    kernels = {found[1]: found[0] for found in KERNEL.finditer(ptx.read_text())}
    assert kernels
    assert [name for name, code in kernels.items() if not WRITES.search(code)] == []
