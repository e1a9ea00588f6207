"""What scenes on the simulated device share: torch's tensors there and back, values, calls.

argv[1]: the folder of the module sim_torch.
"""

import sys

import torch
from torch.distributed import distributed_c10d as c10d

from accdp_comm import backend

sys.path.insert(0, sys.argv[1])
import sim_torch

SIDE = 1  # a stream besides the default one
COUNT = 100_001  # several pieces of the shared pool
JITTER = 20  # us

to_device, to_host = sim_torch.to_device, sim_torch.to_host
ranks_backend = backend._torch.ProcessGroupAccdp


def form(rank, size, group, *args, **options):
    options["device_path"] = sim_torch.device_path(group)
    return ranks_backend(rank, size, group, *args, **options, device_type="privateuseone")


backend._torch.ProcessGroupAccdp = form


def numbers(rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, so that sums are exact."""
    return ((torch.arange(count) * 7 + rank) % 13).to(dtype)


def total(size: int, count: int = COUNT) -> torch.Tensor:
    return sum(numbers(rank, count) for rank in range(size))


def is_same(device_tensor: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(to_host(device_tensor), wanted)


def await_all(what, rank, size):
    """By torch's store, not by the group."""
    store = c10d._get_default_store()
    store.set(f"{what} {rank}", "")
    store.wait([f"{what} {other}" for other in range(size)])


def summing(group, x, is_async=True):
    options = c10d.AllreduceOptions()
    options.asyncOp = is_async
    return group.allreduce([x], options)


def refuses(group, text, call, errors=(RuntimeError, ValueError)):
    """A wrong call says so, and leaves the group as it was."""
    try:
        call()
    except errors as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"expected an error with {text!r}")
