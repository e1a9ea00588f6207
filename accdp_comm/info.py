"""What `accdp info` shows: versions, the MPI found, CUDA and nvCOMP, topology, every setting."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from . import _core, nvcomp, own_programs, settings
from ._version import __version__
from .bcast import codec_by_setting
from .cards import declared_nodes
from .launcher import is_launcher_variable

# MPI is initialised in a process of its own: one that cannot start ends the process it is in.
_ASK_MPI = """
import json
from accdp_comm import _mpi
known = {"library": " ".join(_mpi.library().split()), "abi": _mpi.abi()}
print(json.dumps(known), flush=True)
_mpi.init()
known |= {"thread_level": _mpi.thread_level(), "cuda_aware": "yes" if _mpi.is_cuda_aware() else "no"}
print(json.dumps(known), flush=True)
_mpi.finalize()
"""
_ASK_MPI_SECONDS = 20


def collect() -> dict[str, Any]:
    """Return all of it but the topology, as plain data.

    Raises:
        UsageError: A setting has a wrong value.
    """
    # Of these the table takes any text; else they are looked at only by what uses them.
    declared_nodes(settings.value_of("topology"))
    codec_by_setting()
    return {
        "accdp": __version__,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "numpy", "mpi4py")},
        "reductions": _core.reduce_isa(),
        "mpi": mpi(),
        "cuda": _cuda(),
        "nvcomp": _nvcomp(),
        "codecs": nvcomp.codecs(),
        "bcast_algorithms": [{"name": name, "meaning": meaning} for name, meaning in _core.bcast_algorithms()],
        "allreduce_algorithms": [{"name": name, "meaning": meaning} for name, meaning in _core.reduce_algorithms()],
        "settings": [asdict(row) for row in settings.table()],
    }


def topology() -> dict[str, Any]:
    """Return ranks and nodes of this job. Collective over the job; a world of one where nothing started several."""
    from .communicator import Communicator

    with Communicator() as comm:
        nodes = list(comm.nodes)
        return {
            "rank": comm.rank,
            "ranks": comm.size,
            "nodes": len(set(nodes)),
            "node_of_rank": nodes,
            "why_no_single_copy": comm.why_no_single_copy,
        }


def as_text(found: dict[str, Any]) -> str:
    """Lay out what collect() and topology() found for reading."""
    versions = [(name, version or "not installed") for name, version in found["versions"].items()]
    place = found["topology"]
    facts = [
        ("accdp", found["accdp"]),
        ("python", found["python"]),
        *versions,
        ("reductions", found["reductions"]),
        *((name.replace("mpi_", "MPI "), text) for name, text in _flat("mpi", found["mpi"])),
        ("CUDA", _present(found["cuda"])),
        ("nvCOMP", _present(found["nvcomp"])),
        ("topology", f"{place['ranks']} ranks on {place['nodes']} nodes, node of rank: {place['node_of_rank']}"),
        ("single copy", f"no: {place['why_no_single_copy']}" if place["why_no_single_copy"] else "yes"),
    ]
    lines = [f"{name:<18}{text}" for name, text in facts]
    codecs = [
        (row["name"], row["home"], _format(row), row["exactness"], row["why_not"] or row["datatypes"])
        for row in found["codecs"]
    ]
    lines += ["", *_table([("codec", "from", "format", "exactness", "datatypes"), *codecs])]
    for op in ("bcast", "allreduce"):
        lines += ["", *_table([(op, row["name"], row["meaning"]) for row in found[f"{op}_algorithms"]])]
    values = [
        (row["env"], row["value"] or "(empty)", row["default"] or "(empty)", row["source"], row["accepts"])
        for row in found["settings"]
    ]
    lines += ["", *_table([("setting", "value", "default", "set by", "accepts"), *values])]
    return "\n".join(lines)


def _format(row: dict[str, Any]) -> str:
    """What streams say of their format: its version, and the major version of the library whose format it is."""
    return f"{row['format']}.{row['library_major']}" if row["library_major"] else f"{row['format']}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, each column as wide as its longest text; the last one is not filled up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, [*widths[:-1], 0])) for row in rows]


def as_json(found: dict[str, Any]) -> str:
    """Return the same as JSON."""
    return json.dumps(found, indent=2)


def as_markdown() -> str:
    """Return docs/environment.md, which is this text: the settings without what this machine sets."""
    lines = [
        "# Settings",
        "",
        "Environment variables, read once at first use; a wrong value is an error that names it. Where *same* says",
        "yes, all ranks of a group must have the same value, and forming the group fails with the odd rank's name",
        "if not. A group keeps these values: what `accdp_comm.settings.override()` changes later, on whatever rank, is",
        "for groups formed afterwards. `ACCDP_TIMEOUT_S` and `ACCDP_LIVENESS_S` are looked at by every call and wait.",
        "`accdp info` shows the values in force, `accdp doctor` names variables that look like settings and are none,",
        "which a run does not notice. This page is written by `accdp info --markdown`.",
        "",
        "| variable | default | accepts | same | meaning |",
        "|---|---|---|---|---|",
    ]
    for row in settings.table():
        default = f"`{row.default}`" if row.default else "empty"
        same = "yes" if row.shared else "no"
        lines.append(f"| `{row.env}` | {default} | {row.accepts} | {same} | {row.meaning} |")
    return "\n".join(lines)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _flat(prefix: str, facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"{prefix}_{name}", str(value)) for name, value in facts.items()]


def _present(found: dict[str, Any]) -> str:
    return str(found.get("found") or f"no: {found['missing']}")


def mpi() -> dict[str, Any]:
    """Return what the MPI says about itself: library, abi, thread_level, cuda_aware; a text where it cannot."""
    try:
        done = subprocess.run(
            own_programs.python(_ASK_MPI),
            capture_output=True,
            text=True,
            timeout=_ASK_MPI_SECONDS,
            env=_alone(),
        )
        answers, trouble = done.stdout, done.stderr.strip() or f"it ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        answers = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        trouble = f"MPI_Init did not finish within {_ASK_MPI_SECONDS} s"
    lines = [line for line in answers.splitlines() if line.startswith("{")]
    last = trouble.splitlines()[-1]
    if not lines:
        return {"library": f"could not be loaded: {last}"}
    known: dict[str, Any] = json.loads(lines[-1])
    known.setdefault("thread_level", f"could not be initialised: {last}")
    return known


def _alone() -> dict[str, str]:
    """Return the environment of an MPI process that nothing launched and that talks to nobody.

    Without shared memory, of which Open MPI leaves 16 MiB in /dev/shm where no launcher of its own cleans up.
    """
    return {"OMPI_MCA_btl": "self"} | without_launcher()


def without_launcher() -> dict[str, str]:
    """Return the environment without a launcher's variables: the question is asked by a process it did not start."""
    return {name: value for name, value in os.environ.items() if not is_launcher_variable(name)}


