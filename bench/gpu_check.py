"""Check and measure accdp on this machine's GPU: one JSON file and a short table. bench/gpu_check.sh builds first.

Steps, each with a limit of its own; one that fails is recorded, and the next goes on:
  machine    the GPU, driver, versions
  nvcomp     which of nvCOMP's functions for the device there are, and that its library can be opened beside torch
  ranks      bench/gpu_rank.py with 2, 4 and 8 ranks on GPU 0, without MPS and with it: the operations of Communicator
             and of the torch backend against torch, float8 too, and deterministic reductions against those of host
             memory; then allreduce and bcast beside Gloo; which way the data went tells what the probe of IPC events
             found
  codecs     bench/gpu_codecs.py: the codecs on the GPU against those of the host, speeds and ratios
  nodes      as ranks, with 4 on GPU 0 that are declared to be on 2 nodes of 2: two GPU groups, joined through host
             memory; then its checks under compute-sanitizer
  apart      as ranks, with 2 on GPU 0, each on a declared node of its own, and compressed allreduces between them
  nccl       as ranks, with 2 beside NCCL, from 2.30.3 on, which then takes several ranks per GPU if it is told so
  hosts      a broadcast between two network namespaces, bench/gpu_hosts.py, where the machine allows namespaces
  sanitizer  the checks on 1 rank under compute-sanitizer
Limits of the table: 2kn bytes over the bandwidth of a device-to-device copy, for k ranks of n bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RANK = Path(__file__).with_name("gpu_rank.py")
ACCDP = [sys.executable, "-m", "accdp_comm"]
CODECS = Path(__file__).with_name("gpu_codecs.py")
HOSTS = Path(__file__).with_name("gpu_hosts.py")
RANKS = (2, 4, 8)
NCCL_SHARES_GPUS = (2, 30, 3)
SMI = "driver_version,uuid,compute_mode"
CACHE = Path(__file__).resolve().parents[1] / "build" / "bench"  # of the small model's tensors
MOST_SAID = 8000  # characters of what a command said that are kept
REFUSAL = "--mps on"  # in the line with which `accdp run` says why not


_end = math.inf  # of the time that all steps together have


def run(command: list[str], limit_s: float, **environment: str) -> tuple[bool, str]:
    """Whether a command ended well within its limit, and of the time for all, and the end of what it said."""
    left_s = _end - time.monotonic()
    if left_s < 5:
        return False, "not started: no time left"
    limit_s = min(limit_s, left_s)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
    except OSError as error:  # a program that the machine lacks
        return False, f"{command[0]}: {error.strerror}"
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # ranks under MPS must not be killed with work in flight; mpiexec passes this on
        try:
            said, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        return False, f"not done after {limit_s:.0f} s; {said[-MOST_SAID:]}"
    return process.returncode == 0, said[-MOST_SAID:]


def said_by(*command: str) -> str:
    """What a command says in a line; "unknown" where it fails, as in a copy without history."""
    good, said = run([*command], 30)
    return said.strip() if good else "unknown"


def machine() -> dict:
    """What this machine is, and the bandwidth that the limits are counted with."""
    import torch

    from accdp_comm import _core

    x, y = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    y.copy_(x)
    start.record()
    for _ in range(20):
        y.copy_(x)
    end.record()
    torch.cuda.synchronize()
    facts = torch.cuda.get_device_properties(0)
    return {
        "gpu": facts.name,
        "gpu_bytes": facts.total_memory,
        "multiprocessors": facts.multi_processor_count,
        "copy_bytes_per_s": 20 * 2 * x.numel() / (start.elapsed_time(end) * 1e-3),  # read and written
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "cuda": _core.cuda_report(),
        "nvidia_smi": said_by("nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"),
        "commit": said_by("git", "rev-parse", "HEAD"),
    }


def place(ranks: int, mps: bool) -> list[str]:
    """Options of `accdp run` that put so many ranks on GPU 0."""
    return ["--ranks-per-gpu", str(ranks), "--gpus", "0", "--mps", "on" if mps else "off"]


def ranks_on_one_gpu(
    ranks: int, limit_s: float, mps: bool, peers: str = "gloo", options: tuple[str, ...] = (), **environment: str
) -> dict:
    """Check and measure with that many ranks on GPU 0; with MPS, `accdp run` starts and verifies the daemon.

    Of a run that fails, or is not done in time, the rows that it had are kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rank0.json")
        command = [*ACCDP, "run", *place(ranks, mps), str(RANK), "--out", str(out), "--peers", peers, *options]
        started = time.monotonic()
        # Gloo looks up the machine's name, which need not lead anywhere.
        good, said = run(command, limit_s, **{"GLOO_SOCKET_IFNAME": "lo", **environment})
        result = json.loads(out.read_text()) if out.exists() else {"path": "unknown", "rows": []}
        if not good:
            result["failed"] = said
    return {"mps": mps} | result | {"ranks": ranks, "seconds": round(time.monotonic() - started, 1)}


