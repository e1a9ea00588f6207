"""What is said of processors and GPUs while a trial is measured."""

import time
from types import SimpleNamespace

from accdp_comm.tune import load


class Nvml:
    """Two GPUs, the first of which MIG divides: it does not tell how busy it is."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUtilizationRates(self, device):
        if device == 0:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=40)


def test_a_gpu_that_does_not_tell_hides_no_other(monkeypatch):
    monkeypatch.setattr(load, "nvml", Nvml)
    monkeypatch.setattr(load, "_EVERY_S", 0.001)
    sampler = load.Sampler()
    sampler.begin()
    deadline = time.monotonic() + 20
    while "gpu1" not in sampler.means() and time.monotonic() < deadline:
        time.sleep(0.001)
    sampler.end()
    assert sampler.means()["gpu1"] == 40.0 and "gpu0" not in sampler.means()
