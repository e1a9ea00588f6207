"""Measure broadcast between hosts, compressed and not, against MPI_Bcast and Gloo; all in one run.

    python bench/bcast_hosts.py            as root: hosts are network namespaces of this machine, links are limited
    python bench/bcast_hosts.py --quick    a look, in about a minute
    python bench/bcast_hosts.py --resume   what an interrupted run has not measured yet
    python bench/bcast_hosts.py --report   the table and the plot of the lines that are there

Parts (--only): ``figures``, 64 MiB of real tensors on 4 hosts x 1 rank and 2 x 2, all methods; ``reference``, weights
as differences to the step before; ``curve``, latency over size; ``grid``, whether auto finds the best choice, on 2
hosts and on shared memory; ``training``, parameters broadcast at every step, on 2 hosts. The methods of a line take
turns, sample by sample. Where chance may have put auto on the wrong side of 5 % over the best fixed choice, the methods
that are near it go on, up to nine times as long. The speed of a link is that of a plain TCP stream before and after
each job.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "hosts"))

import bcast_plan
import bcast_report
import hosts_page
import jobs
import real_tensors
import testbed
from bcast_plan import Job
from rich.console import Console

from accdp_comm import readers
from accdp_comm.bench.record import replace_json

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DEFAULT_SIZES = "4k,64k,1M,16M,64M,256M"
LINK_SAMPLES = 3  # before each job, and after
LINK_SECONDS = 0.5
PORT = "29600"
# MPI must not find a way between hosts that only hosts on one machine have; on a host it uses its own shared memory.
MPI_OVER_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
GLOO_OVER_LINK = {"GLOO_SOCKET_IFNAME": "eth0"}


def size_of(text: str) -> int:
    """Read a number of bytes that is a multiple of 8."""
    if (nbytes := readers.bytes_of(text)) % 8 or not nbytes:
        raise argparse.ArgumentTypeError(f"expected a multiple of 8 bytes, got {text!r}")
    return nbytes


def links_of(text: str) -> list[int]:
    return [int(word) for word in readers.some_of(list(map(str, bcast_plan.LINKS)))(text)]


def need_hosts(prog: str) -> None:
    """End this process with one line where there can be no hosts."""
    if reason := testbed.why_not():
        sys.exit(f"{prog}: {reason}")
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        sys.exit(f"{prog}: MPICH's mpiexec is needed, since Open MPI's cannot be told how to reach the hosts")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--only", type=readers.some_of(bcast_plan.PARTS), default=list(bcast_plan.PARTS), help="parts, comma separated")
    add("--quick", action="store_true", help="few samples, small model, 16 MiB, 4 x 1 hosts, 1 Gbit/s")
    add("--sizes", type=lambda text: [size_of(x) for x in text.split(",")], help=DEFAULT_SIZES)
    add("--links", type=links_of, help="Mbit/s, 1000 and 10000 or one of them")
    add("--cache", type=Path, default=ROOT / "build" / "bench", help="folder for the real tensors")
    add("--out", type=Path, help="JSON lines; those of other parts and links stay there")
    add("--png", type=Path, help="the plot")
    add("--page", type=Path, help="whose part about broadcasts is written anew (docs/performance.md)")
    add("--resume", action="store_true", help="measure only what --out does not have yet")
    add("--report", action="store_true", help="measure nothing, show what --out has")
    args = parser.parse_args()
    args.sizes = args.sizes or [size_of(x) for x in DEFAULT_SIZES.split(",")]
    args.links = args.links or list(bcast_plan.LINKS)[: 1 if args.quick else None]
    args.out = args.out or (args.cache / "quick.jsonl" if args.quick else HERE / "results" / "bcast_hosts.jsonl")
    args.png = args.png or (args.cache / "quick.png" if args.quick else ROOT / "docs" / "bcast_hosts.png")
    args.page = args.page or (args.cache / "quick.md" if args.quick else ROOT / "docs" / "performance.md")
    return args


def machine() -> dict[str, Any]:
    """What the lines need to be understood."""
    info = Path("/proc/cpuinfo").read_text()
    processor = next((line.partition(": ")[2] for line in info.splitlines() if line.startswith("model name")), "")
    return {"cores": len(os.sched_getaffinity(0)), "processor": processor, "kernel": platform.release()}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "mpi4py", "mpich", "nvidia-libnvcomp-cu13", "accdp_comm", "accdp"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return found | ({"commit": commit.stdout.strip()} if commit.returncode == 0 else {})


def measure_link(hosts: testbed.Hosts) -> list[float]:
    """Bytes per second of plain TCP from the first host to the second; empty where there is no link."""
    if len(hosts) < 2 or hosts.rate_mbit is None:
        return []
    script, count = str(testbed.HERE / "transfer.py"), int(hosts.rate_mbit * 1e6 / 8 * LINK_SECONDS)
    found = []
    for _ in range(LINK_SAMPLES):
        receiver = hosts.popen(1, [sys.executable, script, "receive", PORT], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        receiver.stdout.readline()  # it listens
        hosts.popen(0, [sys.executable, script, "send", hosts.addresses[1], PORT, str(count)]).wait()
        found.append(float(receiver.communicate()[0].split()[0]))
    return found


def run_job(placement: str, link_mbit: int | None, argv: list[str], out: Path, cache: Path) -> list[dict[str, Any]]:
    """Run one MPI job whose rank 0 appends lines to ``out``; return them, with where they were measured."""
    count, ranks = bcast_plan.PLACEMENTS[placement]
    out.unlink(missing_ok=True)
    env = GLOO_OVER_LINK | {"ACCDP_CACHE_DIR": str(cache)} | (MPI_OVER_TCP if count > 1 else {})
    with testbed.Hosts(count, link_mbit) as hosts:
        speeds = measure_link(hosts)
        result = hosts.mpiexec(ranks, [sys.executable, *argv, str(out)], env, timeout=1800.0)
        if result.returncode:
            said = "\n".join(str(result).splitlines()[-40:])
            sys.exit(f"bcast_hosts.py: the job {placement} at {link_mbit} Mbit/s failed:\n{said}")
        speeds += measure_link(hosts)
    where = {
        "placement": placement,
        "hosts": count,
        "ranks_per_host": ranks,
        "link_mbit": link_mbit,
        "link_bytes_per_s": round(statistics.median(speeds)) if speeds else None,
    }
    return [where | json.loads(line) for line in out.read_text().splitlines()]


def measure(args: argparse.Namespace, console: Console, have: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Run all jobs but for the points of which there are lines; yields the lines of each job when it is done."""
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:6.0f} s  {text}")

    say("real tensors")
    folder = real_tensors.make(args.cache, real_tensors.QUICK if args.quick else real_tensors.FULL)
    for speeds in args.cache.glob("codec_speeds.*"):  # auto shall measure them in this run
        speeds.unlink()
    skipped: set[str] = set()
    planned = left_of(bcast_plan.plan(args, skipped), have)
    for reason in sorted(skipped):
        say(f"left out: {reason}")
    common = {"machine": machine(), "versions": versions(), "command": shlex.join(["python", *sys.argv])}
    with tempfile.TemporaryDirectory() as temporary:
        points, out = Path(temporary, "points.json"), Path(temporary, "out.jsonl")
        for job in planned:
            say(describe(job))
            points.write_text(json.dumps([point.to_json() for point in job.points]))
            argv = [str(HERE / "bcast_rank.py"), str(points), str(folder)]
            rows = run_job(job.placement, job.link_mbit, argv, out, args.cache)
            for row in rows:
                row["data_is"] = real_tensors.describe(folder, row["data"], row["dtype"])
            yield [row | common for row in rows]
        if "training" in args.only and not any(row["part"] == "training" for row in have):
            say("training: 2x1 (hosts x ranks), 1000 Mbit/s")
            argv = [str(HERE / "bcast_train.py"), str(folder), "3" if args.quick else "12"]
            rows = run_job("2x1", 1000, argv, out, args.cache)
            weights = real_tensors.describe(folder, "weights", "float32")
            yield [row | common | {"data_is": f"all parameters as they are trained on from {weights}"} for row in rows]
    say("done")