def with_and_without_mps(keep: Callable[[dict], None]) -> str:
    """Run all numbers of ranks; returns whether MPS works. Where `accdp run` refuses it, no more runs with it."""
    mps = "works"
    for ranks in RANKS:  # few first, both ways: where time runs out, there is something of either
        keep(ranks_on_one_gpu(ranks, 70, mps=False))
        if mps != "works":
            continue
        found = ranks_on_one_gpu(ranks, 70, mps=True)
        refusal = next((line for line in found.get("failed", "").splitlines() if REFUSAL in line), "")
        if refusal:
            mps = f"does not work: {refusal}"
        else:
            keep(found)
    return mps


def beside_nccl(version: str, mps: bool) -> dict:
    """Run 2 ranks on GPU 0 beside NCCL, where it can be told to take several ranks per GPU."""
    if tuple(int(part) for part in version.split(".")) < NCCL_SHARES_GPUS:
        wanted = ".".join(map(str, NCCL_SHARES_GPUS))
        return {"skipped": f"NCCL {version} refuses several ranks per GPU; expected {wanted} or newer"}
    # It may hang where a GPU's processors or memory run out: that is caught by the limit, and said.
    return ranks_on_one_gpu(2, 60, mps, "nccl", NCCL_MULTI_RANK_GPU_ENABLE="1")


def over_nodes(mps: bool) -> dict:
    """Check and measure 2 declared nodes of 2 ranks, all on GPU 0; then check them under compute-sanitizer."""
    found = ranks_on_one_gpu(4, 60, mps, ACCDP_TOPOLOGY="2x2") | {"topology": "2x2"}
    if shutil.which("compute-sanitizer") is None:
        return found | {"sanitizer": {"skipped": "compute-sanitizer was not found"}}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *ACCDP,
            "run",
            *place(4, mps=False),
            "compute-sanitizer",
            "--error-exitcode",
            "9",
            sys.executable,
            str(RANK),
        ]
        sizes = ["--most-elements", "65537", "--most-bytes", "4096"]
        good, said = run([*command, *sizes, "--peers", "", "--out", f"{folder}/x.json"], 120, ACCDP_TOPOLOGY="2x2")
    clean = None if said.startswith("not done") else good
    return found | {"sanitizer": {"clean": clean, "said": said[-800:]}}


def apart(mps: bool) -> dict:
    """Check and measure 2 declared nodes of 1 rank, both on GPU 0: the codecs are used where their bytes travel."""
    return ranks_on_one_gpu(2, 60, mps, "", ("--compressed",), ACCDP_TOPOLOGY="0,1") | {"topology": "0,1"}


