"""The GPUs of this node: listed by NVML (package nvidia-ml-py) or by nvidia-smi, and chosen by the user."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _core

_SMI_SECONDS = 30.0
_FIELDS = ("index", "uuid", "name", "memory.total", "compute_cap", "mig.mode.current", "pci.bus_id")
_FORM = ["--format=csv,noheader,nounits"]
LIST_QUERY = [f"--query-gpu={','.join(_FIELDS)}"]
_NOT_RUN = {127: "nvidia-smi is not installed", 128 + signal.SIGKILL: "nvidia-smi did not answer"}
LIST_COMMAND = ["nvidia-smi", *LIST_QUERY, *_FORM]


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: float  # 7.0 is Volta; 0 where it is unknown
    is_mig: bool
    bus_id: str  # as in /sys/bus/pci/devices

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def near_cpus(self) -> frozenset[int]:
        """Return the CPUs of its NUMA node; empty where the kernel does not tell."""
        path = Path("/sys/bus/pci/devices", self.bus_id, "local_cpulist")
        return frozenset(parse_cpus(path.read_text())) if path.is_file() else frozenset()


@dataclass(frozen=True)
class Listing:
    """What was found, and why not more."""

    gpus: list[Gpu]
    source: str  # "NVML", "nvidia-smi" or ""
    why_none: str  # empty where there are GPUs
    why_unsure: str = ""  # whether they are the ones that are meant
    is_hidden: bool = False  # there are some, but the user hides them all


def parse_cpus(text: str) -> list[int]:
    """Read a CPU list of the kernel: ``0-3,8,10-11``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def list_gpus(environment: Mapping[str, str] | None = None) -> Listing:
    """Return the GPUs that this process may use: those of the node, less what CUDA_VISIBLE_DEVICES hides."""
    environment = os.environ if environment is None else environment
    if (nvml := nvml_module()) is not None:
        found, why = _ask_nvml(nvml)
        source = "NVML"
    elif shutil.which("nvidia-smi"):
        found, why = _ask_smi()
        source = "nvidia-smi"
    else:
        return Listing([], "", "neither the package nvidia-ml-py nor nvidia-smi is installed")
    visible, why_unsure, is_hidden = environment.get("CUDA_VISIBLE_DEVICES"), "", False
    if found and visible is not None:
        words = [word for word in visible.split(",") if word]
        why_unsure = _trouble_with_order(found, words, environment)
        found = _named(found, words, strict=False)
        is_hidden = not found
        why = f"CUDA_VISIBLE_DEVICES={visible} hides them all" if is_hidden else ""
        if is_hidden and visible.strip().startswith("MIG-"):
            why = (
                f"CUDA_VISIBLE_DEVICES={visible} names a part of a GPU that MIG divides, which is not ours to share out"
            )
    return Listing(found, source, "" if found else why or f"{source} lists none", why_unsure, is_hidden)


def _trouble_with_order(found: Sequence[Gpu], words: Sequence[str], environment: Mapping[str, str]) -> str:
    """We number GPUs as the driver does; CUDA numbers the fastest first, unless it is told to do as we do."""
    is_same = len({gpu.name for gpu in found}) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if is_same or not any(word.strip().isdecimal() for word in words):
        return ""
    there = ", ".join(f"{gpu.index} {gpu.name} ({gpu.uuid})" for gpu in found)
    return (
        f"CUDA_VISIBLE_DEVICES={','.join(words)}: where GPUs differ, CUDA's numbers are not the driver's: set "
        f"CUDA_DEVICE_ORDER=PCI_BUS_ID too, or name UUIDs; the driver's: {there}"
    )


def choose_elsewhere(listing: Listing, wanted: str) -> list[Gpu]:
    """Return the GPUs of another node that ``--gpus`` names; UUIDs name those of one node, so missing ones are none."""
    if wanted in ("all", "none"):
        return choose(listing, wanted)
    return _named(listing.gpus, wanted.split(","), strict=False)


def choose(listing: Listing, wanted: str) -> list[Gpu]:
    """Return the GPUs that ``--gpus`` names: ``all``, ``none``, or indices and UUIDs (or their beginnings).

    Raises:
        UsageError: One of them is not there, or is named twice; or CUDA may mean other ones.
    """
    if wanted == "none":
        return []
    if listing.why_unsure:
        raise _core.UsageError(listing.why_unsure)
    if wanted == "all":
        return listing.gpus
    if not listing.gpus:
        raise _core.UsageError(f"--gpus {wanted}: no GPUs here: {listing.why_none}")
    return _named(listing.gpus, wanted.split(","), strict=True)


def _named(gpus: Sequence[Gpu], words: Sequence[str], *, strict: bool) -> list[Gpu]:
    """Pick by index or UUID; CUDA itself stops at the first name it does not know, and so does a list not strict."""
    chosen: list[Gpu] = []
    for word in (word.strip() for word in words):
        fits = [gpu for gpu in gpus if (str(gpu.index) == word if word.isdecimal() else gpu.uuid.startswith(word))]
        if len(fits) == 1 and fits[0] not in chosen:
            chosen += fits
        elif not strict:
            break
        elif len(fits) != 1:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            raise _core.UsageError(f"--gpus: {word!r} names {len(fits)} of the GPUs here: {there}")
        else:
            raise _core.UsageError(f"--gpus: {word} is named twice; --ranks-per-gpu puts several ranks on it")
    return chosen


