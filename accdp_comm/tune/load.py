"""How busy processors and GPUs are while a trial is measured."""

from __future__ import annotations

import statistics
import threading
from types import ModuleType

from .. import cpus
from ..launch import gpus

_EVERY_S = 0.25


class Sampler:
    """Means since begin(): of the node's cores from /proc/stat, and of each GPU where NVML is (package nvidia-ml-py).

    NVML's figure is the share of time in which any kernel ran, not the share of the GPU that it used.
    """

    def __init__(self) -> None:
        self._busy_at_begin: tuple[int, int] | None = None
        self._nvml = nvml()
        self._seen: dict[str, list[int]] = {}  # by GPU
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Forget what was before; GPUs are looked at every quarter of a second from now on."""
        self._busy_at_begin = _jiffies()
        if self._nvml and self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()

    def means(self) -> dict[str, float]:
        """Per cent by what was loaded: "cpu", and "gpu0" and so on; empty before begin()."""
        if self._busy_at_begin is None:
            return {}
        busy, total = (now - then for now, then in zip(_jiffies(), self._busy_at_begin, strict=True))
        found = {"cpu": 100.0 * busy / total} if total else {}
        found |= {name: statistics.fmean(values) for name, values in dict(self._seen).items()}
        return {name: round(value, 1) for name, value in found.items()}

    def _follow(self) -> None:
        assert self._nvml
        devices = range(self._nvml.nvmlDeviceGetCount())
        while not self._ended.wait(_EVERY_S):
            for index in devices:
                try:
                    device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                    value = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu
                except self._nvml.NVMLError:
                    continue  # one that MIG divides does not tell, one of others may not be asked
                self._seen.setdefault(f"gpu{index}", []).append(value)

    def end(self) -> None:
        """Stop looking. Once."""
        self._ended.set()
        if self._thread:
            self._thread.join()


def nvml() -> ModuleType | None:
    """Return NVML's module, initialised; None where there is no such package or no driver."""
    if (module := gpus.nvml_module()) is None:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module


def cores() -> int:
    """Return how many cores this process can keep busy."""
    return cpus.busy_cores(len(cpus.cores()), cpus.quota())


def _jiffies() -> tuple[int, int]:
    """(busy, all) clock ticks of all cores since the machine started."""
    with open("/proc/stat") as file:
        values = [int(word) for word in file.readline().split()[1:9]]
    idle = values[3] + values[4]
    return sum(values) - idle, sum(values)
