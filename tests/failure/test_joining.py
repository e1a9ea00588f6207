"""A rank that cannot have the memory of a group that is being formed: the others hear of it at once, and why."""

import sys

import jobs
import pytest

SCRIPT = """
import datetime, resource, time, torch, torch.distributed as dist
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
dist.all_reduce(torch.ones(3))
before = resource.getrlimit(resource.RLIMIT_AS)
if rank == {short}:
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + 3000 << 10, before[1]))  # MPICH crashes with less
began = time.monotonic()
try:
    dist.all_reduce(torch.ones(3), group=dist.new_group([0, 1]))
    print(rank, "is well", flush=True)
except Exception as error:
    print(f"{{rank}} after {{time.monotonic() - began:.1f}} s: {{error}}", flush=True)
resource.setrlimit(resource.RLIMIT_AS, before)
dist.all_reduce(torch.ones(3))
"""


@pytest.mark.parametrize("topology", ["", "2x1"])
@pytest.mark.parametrize("short", [0, 1])
def test_no_room_for_the_board(short, topology):
    script = SCRIPT.format(short=short)
    result = jobs.run([*jobs.mpiexec_command(2), sys.executable, "-c", script], env={"ACCDP_TOPOLOGY": topology})
    said = {line[0]: line for line in result.stdout.splitlines()}
    for rank in range(2):
        words = said[str(rank)].split()
        assert words[1] == "after" and float(words[2]) < jobs.SOON_S, str(result)
        assert f"rank {short} (pid " in said[str(rank)] and "Cannot allocate memory" in said[str(rank)], str(result)
    assert result.returncode == 0, str(result)
