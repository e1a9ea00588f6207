"""Checks of libraries. Each loads what it asks about in a process of its own: a wrong one may end that process."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from .. import _core, info, own_programs
from ..launch import programs
from .findings import FAIL, OK, WARN, Finding

_SECONDS = 120.0

_ASK_TORCH = """
import json, torch
from accdp_comm import _torch
print(json.dumps({"here": torch.__version__, "built": _torch.torch_version, "cuda": torch.version.cuda,
                  "distributed": torch.distributed.is_available()}))
"""
_ASK_MPI4PY = """
import json, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(json.dumps({"library": MPI.Get_library_version(), "mpi4py": mpi4py.__version__}))
"""
# All that may bring an MPI into a rank, in the order in which a script would.
_ASK_LIBMPI = """
import contextlib, json, os, re
for name in ("torch", "accdp_comm._mpi", "mpi4py.MPI"):
    with contextlib.suppress(ImportError):
        if name == "mpi4py.MPI":
            import mpi4py
            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        __import__(name)
with open("/proc/self/maps") as file:
    mapped = [line.split(maxsplit=5)[-1].strip() for line in file if re.search(r"/libmpi(ch|_abi)?\\.so", line)]
paths = set(map(os.path.realpath, mapped))
print(json.dumps(sorted(paths)))
"""
_ASK_CUDA_AWARE = """
import ctypes, json
from accdp_comm import _mpi
with open("/proc/self/maps") as file:
    paths = sorted({line.split(maxsplit=5)[-1].strip() for line in file if "/libmpi" in line})
answer = None
for path in paths:
    library = ctypes.CDLL(path)
    for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"):
        if hasattr(library, name) and answer is None:
            if name == "MPIX_Query_cuda_support":
                answer = bool(getattr(library, name)())
            else:
                flag = ctypes.c_int()
                answer = bool(library.MPIX_GPU_query_support(0, ctypes.byref(flag)) == 0 and flag.value)
print(json.dumps(answer))
"""

_ASK_CODECS = """
import json
from accdp_comm import UsageError, bcast, nvcomp
rows, wrong = [], ""
try:
    rows = nvcomp.codecs()
    nvcomp.check_works(bcast.codec_by_setting())
except UsageError as error:
    wrong = str(error).replace("codec=", "ACCDP_CODEC=", 1)
print(json.dumps({"rows": rows, "wrong": wrong}))
"""


class CannotAsk(Exception):
    """The process that should answer ended without an answer; the text is its last words."""


def ask(program: str) -> Any:
    """Run a short Python program that prints one line of JSON; return what it said.

    Raises:
        CannotAsk: It ended otherwise.
    """
    try:
        done = subprocess.run(
            own_programs.python(program), capture_output=True, text=True, timeout=_SECONDS, env=info.without_launcher()
        )
    except subprocess.TimeoutExpired as error:
        raise CannotAsk(f"no answer within {_SECONDS:g} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotAsk(said[-1] if said else f"ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def torch() -> Finding:
    try:
        return judge_torch(ask(_ASK_TORCH))
    except CannotAsk as error:
        together = str(error)
    try:
        ask("import torch; print(0)")
    except CannotAsk as error:
        return Finding(FAIL, f"torch does not load: {error}", "what `import torch` says is to be mended first")
    advice = "accdp is built for one minor release of torch: pip install it again in this environment"
    return Finding(FAIL, f"torch and accdp's backend do not load together: {together}", advice)


def judge_torch(found: dict[str, Any]) -> Finding:
    here, built = (".".join(found[name].split(".")[:2]) for name in ("here", "built"))
    if here != built:
        advice = f"install torch {built}.*, or accdp again in this environment"
        return Finding(FAIL, f"torch {found['here']}, but accdp was built for {found['built']}", advice)
    if not found["distributed"]:
        return Finding(FAIL, f"torch {found['here']} has no torch.distributed", "install another build of torch")
    return Finding(OK, f"torch {found['here']}, {'CUDA ' + found['cuda'] if found['cuda'] else 'without CUDA'}")


def mpi() -> Finding:
    return judge_mpi(info.mpi())


def judge_mpi(found: dict[str, Any]) -> Finding:
    """Judge what the MPI says of itself."""
    if "could not be" in found["library"]:
        advice = "accdp was built with an MPI that is not here any more: install it again"
        return Finding(FAIL, found["library"], advice)
    if "could not be" in found["thread_level"]:
        advice = "it is there, but does not start: see the rows /dev/shm and environment, and its own variables"
        return Finding(FAIL, f"MPI {found['thread_level']}", advice)
    library = found["library"].split(",")[0].split(" MPICH Release")[0]
    if found["thread_level"] != "multiple":
        advice = "collectives between nodes may hang: use an MPI with MPI_THREAD_MULTIPLE"
        return Finding(WARN, f"{library}, thread level {found['thread_level']}", advice)
    return Finding(OK, f"{library} ({found['abi']})")


def _family() -> str:
    """Return the flavour of accdp's MPI; empty where it does not load, of which the row mpi says why."""
    from .. import mpi_world

    try:
        return mpi_world.load().abi()
    except _core.UsageError:
        return ""


