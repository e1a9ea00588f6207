"""Numbers of ranks that a node has no room for are refused before anything is started."""

import pathlib
import resource
import subprocess
import sys

import pytest

from accdp_comm import _core
from accdp_comm.launch.room import Limit, _group_limits, check_room, limits

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


MIB = 1 << 20
V1 = "9:pids:/a\n4:memory:/a\n"


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        ("0::/\n", {}, []),
        ("0::/\n", {"pids.max": "max", "pids.current": "7", "memory.max": "max", "memory.current": "9"}, []),
        ("0::/a\n", {"a/pids.max": "64\n", "a/pids.current": "4\n", "pids.max": "100", "pids.current": "9"}, [60, 91]),
        ("0::/\n", {"memory.max": f"{90 * MIB}", "memory.current": f"{50 * MIB}"}, [40]),
        (
            "0::/\n",
            {"memory.max": f"{90 * MIB}", "memory.current": f"{50 * MIB}", "memory.stat": f"anon 1\nfile {7 * MIB}\n"},
            [47],
        ),
        (
            V1,
            {
                "pids/a/pids.max": "20",
                "pids/a/pids.current": "2",
                "memory/a/memory.limit_in_bytes": f"{8 * MIB}",
                "memory/a/memory.usage_in_bytes": f"{3 * MIB}",
                "memory/a/memory.stat": f"cache {MIB}\ntotal_cache {2 * MIB}\n",
            },
            [18, 7],
        ),
    ],
)
def test_control_groups_leave_so_much(tmp_path, membership, files, found):
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    limits = _group_limits(str(tmp_path / "cgroup"), str(tmp_path / "fs"))
    assert [limit.total for limit in limits] == found
    assert all((tmp_path / "fs") in pathlib.Path(limit.advice.removeprefix("see ")).parents for limit in limits)


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
