"""GPUs as NVML and nvidia-smi tell of them; neither is needed, both are played here."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from accdp_comm import _core
from accdp_comm.launch import gpus


class NvmlError(Exception):
    pass


def fake_nvml(count: int = 2, **changes) -> SimpleNamespace:
    """What nvidia-ml-py offers of what we use, for GPUs of 80 GiB that are known by their index."""
    offered = {
        "NVMLError": NvmlError,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid[-1]),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: b"Old name in bytes",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetMigMode": lambda handle: (handle, 0),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle}A:00.0"),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=100 + handle)],
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
    }
    return SimpleNamespace(**(offered | changes))


@pytest.fixture
def nvml(monkeypatch):
    def install(module: SimpleNamespace | None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def failing(*_):
    raise NvmlError("Driver Not Loaded")


def test_nvml_is_asked_first(nvml):
    nvml(fake_nvml())
    found = gpus.list_gpus({})
    first = gpus.Gpu(0, "GPU-0", "Old name in bytes", 80 << 30, 9.0, False, "0000:0a:00.0")
    assert found.source == "NVML" and found.gpus[0] == first and found.gpus[1].is_mig
    assert gpus.processes(found.gpus) == {"GPU-0": {100}, "GPU-1": {101}}
    assert gpus.driver_cuda() == (13, 1)


def test_a_gpu_without_mig_is_not_divided(nvml):
    nvml(fake_nvml(nvmlDeviceGetMigMode=failing))
    assert [gpu.is_mig for gpu in gpus.list_gpus({}).gpus] == [False, False]


def test_what_nvml_may_not_tell_is_left_out(nvml):
    nvml(fake_nvml(nvmlDeviceGetComputeRunningProcesses=failing, nvmlSystemGetCudaDriverVersion_v2=failing))
    assert gpus.processes(gpus.list_gpus({}).gpus) == {"GPU-0": set(), "GPU-1": set()}
    assert gpus.driver_cuda() == (0, 0)


def test_without_a_driver_there_are_no_gpus_and_a_reason(nvml):
    nvml(fake_nvml(nvmlInit=failing))
    assert gpus.list_gpus({}) == gpus.Listing([], "NVML", "NVML: Driver Not Loaded")


@pytest.mark.parametrize(
    ("visible", "indices"), [("1", [1]), ("GPU-1,0", [1, 0]), ("0,7,1", [0]), ("", []), ("-1", []), ("NoDevFiles", [])]
)
def test_cuda_visible_devices_is_read_as_cuda_does(nvml, visible, indices):
    nvml(fake_nvml())
    found = gpus.list_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.index for gpu in found.gpus] == indices
    assert bool(found.why_none) == (not indices)


def test_one_that_is_lost_does_not_take_the_others_along(nvml):
    def handle(index):
        return failing() if index == 0 else index

    nvml(fake_nvml(nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetMemoryInfo=failing))
    assert [(gpu.uuid, gpu.memory_bytes) for gpu in gpus.list_gpus({}).gpus] == [("GPU-1", 0)]
    nvml(fake_nvml(1, nvmlDeviceGetHandleByIndex=handle))
    assert gpus.list_gpus({}) == gpus.Listing([], "NVML", "NVML: GPU 0: Driver Not Loaded")


def test_numbers_that_cuda_may_mean_otherwise_are_refused(nvml):
    nvml(fake_nvml(nvmlDeviceGetName=lambda handle: f"kind {handle}"))
    with pytest.raises(
        _core.UsageError, match="CUDA_VISIBLE_DEVICES=1: where GPUs differ.*CUDA_DEVICE_ORDER=PCI_BUS_ID"
    ):
        gpus.choose(gpus.list_gpus({"CUDA_VISIBLE_DEVICES": "1"}), "all")
    assert gpus.choose(gpus.list_gpus({"CUDA_VISIBLE_DEVICES": "1"}), "none") == []
    by_bus = gpus.list_gpus({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert (
        [gpu.index for gpu in by_bus.gpus]
        == [1]
        == [gpu.index for gpu in gpus.list_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1"}).gpus]
    )


ROW = "0, GPU-a, NVIDIA X, 81559, 9.0, Disabled, 00000000:0A:00.0"


def smi(monkeypatch, stdout: str, status: int = 0) -> None:
    monkeypatch.setattr(gpus.shutil, "which", lambda name: f"/bin/{name}")
    done = subprocess.CompletedProcess([], status, stdout, "")
    monkeypatch.setattr(gpus.subprocess, "run", lambda *_, **__: done)


def test_nvidia_smi_is_asked_without_nvml(nvml, monkeypatch):
    nvml(None)
    smi(monkeypatch, f"{ROW}\n1, GPU-b, Old, [N/A], [N/A], [N/A], 00000001:0B:00.0\n")
    first, second = gpus.list_gpus({}).gpus
    assert first == gpus.Gpu(0, "GPU-a", "NVIDIA X", 81559 << 20, 9.0, False, "0000:0a:00.0")
    assert (second.compute_capability, second.memory_bytes, second.bus_id) == (0.0, 0, "0001:0b:00.0")


def test_a_complaint_of_nvidia_smi_is_the_reason(nvml, monkeypatch):
    nvml(None)
    smi(monkeypatch, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\n", 9)
    found = gpus.list_gpus({})
    assert found.gpus == [] and found.why_none.startswith("nvidia-smi: NVIDIA-SMI has failed")


def test_neither_is_installed(nvml, monkeypatch):
    nvml(None)
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    assert gpus.list_gpus({}).why_none == "neither the package nvidia-ml-py nor nvidia-smi is installed"
    assert gpus.driver_cuda() == (0, 0)


def test_listings_of_other_nodes():
    found = gpus.parse_listing(ROW + "\n")
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a"]
    assert gpus.choose_elsewhere(found, "all") == found.gpus == gpus.choose_elsewhere(found, "0")
    assert gpus.choose_elsewhere(found, "GPU-of-another-node") == [] == gpus.parse_listing("").gpus
    assert gpus.parse_listing("", (), 127).why_none == "nvidia-smi is not installed"
    assert gpus.parse_listing("x", (), 137).why_none == "nvidia-smi did not answer"
    assert gpus.parse_listing("x\nNo devices were found\n", (), 6).why_none == "nvidia-smi: No devices were found"
    both = f"{ROW}\n{ROW.replace('0, GPU-a', '1, GPU-b')}\n"
    for shown, uuids in [
        (["1", "1"], ["GPU-b"]),
        (["0", "1"], ["GPU-a", "GPU-b"]),  # one each
        ([None, None], ["GPU-a", "GPU-b"]),
        (["GPU-of-another-node"], ["GPU-a", "GPU-b"]),
        (["7"], []),
    ]:
        assert [gpu.uuid for gpu in gpus.parse_listing(both, shown).gpus] == uuids, shown