def _cuda() -> dict[str, Any]:
    report = _core.cuda_report()
    if report["why_not"]:
        built = f"; built with CUDA {_dotted(report['runtime_version'])}" if report["built"] else ""
        return report | {"missing": report["why_not"] + built}
    built, driver = _dotted(report["runtime_version"]), _dotted(report["driver_version"])
    nvcomp.find()
    gpus = f"{report['devices']} GPUs, built with CUDA {built}, driver for CUDA {driver}"
    try:
        codecs = _core.device_codecs()
    except _core.CudaError as error:  # such as no memory left on it
        return report | {"found": f"{gpus}; what broadcasts encode there is not known: {error}"}
    return report | {"found": f"{gpus}; broadcasts of device memory encode {', '.join(codecs)} there", "codecs": codecs}


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _nvcomp() -> dict[str, Any]:
    names = [f"nvidia-libnvcomp-cu{major}" for major in (13, 12)]
    for name in names:
        if version := _version(name):
            have, why_not = nvcomp.device_codecs()
            on_device = (
                f"on a GPU {', '.join(have)}, of which ANS, LZ4 and Bitcomp are used"
                if have
                else f"nothing for a GPU: {why_not}"
            )
            return {"found": f"{name} {version}; {on_device}", "device_codecs": have}
    return {"missing": f"none of {', '.join(names)} is installed"}
