"""A rank that cannot have the memory of a group that is being formed: the others hear of it at once, and why."""

import sys

import jobs
import pytest

SCRIPT = """
import datetime, resource, time, torch, torch.distributed as dist
from accdp_comm import bootstrap
dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
dist.all_reduce(torch.ones(3))
before = resource.getrlimit(resource.RLIMIT_AS)
if rank == {short}:
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + 3000 << 10, before[1]))  # MPICH crashes with less
if rank == {late}:
    open_segment = bootstrap._open_segment
    bootstrap._open_segment = lambda *place: time.sleep(0.5) or open_segment(*place)
began = time.monotonic()
try:
    dist.all_reduce(torch.ones(3), group=dist.new_group(list(range(dist.get_world_size()))))
    print(rank, "is well", flush=True)
except Exception as error:
    print(f"{{rank}} after {{time.monotonic() - began:.1f}} s: {{error}}", flush=True)
resource.setrlimit(resource.RLIMIT_AS, before)
dist.all_reduce(torch.ones(3))
"""


@pytest.mark.parametrize("topology", ["", "2x1"])
@pytest.mark.parametrize("short", [0, 1])
def test_no_room_for_the_board(short, topology):
    check_that_all_hear_why(2, short, late=-1, topology=topology)


@pytest.mark.parametrize("short", [0, 1])
def test_who_comes_late_to_the_board_hears_it_too(short):
    """The memory is the lowest rank's: that must not close it because of what it or another rank has said."""
    check_that_all_hear_why(3, short, late=2)


INTERRUPTED = """
import pathlib, signal, sys, time
import accdp_comm
from accdp_comm import bootstrap
sys.path.append(sys.argv[2])
from when_asleep import signal_me_asleep
gone, opened = (pathlib.Path(sys.argv[1] + word) for word in ("", " opened"))
world = accdp_comm.Communicator()
if world.rank == 2:  # comes to the memory when another has gone
    open_segment = bootstrap._open_segment
    def open_late(*place):
        while not gone.exists():
            time.sleep(0.01)
        return open_segment(*place)
    bootstrap._open_segment = open_late
if world.rank == {who}:
    make = bootstrap._make
    def make_and_wait(*group):
        while not opened.exists():
            time.sleep(0.01)
        signal_me_asleep(signal.SIGINT)
        return make(*group)
    bootstrap._make = make_and_wait
if world.rank == 1:  # has the memory before its owner goes
    open_at_once = bootstrap._open_segment
    def open_and_say(*place):
        segment = open_at_once(*place)
        opened.touch()
        return segment
    bootstrap._open_segment = open_and_say
began = time.monotonic()
try:
    group = world.split(0)
    group.barrier()
    print(world.rank, "is well", flush=True)
except BaseException as error:
    print(f"{{world.rank}} after {{time.monotonic() - began:.1f}} s: {{type(error).__name__}} {{error}}", flush=True)
    if world.rank == {who}:
        gone.touch()
world.barrier()
"""


@pytest.mark.parametrize("who", [0, 1])
def test_who_is_interrupted_while_a_group_is_formed_tells_the_others(who, tmp_path):
    """Its process may go on: nothing but its word would end the others' wait."""
    command = [
        *jobs.mpiexec_command(3),
        sys.executable,
        "-c",
        INTERRUPTED.format(who=who),
        str(tmp_path / "gone"),
        str(jobs.TESTS),
    ]
    result = jobs.run(command)
    said = {int(line[0]): line for line in result.stdout.splitlines()}
    assert result.returncode == 0 and len(said) == 3, str(result)
    assert "KeyboardInterrupt" in said[who], str(result)
    assert f"rank {who} (pid " in said[1 - who], str(result)
    assert "was interrupted while the group was formed" in said[1 - who], str(result)
    assert "PeerDied" in said[2] or "was interrupted while the group was formed" in said[2], str(result)
    assert all(float(line.split()[2]) < jobs.SOON_S for line in said.values()), str(result)


def check_that_all_hear_why(ranks: int, short: int, late: int, topology: str = "") -> None:
    script = SCRIPT.format(short=short, late=late)
    result = jobs.run([*jobs.mpiexec_command(ranks), sys.executable, "-c", script], env={"ACCDP_TOPOLOGY": topology})
    said = {line[0]: line for line in result.stdout.splitlines()}
    for rank in range(ranks):
        words = said[str(rank)].split()
        assert words[1] == "after" and float(words[2]) < jobs.SOON_S, str(result)
        assert f"rank {short} (pid " in said[str(rank)] and "Cannot allocate memory" in said[str(rank)], str(result)
    assert result.returncode == 0, str(result)
