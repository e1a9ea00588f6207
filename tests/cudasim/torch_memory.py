"""Scenes about how long tensors are kept: until the device has done with them, and not much longer."""

import gc
import os
import weakref

import torch
from on_sim import COUNT, is_same, numbers, sim_torch, summing, to_device
from torch.distributed import distributed_c10d as c10d


def memory_stays_until_the_device_is_done(group, rank, size):
    """Freed tensors are overwritten by work on their stream: neither inputs nor results may be among them."""
    outs = []
    for turn in range(8):
        x, out = to_device(numbers(rank + turn)), to_device(torch.zeros(size * COUNT))
        work = group._allgather_base(out, x, c10d.AllgatherOptions())
        outs.append((turn, out, work))
        del x, out, work
    for turn, out, work in outs:
        work.wait()
        assert is_same(out, torch.cat([numbers(r + turn) for r in range(size)]))
    for _ in range(4):
        summing(group, to_device(numbers(rank)))  # nobody keeps the tensor, the work or its result


def tensors_go_when_something_else_is_called(group, rank, size):
    """Those of asynchronous calls that were waited for by their futures, as DDP does, are not kept for the next one."""
    for other in (
        lambda: summing(group, to_device(numbers(rank)), is_async=False).wait(),
        lambda: group.barrier().wait(),
    ):
        x = to_device(numbers(rank))
        work = summing(group, x)
        work.get_future().wait()
        sim_torch.synchronize()
        kept = weakref.ref(x)
        del x, work
        other()
        gc.collect()
        assert kept() is None


def forks_leave_events_alone(group, rank, size):
    """A child may drop what its parent has: to destroy the device's events there would end it, and to let memory go
    might wait for ever for a lock that another thread had."""
    for _ in range(10):
        work = summing(group, to_device(numbers(rank)))
        work.wait()
        sim_torch.synchronize()
        summing(group, to_device(numbers(rank)), is_async=False).wait()  # now nobody else keeps the operation
        child = os.fork()
        if child == 0:
            del work
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


SCENES = [
    memory_stays_until_the_device_is_done,
    tensors_go_when_something_else_is_called,
    forks_leave_events_alone,
]
