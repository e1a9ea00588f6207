#!/usr/bin/env bash
# What only a GPU can show, in one command, from a checkout, in less than 10 minutes:
#   bench/gpu_check.sh [--wheels FOLDER] [--out FILE.json]
# Builds with CUDA in .venv-gpu, which sees the machine's own packages (its torch), then runs bench/gpu_check.py.
# --wheels: install what is missing (mpich, pybind11, ...) from that folder, without any index.
set -euo pipefail
limit_s=580  # for the build and all steps
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheels="" out="bench/results/gpu_check.json"
while [ $# -gt 0 ]; do
  case "$1" in
    --wheels) wheels="$2"; shift 2 ;;
    --out) out="$2"; shift 2 ;;
    *) echo "gpu_check.sh: $1: expected --wheels FOLDER or --out FILE" >&2; exit 2 ;;
  esac
done

export ACCDP_CUDA=on
make build VENV=.venv-gpu VENV_FLAGS=--system-site-packages WHEELS="$wheels"
exec .venv-gpu/bin/python bench/gpu_check.py --out "$out" --seconds $((limit_s - SECONDS))
