"""What the kernel and control groups leave of a host's memory."""

import control_groups
import pytest

from accdp_comm import host_memory

MIB = 1 << 20


def test_this_host_says():
    assert host_memory.left()[0].said_by == "/proc/meminfo"
    assert all(one.bytes > 0 for one in host_memory.left())


def test_a_host_that_says_nothing(tmp_path):
    assert host_memory.left(str(tmp_path / "none"), *control_groups.lay_out(tmp_path, "", {})) == []


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        ("0::/\n", {"memory.max": "max", "memory.current": "9"}, []),
        ("0::/\n", {"memory.max": f"{90 * MIB}", "memory.current": f"{50 * MIB}"}, [40]),
        (
            "0::/\n",
            {"memory.max": f"{90 * MIB}", "memory.current": f"{50 * MIB}", "memory.stat": f"anon 1\nfile {7 * MIB}\n"},
            [47],
        ),
        (
            "0::/\n",
            {
                "memory.max": f"{90 * MIB}",
                "memory.current": f"{50 * MIB}",
                "memory.stat": f"file {7 * MIB}\nshmem {5 * MIB}\n",
            },
            [42],
        ),
        (
            "4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": f"{8 * MIB}",
                "memory/a/memory.usage_in_bytes": f"{3 * MIB}",
                "memory/a/memory.stat": f"cache {MIB}\ntotal_cache {2 * MIB}\ntotal_shmem {MIB}\n",
            },
            [6],
        ),
    ],
)
def test_control_groups_leave_so_much(tmp_path, membership, files, found):
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:    800 kB\n")
    left = host_memory.left(str(tmp_path / "meminfo"), *control_groups.lay_out(tmp_path, membership, files))
    assert [one.bytes for one in left] == [800 << 10, *(mib * MIB for mib in found)]
    assert all(one.said_by.startswith(str(tmp_path / "fs")) for one in left[1:])
