"""Measure what the library keeps in memory beside a program's buffers, and time per byte, of long operations.

    python bench/memory.py                         16 MiB to 256 MiB, on one node and on two declared ones
    python bench/memory.py --sizes 16M,256M,1G     what fits: a rank holds up to three buffers of the size
    python bench/memory.py --growth                allreduce and bcast up to 1 GiB: the table of docs/performance.md

Each rank touches its buffers first. What its resident set has at most during an operation (VmHWM, shared pages counted
in every rank that touched them), less the buffers and what there was before the communicator was made (Python, NumPy,
torch where it is asked for, an initialised MPI), is the library's, what MPI takes for messages included. Fails if any
is above 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
LIMIT_BYTES = 64 << 20
PLACEMENTS = {"1x2": "", "2x1": "2x1", "2x2": "2x2"}  # nodes x ranks, as declared
OPS = (
    *("allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "gather", "scatter", "sendrecv"),
    *("deterministic_allreduce", "bcast_lossless", "bcast_bounded", "allreduce_lossless", "allreduce_bounded"),
    "torch_allreduce",
)
USUAL = {"sizes": "16M,64M,256M", "ops": list(OPS), "placements": list(PLACEMENTS)}
GROWTH = {"sizes": "16M,64M,256M,1G", "ops": ["allreduce", "bcast"], "placements": ["1x2", "2x1"]}


def resident(name: str) -> int:
    """A figure of /proc/self/status in bytes: VmRSS now, VmHWM the most since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}")


