"""Compare accdp with Gloo in one run: latency of dist.broadcast and dist.all_reduce over message sizes.

    accdp run -n 2 bench/against_gloo.py
    torchrun --nproc-per-node 4 bench/against_gloo.py --sizes 4,1k,1M --json results.jsonl

Both backends are groups of one process group's ranks and take turns, sample by sample, so that whatever else the
machine does hits both. A sample is the mean of a burst of calls; its time is the slowest rank's. Printed are the
medians over the samples, the range from the 10th to the 90th percentile, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

DEFAULT_SIZES = "4,64,1k,4k,16k,64k,256k,1M,4M,16M,64M"
BACKENDS = ("accdp", "gloo")


def size_of(text: str) -> int:
    """Read a number of bytes: digits with an optional k or M."""
    units = {"k": 1 << 10, "M": 1 << 20}
    digits = text.rstrip("kM")
    if not digits.isdecimal() or text[len(digits) :] not in ("", *units):
        raise argparse.ArgumentTypeError(f"{text}: expected bytes, k or M suffix")
    return int(digits) * units.get(text[len(digits) :], 1)


def sizes_of(text: str) -> list[int]:
    return [size_of(word) for word in text.split(",")]


def burst(nbytes: int) -> int:
    """Calls per sample: enough that the clock does not matter, few enough that a sample stays short."""
    return max(2, min(200, (4 << 20) // max(nbytes, 1)))


def sample(call: Callable[[], object], calls: int) -> float:
    """Seconds per call on the slowest rank."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    slowest = torch.tensor([(time.perf_counter() - started) / calls], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def calls_of(op: str, tensor: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    if op == "broadcast":
        return lambda: dist.broadcast(tensor, src=0, group=group)
    # The maximum of equal values keeps them what they are, however often it is taken.
    return lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)


def spread(samples: list[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile, in microseconds."""
    cuts = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else [samples[0]] * 9
    return statistics.median(samples) * 1e6, cuts[0] * 1e6, cuts[-1] * 1e6


def measure(op: str, nbytes: int, groups: dict[str, dist.ProcessGroup], samples: int) -> dict[str, object]:
    times: dict[str, list[float]] = {name: [] for name in groups}
    calls = {name: calls_of(op, torch.ones(max(1, nbytes // 4)), group) for name, group in groups.items()}
    for name in groups:  # warm-up: connections, first touch of shared memory
        sample(calls[name], burst(nbytes))
    for _ in range(samples):
        for name in groups:
            times[name].append(sample(calls[name], burst(nbytes)))
    row: dict[str, object] = {"op": op, "bytes": nbytes, "ranks": dist.get_world_size(), "samples": samples}
    for name, values in times.items():
        median, low, high = spread(values)
        row |= {f"{name}_us": round(median, 2), f"{name}_p10_us": round(low, 2), f"{name}_p90_us": round(high, 2)}
    row["ratio"] = round(statistics.median(times["gloo"]) / statistics.median(times["accdp"]), 2)
    return row


def machine() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--sizes", type=sizes_of, default=sizes_of(DEFAULT_SIZES), help="bytes, comma separated, k/M suffix"
    )
    parser.add_argument("--ops", default="broadcast,all_reduce", help="broadcast, all_reduce or both")
    parser.add_argument("--samples", type=int, default=11, help="samples per backend, operation and size")
    parser.add_argument("--json", help="append one JSON object per line to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("accdp")
    try:
        groups = {name: dist.new_group(backend=name) for name in BACKENDS}
        first = dist.get_rank() == 0
        if first:
            print(f"{'op':<11}{'bytes':>10}" + f"{'us':>12}{'p10-p90':>20}" * len(BACKENDS) + f"{'gloo/accdp':>12}")
        for op in args.ops.split(","):
            for nbytes in args.sizes:
                row = measure(op, nbytes, groups, args.samples)
                if not first:
                    continue
                ranges = {name: f"{row[f'{name}_p10_us']}-{row[f'{name}_p90_us']}" for name in BACKENDS}
                print(
                    f"{op:<11}{nbytes:>10}{row['accdp_us']:>12}{ranges['accdp']:>20}"
                    f"{row['gloo_us']:>12}{ranges['gloo']:>20}{row['ratio']:>12}",
                    flush=True,
                )
                if args.json:
                    with open(args.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row | {"machine": machine()}) + "\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
