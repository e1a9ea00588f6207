"""A rank of tests/launch/test_keep_going.py: some fail, each in its way, and the others go on without them.

keep_going_rank.py RANK=WAY ...    ways: exits (with status 3), raises, is_killed
"""

import json
import os
import signal
import sys

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
bits = torch.tensor(1 << rank)
dist.all_reduce(bits)
print(json.dumps({"rank": rank, "place": [dist.get_rank(), dist.get_world_size()], "bits": int(bits)}), flush=True)
dist.destroy_process_group()