def between_hosts() -> dict:
    """Broadcast compressed device memory over limited links of network namespaces."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "hosts.json")
        good, said = run([sys.executable, str(HOSTS), "--out", str(out)], 100)
        return json.loads(out.read_text()) if good else {"failed": said}


def nvcomp_functions() -> dict:
    """Names of the codecs that work on the GPU; in a process of its own, as the machine's facts."""
    program = "import json; from accdp_comm import nvcomp; print(json.dumps(nvcomp.device_codecs()))"
    good, said = run([sys.executable, "-c", program], 60)
    if not good:
        return {"failed": said}
    return dict(zip(("device_codecs", "why_not"), json.loads(said.strip().splitlines()[-1]), strict=True))


def codecs_on_the_gpu() -> dict:
    """Check the codecs on the GPU against the host's, and time them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "codecs.json")
        good, said = run([sys.executable, str(CODECS), "--out", str(out), "--cache", str(CACHE)], 120)
        return json.loads(out.read_text()) if good else {"failed": said}


def sanitizer() -> dict:
    """Run the checks on one rank under compute-sanitizer."""
    if shutil.which("compute-sanitizer") is None:
        return {"skipped": "compute-sanitizer was not found"}
    with tempfile.TemporaryDirectory() as folder:
        command = ["compute-sanitizer", "--error-exitcode", "9", sys.executable, str(RANK)]
        good, said = run([*command, "--peers", "", "--most-bytes", "4096", "--out", f"{folder}/x.json"], 120)
    return {"clean": None if said.startswith("not done") else good, "said": said[-800:]}


def last_line(said: str) -> str:
    """Of what a command said, what most likely tells why it failed."""
    return said.strip().rsplit("\n", 1)[-1]


def table(found: dict) -> str:
    """Lay out the measurements: time, share of the limit, and how many times Gloo."""
    bandwidth = found["machine"]["copy_bytes_per_s"]
    heads = f"{'bytes':>11}{'time us':>11}{'of limit':>9}{'x Gloo':>8}{'x NCCL':>8}"
    lines = [f"{'MPS':<4}{'ranks':>6}  {'operation':<16}{heads}"]
    steps = [found[step] for step in ("nodes", "apart", "nccl") if "rows" in found.get(step, {})]
    for run_ in [*found["runs"], *steps]:
        with_mps = "yes" if run_["mps"] else "no"
        if "failed" in run_:
            lines.append(f"{with_mps:<4}{run_['ranks']:>6}  failed: {last_line(run_['failed'])}")
        times = {(row["what"], row["bytes"]): row["s"] for row in run_["rows"]}
        notes = {(row["what"], row["bytes"]): row for row in run_["rows"] if "ratio" in row}
        for (what, nbytes), taken in times.items():
            if what.endswith(("gloo", "nccl")):
                continue
            share = 2 * run_["ranks"] * nbytes / bandwidth / taken
            # Between nodes it is not the GPU's memory that limits.
            of_limit = "-" if run_.get("topology") else f"{share:.2f}"
            line = f"{with_mps:<4}{run_['ranks']:>6}  {what:<16}{nbytes:>11}{taken * 1e6:>11.1f}{of_limit:>9}"
            for peer in ("gloo", "nccl"):
                peers = times.get((f"{what.removesuffix(' torch')} {peer}", nbytes))
                line += f"{peers / taken:8.1f}" if peers else " " * 8
            if note := notes.get((what, nbytes)):
                line += f"  {note['ratio']:.2f}x on the {note['codec_place']}"
            lines.append(line.rstrip())
        if run_["rows"]:
            lines.append(f"{'':<12}{run_['path']}")
    return "\n".join([*lines, *table_of_hosts(found.get("hosts", {})), *table_of_codecs(found.get("codecs", {}))])


def table_of_hosts(hosts: dict) -> list[str]:
    """Lay out what the broadcasts between hosts took."""
    lines = [f"between hosts: {hosts[word]}" for word in ("skipped", "failed") if word in hosts]
    for row in hosts.get("rows", []):
        codec = row["codec"] + (" of differences" if row["reference"] else "")
        ratio, speed = row["logical_bytes"] / row["wire_bytes"], row["logical_bytes"] / row["s"] / 1e9
        lines.append(f"{row['link_gbit']:>4} Gbit/s  {codec:<22}{ratio:>7.2f}x{speed:>8.2f} GB/s")
    return lines


def table_of_codecs(codecs: dict) -> list[str]:
    """Lay out the codecs' speeds beside that of a copy, and the links on which they gain."""
    lines = [f"codecs on the GPU: failed: {codecs['failed']}"] if "failed" in codecs else []
    if codecs.get("rows"):
        heads = f"{'ratio':>8}{'encode GB/s':>13}{'decode GB/s':>13}{'copy GB/s':>11}{'wins below Gbit/s':>19}"
        lines.append(f"{'codec':<9}{'datatype':<10}{'data':<11}{heads}")
    for row in codecs.get("rows", []):
        encode, decode, copy = (row.get(f"{word}_bytes_per_s", 0) / 1e9 for word in ("encode", "decode", "copy"))
        figures = (
            f"{row['ratio']:>8.2f}{encode:>13.1f}{decode:>13.1f}{copy:>11.1f}{row.get('wins_below_gbit', 0):>19.0f}"
        )
        lines.append(f"{row['codec']:<9}{row['dtype']:<10}{row['data']:<11}{figures}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=480, help="for all steps; those left are not started")
    options = parser.parse_args()
    global _end
    _end = time.monotonic() + options.seconds
    from accdp_comm import _core

    report = _core.cuda_report()
    if report["why_not"]:
        print(f"gpu_check: nothing to check here: {report['why_not']}", file=sys.stderr)
        return 1
    # In a process of its own: one that holds a context outside MPS would share the GPU with the ranks all the time.
    good, said = run([sys.executable, "-c", "import json, gpu_check; print(json.dumps(gpu_check.machine()))"], 120)
    if not good:
        print(f"gpu_check: {said}", file=sys.stderr)
        return 1
    found: dict = {"machine": json.loads(said.strip().splitlines()[-1])}
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        """After every step and run, so that what is ended from outside leaves what was found until then."""
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    def step(name: str, call: Callable[[], object]) -> None:
        try:
            found[name] = call()
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        keep()

    def keep_run(run_: dict) -> None:
        found["runs"].append(run_)
        keep()

    step("nvcomp", nvcomp_functions)
    found["runs"] = []
    found["mps"] = with_and_without_mps(keep_run)
    step("codecs", codecs_on_the_gpu)
    works = found["mps"] == "works"
    step("nodes", lambda: over_nodes(works))
    step("apart", lambda: apart(works))
    step("nccl", lambda: beside_nccl(found["machine"]["nccl"], works))
    step("hosts", between_hosts)
    step("sanitizer", sanitizer)
    print(table(found))
    print(summary(found, options.out))
    return 1 if has_failed(found) else 0


def summary(found: dict, out: Path) -> str:
    """Say what is not in the table."""
    lines = []
    for word in ("nccl", "nvcomp"):
        part = found[word]
        told = part.get("skipped") or part.get("device_codecs") or part.get("failed") or part.get("why_not")
        lines.append(f"{word}: {told or 'in the table'}")
    sanitized = f"compute-sanitizer {found['sanitizer']}, over nodes {found['nodes'].get('sanitizer')}"
    return "\n".join([*lines, f"{found['machine']['gpu']}, MPS {found['mps']}, {sanitized}; {out}"])


def has_failed(found: dict) -> bool:
    """NCCL is a peer: what it does not bear is told, and fails nobody."""
    steps = [found[step] for step in ("nodes", "apart", "nvcomp", "hosts", "codecs", "sanitizer")]
    failed = any("failed" in part for part in [*found["runs"], *steps])
    return failed or any(
        part.get("clean") is False for part in (found["sanitizer"], found["nodes"].get("sanitizer", {}))
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    sys.exit(main())
