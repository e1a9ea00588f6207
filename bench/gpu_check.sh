#!/usr/bin/env bash
# What only a GPU can show, in one command, from a checkout, in less than 10 minutes:
#   bench/gpu_check.sh [--wheels FOLDER] [--out FILE.json] [--seconds N] [--only STEP,... [--after FILE.json]]
# Builds with CUDA in .venv-gpu, which sees the machine's own packages (its torch), then runs bench/gpu_check.py.
# --wheels: install what is missing (mpich, pybind11, ...) from that folder, without any index. What is not there either
# is told, and the check goes on: nvCOMP it can do without, and what it cannot, the build asks for in a sentence.
set -euo pipefail
limit_s=530  # --seconds, for the build and all steps: of 600 s, less what ending the last step may take

only=() wheels="" out="$(dirname "${BASH_SOURCE[0]}")/results/gpu_check.json"
while [ $# -gt 0 ]; do
  case "$1" in
    --wheels) wheels="$(realpath -e -- "$2")"; shift 2 ;;
    --out) out="$2"; shift 2 ;;
    --seconds) limit_s="$2"; shift 2 ;;
    --only) only+=(--only "$2"); shift 2 ;;
    --after) only+=(--after "$(realpath -e -- "$2")"); shift 2 ;;
    *) echo "gpu_check.sh: $1: expected --wheels FOLDER, --out FILE, --seconds N, --only STEP,... or --after FILE" >&2; exit 2 ;;
  esac
done
out="$(realpath -m -- "$out")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where the driver's and the toolkit's programs may be without anybody's PATH: nvidia-cuda-mps-control, nvcc.
# cmake and ninja, where packages of the machine's Python brought them.
scripts="$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
export PATH="$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin:$scripts"
unset PYTHONDONTWRITEBYTECODE  # every rank of every step would make the byte code of what it imports anew
# torch's libraries are of gigabytes, which a new machine reads for the first time: beside the build.
"${PYTHON:-python3}" -c 'import torch; torch.zeros(1, device="cuda")' > /dev/null 2>&1 &
export ACCDP_CUDA=on PIP_RETRIES=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# All cores, whatever memory is free now: virtual machines get theirs as they use it, and those with a GPU have plenty.
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
# What was brought along is tried, whichever MPI the machine has besides.
if compgen -G "${wheels:-/nowhere}/mpich-*.whl" > /dev/null; then export MPICC="${MPICC:-$PWD/.venv-gpu/bin/mpicc}"; fi
make=(make VENV=.venv-gpu VENV_FLAGS=--system-site-packages WHEELS="$wheels")
if ! "${make[@]}" .venv-gpu/stamps/run; then
  [ -x .venv-gpu/bin/python ] || exit 1  # why, has been said
  mpi="" missing=""  # pip installs all or nothing: now one by one
  command -v "${MPICC:-mpicc}" > /dev/null || mpi=requirements/mpi.txt
  for package in $(sed 's/[=;# ].*//; s/^setuptools$/&>=77/' requirements/build.txt requirements/run.txt $mpi | sort -u); do
    .venv-gpu/bin/python -m pip install --quiet ${wheels:+--no-index --find-links "$wheels"} "$package" ||
      missing+=" $package"
  done
  [ -z "$missing" ] || echo "gpu_check.sh: goes on without:$missing" >&2
  mkdir -p .venv-gpu/stamps
fi
"${make[@]}" -o .venv-gpu/stamps/run build
exec .venv-gpu/bin/python bench/gpu_check.py --out "$out" --seconds $((limit_s - SECONDS)) "${only[@]}"