def processes(gpus: Sequence[Gpu]) -> dict[str, set[int]]:
    """Return the processes that have a context on each GPU, by UUID, as the driver numbers them."""
    if (nvml := nvml_module()) is not None:
        return _processes_by_nvml(nvml, gpus)
    lines = _smi(["--query-compute-apps=gpu_uuid,pid"])[0]
    found: dict[str, set[int]] = {gpu.uuid: set() for gpu in gpus}
    for uuid, pid in (row for row in lines if len(row) == 2 and row[1].isdecimal()):
        found.setdefault(uuid, set()).add(int(pid))
    return found


def driver_cuda() -> tuple[int, int]:
    """Return the CUDA version that the driver knows, such as (13, 1); (0, 0) if it does not tell."""
    if (nvml := nvml_module()) is not None:
        try:
            nvml.nvmlInit()
            number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        except nvml.NVMLError:
            return 0, 0
        return number // 1000, number % 1000 // 10
    if not shutil.which("nvidia-smi"):
        return 0, 0
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=_SMI_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    match = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def nvml_module() -> Any:
    """Return the module of nvidia-ml-py, None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _ask_nvml(nvml: Any) -> tuple[list[Gpu], str]:
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return [], f"NVML: {error}"
    found, why = [], ""
    for index in range(count):  # one that is lost, or not ours to use, does not take the others along
        try:
            found.append(_of_handle(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            why = why or f"NVML: GPU {index}: {error}"
    return found, why


def _of_handle(nvml: Any, index: int, handle: Any) -> Gpu:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        is_mig = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:
        is_mig = False  # this kind of GPU has no MIG
    bus_id = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    uuid, name = (_text(ask(handle)) for ask in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName))
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = 0  # some kinds share the host's, and of a part of a GPU it may not be told
    return Gpu(index, uuid, name, total, major + minor / 10, is_mig, _short_bus(bus_id))


def _processes_by_nvml(nvml: Any, gpus: Sequence[Gpu]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for gpu in gpus:
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        except nvml.NVMLError:
            running = []  # not permitted in some containers: then only MPS itself can say who is attached
        found[gpu.uuid] = {int(process.pid) for process in running}
    return found


def _ask_smi() -> tuple[list[Gpu], str]:
    rows, trouble = _smi(LIST_QUERY)
    return _of_rows(rows), trouble


def parse_listing(text: str, shown: Sequence[str | None] = (), status: int = 0) -> Listing:
    """Return the GPUs in what LIST_COMMAND printed, on whichever node.

    Args:
        text: It obeys no CUDA_VISIBLE_DEVICES.
        shown: The CUDA_VISIBLE_DEVICES of the ranks there, where a scheduler has set them; they may be given one each.
            Those that name no number may be another node's, and are left out of account.
        status: Its own; as a shell would call it where it was not found, or killed because it did not end.
    """
    if status != 0:
        return Listing([], "nvidia-smi", _NOT_RUN.get(status) or _complaint(text, status))
    found = _of_rows(_split(text))
    lists = [re.split(r"\s*,\s*", words.strip()) for words in shown if words is not None]
    indices = {int(word) for words in lists for word in words if word.isdecimal()}
    if indices and all(word.isdecimal() for words in lists for word in words):
        found = [gpu for gpu in found if gpu.index in indices]
    return Listing(found, "nvidia-smi", "" if found else "nvidia-smi lists none")


def _of_rows(rows: Sequence[Sequence[str]]) -> list[Gpu]:
    found = []
    for row in rows:
        if len(row) != len(_FIELDS):
            continue
        index, uuid, name, memory_mib, capability, mig, bus_id = row
        version = float(capability) if re.fullmatch(r"\d+\.\d+", capability) else 0.0
        memory = int(memory_mib) << 20 if memory_mib.isdecimal() else 0  # some kinds share the host's
        found.append(Gpu(int(index), uuid, name, memory, version, mig == "Enabled", _short_bus(bus_id)))
    return found


def _smi(query: Sequence[str]) -> tuple[list[list[str]], str]:
    """Return the rows of a query to nvidia-smi, and its complaint if it failed."""
    command = ["nvidia-smi", *query, *_FORM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi: {error}"
    if done.returncode != 0:
        return [], _complaint(done.stdout + done.stderr, done.returncode)
    return _split(done.stdout), ""


def _complaint(said: str, status: int) -> str:
    last = said.strip().splitlines()[-1:]
    return f"nvidia-smi: {last[0] if last else f'status {status}'}"


def _split(text: str) -> list[list[str]]:
    return [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]


def _short_bus(bus_id: str) -> str:
    """NVIDIA writes PCI domains with eight digits and capitals, the kernel with four and none."""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", bus_id.lower())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
