"""Scenes with streams that are captured into graphs: the caller's, and another thread's."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from on_sim import await_all, is_same, numbers, refuses, sim_torch, summing, to_device, total
from torch.distributed import distributed_c10d as c10d


def captured_streams(group, rank, size):
    x, options = to_device(numbers(rank)), c10d.AllreduceOptions()
    group.allreduce([to_device(numbers(rank))], options).wait()
    sim_torch.set_capturing(True)
    for is_async in (True, False):
        refuses(group, "captured into a CUDA graph", lambda is_async=is_async: summing(group, x, is_async))
    refuses(group, "captured into a CUDA graph", group.barrier, ValueError)
    refuses(group, "captured into a CUDA graph", lambda: group.send([x], 0, 1))
    refuses(group, "captured into a CUDA graph", lambda: group.recv([x], 0, 1))
    sim_torch.set_capturing(False)
    group.allreduce([x], options).wait()
    assert is_same(x, total(size))


def beside_a_capture(group, rank, size):
    """Another thread captures a graph: what looks at events here leaves that alone, and is not refused itself."""
    tensors = [to_device(numbers(rank)) for _ in range(3)]
    summing(group, to_device(numbers(rank))).wait()  # what the group sets up takes memory
    sim_torch.set_capturing_elsewhere(True)
    try:
        works = [summing(group, x) for x in tensors]  # the next ones look whether those before are done
        with ThreadPoolExecutor(1) as pool:  # a thread that has not yet used CUDA
            while not pool.submit(lambda: all(work.is_completed() for work in works)).result():
                time.sleep(0.001)
        assert all(work.is_completed() for work in works)
    finally:
        sim_torch.set_capturing_elsewhere(False)
    for work, x in zip(works, tensors, strict=True):
        work.wait()
        assert is_same(x, total(size))


def left_beside_a_capture(group, rank, size):
    """A group that ends waits for what nobody has waited for, and leaves another thread's capture alone."""
    named = dist.new_group()
    other = named._get_backend(torch.device("cpu"))
    summing(other, to_device(numbers(rank))).wait()  # what the group sets up takes memory
    works = [summing(other, to_device(numbers(rank))) for _ in range(3)]
    await_all("begun", rank, size)
    sim_torch.set_capturing_elsewhere(True)
    try:
        dist.destroy_process_group(named)  # what goes wrong is said on stderr
    finally:
        sim_torch.set_capturing_elsewhere(False)
    del works


SCENES = [captured_streams, beside_a_capture, left_beside_a_capture]