_WITHOUT_MPI = Finding(FAIL, "accdp's MPI does not load", "see the row mpi")


def mpiexec() -> Finding:
    if not (family := _family()):
        return _WITHOUT_MPI
    try:
        return Finding(OK, f"{programs.find_mpiexec(family)} ({family})")
    except _core.UsageError as error:
        return Finding(FAIL, str(error), "other launchers' ranks would each be a world of one")


def mpi4py() -> Finding:
    try:
        found = ask(_ASK_MPI4PY)
    except CannotAsk as error:
        if "No module named 'mpi4py'" in str(error):
            return Finding(OK, "not installed; accdp does not need it")
        return Finding(FAIL, f"it does not load: {error}", "reinstall mpi4py, or set MPI4PY_LIBMPI to accdp's libmpi")
    family = _family()
    return judge_mpi4py(found["library"], found["mpi4py"], family) if family else _WITHOUT_MPI


def judge_mpi4py(library: str, version: str, family: str) -> Finding:
    """Judge mpi4py by what its MPI says of itself against the family that accdp was built with."""
    theirs = "openmpi" if "Open MPI" in library else "mpich"
    said = f"mpi4py {version} uses {library.split(',')[0].strip().splitlines()[0]}"
    if theirs == family:
        return Finding(OK, said)
    return Finding(
        FAIL,
        f"{said}, but accdp was built with {family}",
        "two MPIs in one process crash: set MPI4PY_LIBMPI to accdp's libmpi, or build accdp with mpi4py's MPI",
    )


def libmpi() -> Finding:
    try:
        return judge_libmpi(ask(_ASK_LIBMPI))
    except CannotAsk as error:
        return Finding(FAIL, f"torch, accdp and mpi4py do not load together: {error}", "see the rows above")


def judge_libmpi(paths: list[str]) -> Finding:
    if len(paths) > 1:
        advice = "each would be a world of its own; set MPI4PY_LIBMPI to accdp's, and check LD_LIBRARY_PATH"
        return Finding(FAIL, f"{len(paths)} in one process: {', '.join(paths)}", advice)
    return Finding(OK, f"one: {paths[0]}" if paths else "none is loaded")


def cuda_aware(has_gpus: bool) -> Finding:
    if not has_gpus:
        return Finding(OK, "no GPUs, so it does not matter")
    try:
        answer = ask(_ASK_CUDA_AWARE)
    except CannotAsk as error:
        return Finding(WARN, f"could not be asked: {error}", "see the row mpi")
    if answer:
        return Finding(OK, "MPI takes device memory")
    return Finding(
        WARN,
        "MPI does not take device memory",
        "between nodes data goes through host memory; an MPI built with CUDA (UCX with cuda) avoids that",
    )


def codecs() -> Finding:
    try:
        found = ask(_ASK_CODECS)
    except CannotAsk as error:
        return Finding(FAIL, f"they could not be listed: {error}", "reinstall nvidia-libnvcomp-cu13, or remove it")
    return judge_codecs(found["rows"], found["wrong"])


def judge_codecs(rows: list[dict[str, Any]], wrong: str) -> Finding:
    """Judge the codecs that there are, and what is wrong with the settings that name some."""
    if wrong:
        return Finding(FAIL, wrong, "correct or unset it")
    missing = {row["name"]: row["why_not"] for row in rows if row["why_not"]}
    if not missing:
        return Finding(OK, f"{len(rows)}, which all work")
    there = ", ".join(row["name"] for row in rows if row["name"] not in missing)
    return Finding(WARN, f"{there} work, {', '.join(missing)} do not", "; ".join(dict.fromkeys(missing.values())))
