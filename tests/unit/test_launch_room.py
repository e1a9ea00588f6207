"""Numbers of ranks that a node has no room for are refused before anything is started."""

import pathlib
import resource
import subprocess
import sys

import control_groups
import pytest

from accdp_comm import _core, host_memory
from accdp_comm.launch.room import Limit, _group_limits, _memory_limits, check_room, limits

LIMITS = [Limit("processes", 300, 3, "raise it"), Limit("MiB of memory", 350, 7, "start fewer")]


def test_the_scarcest_thing_is_named():
    check_room(50, 50, LIMITS)
    check_room(10**9, 10**9, [])
    with pytest.raises(_core.UsageError, match=f"{10**400} ranks take"):  # as a profile may say
        check_room(10**400, 10**400, LIMITS)
    with pytest.raises(_core.UsageError) as refused:
        check_room(51, 51, LIMITS)
    assert str(refused.value) == (
        "51 ranks take 357 MiB of memory before their program begins, and there are 350 for all ranks of this node: "
        "start fewer"
    )


def test_ranks_elsewhere_take_what_the_launcher_has_alone():
    launchers = Limit("open files of the launcher", 400, 4, "raise it", of_another=1)
    check_room(400, 0, [*LIMITS, launchers])
    check_room(370, 10, [*LIMITS, launchers])
    with pytest.raises(_core.UsageError, match="^371 ranks, 10 of them here, take 401 open files .* of the job: raise"):
        check_room(371, 10, [*LIMITS, launchers])
    with pytest.raises(_core.UsageError, match="^60 ranks take 420 MiB .* are 350 for all ranks of this node"):
        check_room(100, 60, [*LIMITS, launchers])


def test_this_node_has_limits_and_room_for_some():
    found = limits()
    assert {limit.name for limit in found} >= {"processes", "MiB of memory"}
    check_room(2, 2, found)


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        ("0::/\n", {}, []),
        ("0::/\n", {"pids.max": "max", "pids.current": "7"}, []),
        ("0::/a\n", {"a/pids.max": "64\n", "a/pids.current": "4\n", "pids.max": "100", "pids.current": "9"}, [60, 91]),
        ("9:pids:/a\n", {"pids/a/pids.max": "20", "pids/a/pids.current": "2"}, [18]),
    ],
)
def test_control_groups_leave_so_many_processes(tmp_path, membership, files, found):
    limits = _group_limits(*control_groups.lay_out(tmp_path, membership, files))
    assert [limit.total for limit in limits] == found
    assert all((tmp_path / "fs") in pathlib.Path(limit.advice.removeprefix("see ")).parents for limit in limits)


def test_memory_that_a_control_group_leaves():
    host, group = host_memory.Left((40 << 20) + 5, "/proc/meminfo"), host_memory.Left(13 << 20, "/x/memory.max")
    found = _memory_limits([host, group])
    with pytest.raises(_core.UsageError, match=r"2 ranks take 14 MiB of memory.*are 13 .*fewer; see /x/memory.max"):
        check_room(2, 2, found)
    check_room(1, 1, found)


@pytest.mark.parametrize("here", [True, False])
def test_accdp_run_refuses_them_at_once(here, tmp_path):
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:100\n")
    command = [sys.executable, "-m", "accdp_comm", "run", *(["-n", "100"] if here else ["--hosts", str(hosts)]), "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=few_files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("accdp run: 100 ranks take 400 open files of the launcher before")
    assert done.stderr.count("\n") == 1
