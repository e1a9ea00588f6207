"""A /dev/shm without room: nothing of ours lies there, so nothing of ours ends by a bus error (design 0002)."""

import os
import shutil
import subprocess
import sys

import jobs
import pytest

ROOM = "mount -t tmpfs -o size=4k accdp-test /dev/shm && df -k --output=size /dev/shm && "
SCRIPT = """
import torch, torch.distributed as dist
import accdp_comm
dist.init_process_group("accdp")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((4 << 20,), float(rank + 1))
dist.all_reduce(x)
assert (x == 3).all()
accdp_comm.bcast_compressed(x, codec="zstd")
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
group = dist.new_group([0, 1])
dist.broadcast(x, 1, group=group)
print("rank", rank, "done", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def may_mount() -> bool:
    if os.geteuid() or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "sh", "-c", ROOM + "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="expected root, who may mount")
def test_no_room_is_needed():
    port = str(jobs.free_port())
    ranks = [f"RANK={rank} {sys.executable} -c '{SCRIPT}' &" for rank in range(2)]
    waits = "wait $first && wait $!"
    script = (
        f"{ROOM} export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; {ranks[0]} first=$!; {ranks[1]} {waits}"
    )
    result = jobs.run(["unshare", "-m", "sh", "-c", script], timeout=120.0)
    assert result.returncode == 0 and result.stdout.split()[:2] == ["1K-blocks", "4"], str(result)
    assert sorted(line for line in result.stdout.splitlines() if "done" in line) == ["rank 0 done", "rank 1 done"]
