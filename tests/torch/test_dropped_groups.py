"""A group that nobody has any more has ended: for its peers, its threads, and what it held."""

import sys

import jobs
import pytest

BEGIN = """
import datetime, sys, time, torch, torch.distributed as dist
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
world = dist.distributed_c10d._get_default_group()
group = world.split_group([0, 1])
group.barrier()
later = dist.AllreduceOptions()
later.asyncOp = True
"""

WHAT = {
    "its peers hear of it": """
if rank == 0:
    del group
    time.sleep(3)
else:
    began = time.monotonic()
    try:
        group.allreduce([torch.ones(2)], later).wait()
    except dist.DistBackendError as error:
        print("rank 0 left" if "left the group" in str(error) else error)
    assert time.monotonic() - began < 15
dist.barrier()
""",
    "its callbacks end first": """
def slowly(future):
    time.sleep(1)
    print("called")
future = group.allreduce([torch.ones(2)], later).get_future().then(slowly)
del group
""",
    "what is formed does not wait for it": """
from accdp_comm import _torch
if rank == 0:
    work = group.allreduce([torch.ones(2)], later)
    del group, work  # waits for rank 1, here
    print("left")
else:
    time.sleep(1)
    group.allreduce([torch.ones(2)], later).wait()
    del group
began = time.monotonic()
other = world.split_group([0, 1])
assert len(_torch.open_groups()) == 2, _torch.open_groups()
dist.barrier()
""",
    "an interrupt is raised": """
import os, signal, threading
if rank == 0:
    work = group.allreduce([torch.ones(2)], later)  # for which rank 1 does not come
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        del group, work
        for _ in range(300):  # raised between two calls, not in the middle of one
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("interrupted")
dist.barrier()
""",
    "its store is closed": """
def listens(port):
    with open("/proc/net/tcp") as v4, open("/proc/net/tcp6") as v6:
        lines = [line.split() for file in (v4, v6) for line in file.readlines()[1:]]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)
if rank == 0:
    own = dist.TCPStore("127.0.0.1", 0, is_master=True)
    port = own.port
box = [port if rank == 0 else 0]
dist.broadcast_object_list(box)
port = box[0]
store = own if rank == 0 else dist.TCPStore("127.0.0.1", port)
del group
dist.barrier()
dist.destroy_process_group()
del world
dist.init_process_group("accdp", store=dist.PrefixStore("again", store), rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    del own
del store
deadline = time.monotonic() + 15
while rank == 0 and listens(port) and time.monotonic() < deadline:
    time.sleep(0.1)
if rank == 0:
    print("listens" if listens(port) else "closed")
""",
}
SAID = {
    "its peers hear of it": ["rank 0 left"],
    "its callbacks end first": ["called", "called"],
    "what is formed does not wait for it": ["left"],
    "an interrupt is raised": ["interrupted"],
    "its store is closed": ["closed"],
}


@pytest.mark.parametrize("what", WHAT)
def test_dropped(what):
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", BEGIN + WHAT[what]])
    assert (result.returncode, result.stdout.splitlines()) == (0, SAID[what]), str(result)


NO_MEMORY = """
import datetime, resource, sys, time, torch, torch.distributed as dist
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
entries = 6_000_000 if rank else 2
x = torch.sparse_coo_tensor(torch.arange(entries)[None], torch.ones(entries), (6_000_000,)).coalesce()
dist.barrier()
if rank == 0:  # no room for the other's
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
began = time.monotonic()
try:
    work = dist.all_reduce(x, async_op={later})
    if work is not None:
        work.wait()
except Exception as error:
    print(f"{{rank}} {{time.monotonic() - began:.1f}} {{error}}".splitlines()[0], flush=True)
store = dist.distributed_c10d._get_default_store()
if rank == 0:  # its end would tell, too
    store.wait(["heard"], datetime.timedelta(seconds=30))
store.set("heard", "")
"""


@pytest.mark.parametrize("later", [False, True])
def test_a_rank_without_memory_tells_those_that_are_in_the_operation(later):
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", NO_MEMORY.format(later=later)])
    said = {line[0]: line.split(maxsplit=2) for line in result.stdout.splitlines()}
    assert set(said) == {"0", "1"}, str(result)
    assert "allocate" in said["0"][2], str(result)
    assert "rank 0" in said["1"][2] and "sparse_all_reduce failed" in said["1"][2], str(result)
    assert float(said["1"][1]) < 15, str(result)
