"""Print, as JSON, what this machine and its GPU are, and the bandwidth that gpu_check.py counts limits with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time

SMI = "driver_version,uuid,compute_mode,persistence_mode"


def said_by(*command: str) -> str:
    """What a command says; "unknown" where it fails, as in a copy without history."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def machine() -> dict:
    """What this machine is, and the bandwidth that the limits are counted with."""
    import torch

    from accdp_comm import _core

    x, y = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def copy_bytes_per_s() -> float:
        start.record()
        for _ in range(20):
            y.copy_(x)
        end.record()
        end.synchronize()
        return 20 * 2 * x.numel() / (start.elapsed_time(end) * 1e-3)  # read and written

    until = time.monotonic() + 0.5  # an idle GPU's clocks are low
    while time.monotonic() < until:
        copy_bytes_per_s()
    facts = torch.cuda.get_device_properties(0)
    return {
        "gpu": facts.name,
        "gpu_bytes": facts.total_memory,
        "multiprocessors": facts.multi_processor_count,
        "copy_bytes_per_s": max(copy_bytes_per_s() for _ in range(5)),
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "cuda": _core.cuda_report(),
        "nvidia_smi": said_by("nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"),
        "commit": os.environ.get("ACCDP_COMMIT") or said_by("git", "rev-parse", "HEAD"),
    }


if __name__ == "__main__":
    print(json.dumps(machine()))
