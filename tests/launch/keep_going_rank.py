"""A rank of tests/launch/test_keep_going.py: some fail, each in its way, and the others go on without them.

keep_going_rank.py RANK=WAY ...    ways: exits (with status 3), raises, is_killed, or lingers (for a while at its end)
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import accdp_comm

dist.init_process_group("accdp")
rank = dist.get_rank()
way = dict(word.split("=") for word in sys.argv[1:]).get(str(rank))
dist.all_reduce(torch.ones(1))
if way == "exits":
    os._exit(3)
if way == "raises":
    raise ValueError("this one's own")
if way == "is_killed":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(1))
except dist.DistBackendError:
    accdp_comm.shrink()
    with accdp_comm.Communicator() as comm:  # of those that live, whatever the launcher has started
        comm.barrier()
        assert comm.size == dist.get_world_size()
bits = torch.tensor(1 << rank)
dist.all_reduce(bits)
place = [dist.get_rank(), dist.get_world_size()]
print(json.dumps({"rank": rank, "place": place, "bits": int(bits), "guard": os.getppid()}), flush=True)
dist.destroy_process_group()
if way == "lingers":
    time.sleep(3)
