"""Broadcast tensors on GPU 0 between two hosts, compressed and not; a step of bench/gpu_check.py.

    python bench/gpu_hosts.py --out FILE.json      as root: the hosts are network namespaces, their links limited

One rank per host, both on GPU 0. The data are bfloat16 numbers as weights have them (normal, sigma 0.02), whole and as
the difference to a version in which 1 in 50 differs. `--device cpu` runs the same on host memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "hosts")]

LINKS_GBIT = (10, 25)
COUNT = 64 << 20  # bfloat16: 128 MiB
ROUNDS = 5


def seconds_of(call, device: str) -> float:
    """Seconds that the slowest rank needs from a common start, the device's work included."""
    import torch
    import torch.distributed as dist

    if device != "cpu":
        torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def rank(device: str, count: int) -> None:
    """What each rank does: rank 0 prints one line of JSON."""
    import torch
    import torch.distributed as dist

    from accdp_comm import bcast_compressed, nvcomp

    dist.init_process_group("accdp")
    generator = torch.Generator().manual_seed(0)
    old = (torch.randn(count, generator=generator) * 0.02).to(torch.bfloat16)
    changed = torch.rand(count, generator=generator) < 0.02
    new = torch.where(changed, old * 1.01, old).to(device)
    old = old.to(device)
    is_root = dist.get_rank() == 0
    rows = []
    ways = [("none", False), ("fpk", False), ("ans", False), ("auto", False), ("auto", True)]
    if "ans" in nvcomp.missing_codecs():
        ways.remove(("ans", False))
    times: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 1):
        for codec, has_reference in ways:
            x = new.clone() if is_root else old.clone()
            reference = old if has_reference else None
            results = []

            def call(x=x, codec=codec, reference=reference, results=results):
                results.append(bcast_compressed(x, codec=codec, reference=reference))

            took = seconds_of(call, device)
            assert torch.equal(x, new), f"{codec}: wrong data"
            if turn:
                times[codec, has_reference].append(took)
            if turn == ROUNDS:
                found = {"codec": codec, "used": results[0].codec, "reference": has_reference}
                found |= {"logical_bytes": results[0].logical_bytes}
                found |= {"wire_bytes": results[0].wire_bytes, "s": statistics.median(times[codec, has_reference])}
                rows.append(found)
    if is_root:
        print(json.dumps({"rows": rows}), flush=True)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=COUNT, help="elements")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options.device, options.count)
        return 0
    import testbed

    if reason := testbed.why_not():
        options.out.write_text(json.dumps({"skipped": reason}))
        return 0
    child = [sys.executable, __file__, "--rank", "--device", options.device, "--count", str(options.count)]
    found: dict = {"rows": []}
    for gbit in LINKS_GBIT:
        try:
            with testbed.Hosts(2, rate_mbit=1000 * gbit) as hosts:
                result = hosts.mpiexec(1, child, timeout=45)
            assert not result.returncode and result.reports, str(result)
            found["rows"] += [{"link_gbit": gbit} | row for row in result.reports[0]["rows"]]
        except (AssertionError, RuntimeError, OSError) as error:  # of the ranks, or of making the hosts
            found.setdefault("failed", {})[f"{gbit} Gbit/s"] = str(error)[-2000:]
        options.out.write_text(json.dumps(found))  # after each link, for a run that is ended before it is done
    return 0


if __name__ == "__main__":
    sys.exit(main())