def key_of(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What a line was measured for."""
    return tuple(fields[name] for name in ("part", "placement", "link_mbit", "data", "dtype", "bytes"))


def left_of(jobs_: list[Job], rows: list[dict[str, Any]]) -> list[Job]:
    """The jobs without the points of which there are lines."""
    done = {key_of(row) for row in rows}
    left = []
    for job in jobs_:
        where = {"placement": job.placement, "link_mbit": job.link_mbit}
        points = [p for p in job.points if key_of({**where, **p.to_json(), "bytes": p.nbytes}) not in done]
        left.append(Job(job.placement, job.link_mbit, tuple(points)))
    return [job for job in left if job.points]


def describe(job: Job) -> str:
    parts = ", ".join(dict.fromkeys(point.part for point in job.points))
    link = f"{job.link_mbit} Mbit/s" if job.link_mbit else "shared memory"
    return f"{parts}: {job.placement} (hosts x ranks), {link}, {len(job.points)} points"


def main() -> None:
    args = arguments()
    console = Console(highlight=False, width=max(Console().width, 150))
    kept = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    if args.report:
        rows = kept
    else:
        need_hosts("bcast_hosts.py")
        args.cache = args.cache.resolve()
        args.cache.mkdir(parents=True, exist_ok=True)
        again = {*args.links, None}
        wanted = [row for row in kept if row["part"] in args.only and row["link_mbit"] in again]
        rows = kept if args.resume else [row for row in kept if row not in wanted]
        # Written job by job: what is measured stays if a later job fails.
        for found in measure(args, console, wanted if args.resume else []):
            rows += found
            replace_json(args.out, rows)
        console.print(f"{len(rows)} lines in {args.out}")
    bcast_report.print_table(rows, console)
    console.print(bcast_report.draw(rows, args.png) or f"plot in {args.png}")
    hosts_page.write_bcast(rows, args.page)
    console.print(f"tables in {args.page}")


if __name__ == "__main__":
    main()
