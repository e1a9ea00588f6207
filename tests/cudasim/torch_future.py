"""A device fails after an operation was handed over to it: the work says so, and no thread of the group ends by it.

argv: as of torch_rank.py.
"""

import sys

import torch
import torch.distributed as dist
import torch_rank
from on_sim import numbers, refuses, sim_torch, summing, to_device
from torch.distributed import distributed_c10d as c10d


def fails(group: c10d.Backend, x: torch.Tensor, nth: int, is_told_by_future: bool) -> None:
    """The operation's nth event cannot be recorded."""
    for _ in range(50):
        sim_torch.fail("cudaEventRecord", nth)
        work = summing(group, x)
        try:
            future = work.get_future()
        except RuntimeError:  # the work had ended before, so that this call has to do with it alone
            continue
        refuses(group, "cudaErrorLaunchFailure", work.wait)
        if is_told_by_future:
            refuses(group, "cudaErrorLaunchFailure", future.wait)
        return
    raise AssertionError("no future was asked for in time")


def main() -> None:
    dist.init_process_group("accdp")
    group = c10d._get_default_group()._get_backend(torch.device("cpu"))
    x = to_device(numbers(0))
    torch_rank.futures(group, 0, 1)
    before = sim_torch.calls("cudaEventRecord")
    summing(group, x).get_future().wait()
    events = sim_torch.calls("cudaEventRecord") - before
    fails(group, x, events, False)  # the future's own, within torch, which then leaves it half completed
    fails(group, x, events - 1, True)  # ours, to see whether that can be
    torch_rank.futures(group, 0, 1)
    print("passed")


if __name__ == "__main__":
    main()
    sys.stderr.flush()