def forget_peak() -> None:
    """Let VmHWM begin again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def weights(nbytes: int) -> np.ndarray:
    """Floats as trained weights are: codecs have something to do, and do not get rid of all of it."""
    some = np.random.default_rng(0).standard_normal(1 << 16, np.float32) * 0.02
    x = np.empty(nbytes // 4, np.float32)  # in place: what NumPy throws away would count as the library's
    for at in range(0, x.size, some.size):
        x[at : at + some.size] = some[: x.size - at]
    return x


def calls(comm: Any, ordered: Any, nbytes: int) -> dict[str, Callable[[], Any]]:
    """The operations on buffers of so many bytes in all, touched. ordered: a deterministic communicator."""
    from accdp_comm import allreduce_compressed, bcast_compressed, relative

    x, out = weights(nbytes), np.ones(nbytes // 4, np.float32)
    share = x[: x.size // comm.size]
    every, all_out = x[: share.size * comm.size], out[: share.size * comm.size]

    def sendrecv() -> None:
        if comm.rank < 2:
            other = 1 - comm.rank
            comm.send(x, other) if comm.rank == 0 else comm.recv(out, other)

    def torch_allreduce() -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.from_numpy(out))

    return {
        "allreduce": lambda: comm.allreduce(x, out=out),
        "reduce": lambda: comm.reduce(x, out=out),
        "bcast": lambda: comm.bcast(x),
        "allgather": lambda: comm.allgather(share, all_out),
        "reduce_scatter": lambda: comm.reduce_scatter(every, out=out[: share.size]),
        "alltoall": lambda: comm.alltoall(every, all_out),
        "gather": lambda: comm.gather(share, out=all_out if comm.rank == 0 else None),
        "scatter": lambda: comm.scatter(every if comm.rank == 0 else None, out[: share.size]),
        "sendrecv": sendrecv,
        "deterministic_allreduce": lambda: ordered.allreduce(x, out=out),
        "bcast_lossless": lambda: bcast_compressed(x, group=comm, codec="fpk"),
        "bcast_bounded": lambda: bcast_compressed(x, group=comm, codec="qpk", error_bound=relative(0.01)),
        "allreduce_lossless": lambda: allreduce_compressed(x, group=comm, codec="fpk"),
        "allreduce_bounded": lambda: allreduce_compressed(x, group=comm, codec="qpk", error_bound=relative(0.01)),
        "torch_allreduce": torch_allreduce,
    }


def rank_main(sizes: list[int], ops: list[str], placement: str) -> None:
    """Measure every operation and size; rank 0 prints one JSON line each."""
    from mpi4py import MPI

    from accdp_comm import Communicator

    MPI.COMM_WORLD.Barrier()
    uses_torch = any(op.startswith("torch") for op in ops)
    if uses_torch:
        import torch.distributed as dist

    base = resident("VmRSS")
    if uses_torch:
        dist.init_process_group("accdp")
    with Communicator() as comm, Communicator(deterministic=True) as ordered:
        for nbytes in sizes:
            for name, call in calls(comm, ordered, nbytes).items():
                if name not in ops:
                    continue
                forget_peak()
                seconds = []
                for _ in range(3):
                    comm.barrier()
                    began = perf_counter()
                    call()
                    seconds.append(perf_counter() - began)
                extra = np.array([resident("VmHWM") - base - 2 * nbytes, min(seconds)], np.float64)
                most, slowest = comm.allreduce(extra, "max")
                row = {"op": name, "placement": placement, "bytes": nbytes, "extra_bytes": int(most)}
                if comm.rank == 0:
                    print(json.dumps(row | {"seconds": slowest, "ns_per_byte": slowest / nbytes * 1e9}), flush=True)
    if uses_torch:
        dist.destroy_process_group()


def write_growth(rows: list[dict[str, Any]], page: Path) -> None:
    """Replace the table of times per byte in a page."""
    import marked
    from bcast_hosts import machine, versions

    sizes = sorted({row["bytes"] for row in rows})
    heads = [
        "operation",
        "nodes x ranks",
        *(f"{size >> 20} MiB" for size in sizes),
        "most to least",
        "most memory added",
    ]
    cells = []
    for op, placement in dict.fromkeys((row["op"], row["placement"]) for row in rows):
        mine = {row["bytes"]: row for row in rows if (row["op"], row["placement"]) == (op, placement)}
        costs = [mine[size]["ns_per_byte"] for size in sizes]
        added = max(row["extra_bytes"] for row in mine.values()) / 2**20
        figures = [f"{cost:.3f}" for cost in costs]
        cells.append([op, placement, *figures, f"{max(costs) / min(costs):.2f}", f"{added:.0f} MiB"])
    text = (
        "Nanoseconds for a byte of the message (the slowest rank, the best of three calls), and what the library keeps "
        "in memory beside the buffers. 2x1: two nodes as declared, over MPI on one machine. "
        f"{machine()['cores']} cores; accdp at {versions().get('commit', 'unknown')}."
    )
    lines = ["## Long messages", "", "    python bench/memory.py --growth", "", *textwrap.wrap(text, 118), ""]
    marked.write(page, "bench/memory.py", lines + marked.table(heads, cells))


def main() -> None:
    import jobs

    from accdp_comm.bench.options import size_list
    from accdp_comm.readers import some_of

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", help="bytes, comma separated, k, M or G suffix")
    parser.add_argument("--ops", type=some_of(OPS), help="some of " + ", ".join(OPS))
    parser.add_argument("--placements", type=some_of(PLACEMENTS), help="some of " + ", ".join(PLACEMENTS))
    parser.add_argument("--growth", action="store_true", help="whether time per byte stays as it is: writes the page")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md", help="of --growth")
    parser.add_argument("--rank-of", metavar="PLACEMENT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name, value in (GROWTH if args.growth else USUAL).items():
        setattr(args, name, getattr(args, name) or value)
    sizes = size_list(args.sizes)
    if args.rank_of:
        rank_main(sizes, args.ops, args.rank_of)
        return
    rows: list[dict[str, Any]] = []
    for placement in args.placements:
        nodes, ranks = map(int, placement.split("x"))
        words = ["--sizes", args.sizes, "--ops", ",".join(args.ops), "--rank-of", placement]
        command = [*jobs.mpiexec_command(nodes * ranks), sys.executable, os.path.abspath(__file__), *words]
        env = jobs.environment(ACCDP_TOPOLOGY=PLACEMENTS[placement])
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
        if done.returncode:
            sys.exit(f"memory.py: the job {placement} failed:\n{done.stdout}{done.stderr}")
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(f"{'operation':<24}{'placement':>10}{'MiB':>8}{'added MiB':>11}{'ns/byte':>9}")
    for row in rows:
        figures = f"{row['bytes'] >> 20:>8}{row['extra_bytes'] / 2**20:>11.1f}{row['ns_per_byte']:>9.3f}"
        print(f"{row['op']:<24}{row['placement']:>10}{figures}")
    if args.growth:
        write_growth(rows, args.page)
    over = [row for row in rows if row["extra_bytes"] > LIMIT_BYTES]
    if over:
        sys.exit(f"memory.py: {len(over)} of {len(rows)} above {LIMIT_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
