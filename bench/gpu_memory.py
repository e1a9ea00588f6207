"""Operations on memory of allocators whose blocks CUDA IPC cannot export; a step of bench/gpu_check.py, on 2 ranks.

    accdp run --ranks-per-gpu 2 --gpus 0 bench/gpu_memory.py --scenes NAME[,NAME] --out FILE.json

Which allocator torch has is for PYTORCH_CUDA_ALLOC_CONF to say, once for a process; each scene sees that it is so. All
operations must give what they give on other memory, since only the package's own pool is shared. A scene that this
machine cannot play says why; after each, rank 0 writes all until then. What fails is told as in bench/gpu_rank.py.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import importlib
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_rank
import numpy as np
import torch
import torch.distributed as dist
from gpu_checks import Checks, Expect

from accdp_comm import Communicator

COUNTS = (1000, 1_000_001)  # elements: of a small block, and of one that fills several pieces of the shared pool
SLOW = 1 << 26  # elements that keep a stream busy for some milliseconds


class CannotPlay(Exception):
    """Why a scene is left out, on every rank."""


def segments(device: str) -> list[dict]:
    """What torch's allocator has taken, once it has some."""
    keep = torch.ones(1 << 20, device=device)
    found = torch.cuda.memory_snapshot() if device != "cpu" else []
    del keep
    return found


def check_tensors(comm: Communicator, expect: Expect, device: str) -> None:
    for count in COUNTS:
        gpu_rank.check(comm, expect, count, torch.float32, device)
        gpu_rank.check_torch(comm, expect, count, device)


def expandable(comm: Communicator, expect: Expect, device: str) -> str:
    if not any(one.get("is_expandable") for one in segments(device)):
        raise CannotPlay("torch makes no expandable segments here")
    check_tensors(comm, expect, device)
    return "expandable segments of torch"


def asynchronous(comm: Communicator, expect: Expect, device: str) -> str:
    backend = "not CUDA's" if device == "cpu" else torch.cuda.get_allocator_backend()
    if backend != "cudaMallocAsync":
        raise CannotPlay(f"torch's allocator is {backend}")
    check_tensors(comm, expect, device)
    return "torch's backend cudaMallocAsync"


def mem_pool(comm: Communicator, expect: Expect, device: str) -> str:
    if device == "cpu" or not hasattr(torch.cuda, "MemPool"):
        raise CannotPlay("this torch has no MemPool")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        is_there = any(tuple(one.get("segment_pool_id", ())) == tuple(pool.id) for one in segments(device))
        check_tensors(comm, expect, device)
    torch.cuda.synchronize()  # the pool goes when nothing works on its memory
    if not is_there:
        raise CannotPlay("torch's snapshot shows no segment of the pool")
    return f"MemPool {tuple(pool.id)}"


def check_arrays(comm: Communicator, expect: Expect, cupy: Any) -> None:
    """Compare operations on CuPy's arrays with NumPy; results are read in the order of CuPy's current stream."""

    def is_same(x: Any, wanted: np.ndarray) -> bool:
        return np.array_equal(x.get() if hasattr(x, "get") else x, wanted)

    for count in COUNTS:
        every = [((np.arange(count) * 7 + rank) % 13).astype(np.float32) for rank in range(comm.size)]
        mine = ((cupy.arange(count) * 7 + comm.rank) % 13).astype(cupy.float32)
        total, root = np.sum(every, 0), comm.size - 1
        expect(is_same(comm.allreduce(mine.copy()), total), "allreduce")
        expect(is_same(comm.allreduce(mine, out=cupy.empty_like(mine)), total), "allreduce with out")
        expect(is_same(comm.bcast(mine.copy(), root), every[root]), "bcast")
        expect(is_same(comm.allgather(mine), np.stack(every)), "allgather")
        part = comm.reduce_scatter([mine] * comm.size, out=cupy.empty_like(mine))
        expect(is_same(part, total), "reduce_scatter")


def find_cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise CannotPlay(f"CuPy is not there: {error}".splitlines()[0]) from None


def cupy_pool(comm: Communicator, expect: Expect, device: str) -> str:
    cupy = find_cupy()
    check_arrays(comm, expect, cupy)
    return f"CuPy {cupy.__version__}, {cupy.get_default_memory_pool().total_bytes()} bytes in its pool"


def cupy_stream(comm: Communicator, expect: Expect, device: str) -> str:
    """What is made on a stream that nothing else waits for, and not soon."""
    cupy = find_cupy()
    with cupy.cuda.Stream(non_blocking=True):
        slow = cupy.ones(SLOW, dtype=cupy.float32)
        for _ in range(50):
            slow *= 1
        check_arrays(comm, expect, cupy)
    return f"CuPy {cupy.__version__} on a stream of its own"


SCENES: dict[str, Callable[[Communicator, Expect, str], str]] = {
    "expandable segments": expandable,
    "cudaMallocAsync": asynchronous,
    "MemPool": mem_pool,
    "CuPy pool": cupy_pool,
    "CuPy stream": cupy_stream,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scenes", required=True, help="comma separated, of: " + ", ".join(SCENES))
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    options = parser.parse_args()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # says where it hung when its limit ends it
    if options.device != "cpu":
        torch.cuda.set_device(0)
    rows: list[dict] = []
    with Communicator(timeout_s=gpu_rank.MEETING_S) as comm:
        checks = Checks(comm, options.out.with_suffix(".failures"))
        limit = datetime.timedelta(seconds=gpu_rank.CALL_S)
        store = f"file://{options.out.with_suffix('.store')}"
        dist.init_process_group("accdp", init_method=store, rank=comm.rank, world_size=comm.size, timeout=limit)
        for name in options.scenes.split(","):
            row: dict = {"scene": name}
            began = time.monotonic()
            with checks.one(f"memory of {name}"):
                try:
                    row["memory"] = SCENES[name](comm, checks.expect, options.device)
                except CannotPlay as why:
                    row["skipped"] = str(why)
            rows.append(row | {"s": round(time.monotonic() - began, 2)})
            if comm.rank == 0:
                part = options.out.with_suffix(".part")
                part.write_text(json.dumps({"device_path": comm.device_path, "rows": rows}))
                part.replace(options.out)
        dist.destroy_process_group()
    if failures := checks.failures:
        sys.exit(f"gpu_memory.py: {len(failures)} checks failed, first {failures[0]}")


if __name__ == "__main__":
    main()
