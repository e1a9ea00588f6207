"""Quotas of control groups of both versions, as containers, Kubernetes and systemd set them, in made-up trees."""

import os

import pytest

from accdp_comm import cpus
from accdp_comm.tune import load


def tree(folder, files: dict[str, str]):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = "12:memory:/a/b\n4:cpu,cpuacct:/a/b\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "150000 100000\n"}, 0.5),
        ("0::/host/path\n", {"cpu.max": "300000 100000\n"}, 3.0),  # the container's own group is what is mounted
        ("0::/\n", {"unified/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/\n", {}, None),
        ("", {"cpu.max": "200000 100000\n"}, None),
        (V1, {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 2.5),
        (V1, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "50000"}, 1.0),
        (V1, {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        (V1 + "0::/\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "1", "cpu.max": "7 1"}, 7.0),
    ],
)
def test_quota(tmp_path, membership, files, quota):
    (tmp_path / "cgroup").write_text(membership)
    groups = tree(tmp_path / "fs", files)
    assert cpus.quota(str(tmp_path / "cgroup"), str(groups)) == quota


def test_limits_of_all_groups_are_named_from_the_outermost_on(tmp_path):
    groups = tree(tmp_path / "fs", {"a/cpu.max": "2 1", "a/b/cpu.max": "3 1", "a/c/cpu.max": "1 1"})
    found = []
    for path in ("/a/b", "/a/c", "/a"):
        (tmp_path / "cgroup").write_text(f"0::{path}\n")
        found.append(cpus.limits(str(tmp_path / "cgroup"), str(groups)))
    a, b, c = ((groups / name).stat().st_ino for name in ("a", "a/b", "a/c"))
    assert found == [[(2, a), (3, b)], [(2, a), (1, c)], [(2, a)]]


def test_without_control_groups(tmp_path):
    assert cpus.quota(str(tmp_path / "none"), str(tmp_path)) is None


@pytest.mark.parametrize(
    ("available", "limit", "busy"), [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (8, 0.3, 1), (4, 8.0, 4)]
)
def test_cores_that_can_be_busy(available, limit, busy):
    assert cpus.busy_cores(available, limit) == busy


def test_the_cores_are_those_of_the_affinity_mask():
    assert sorted(cpu for core in cpus.cores() for cpu in core) == sorted(os.sched_getaffinity(0))


def test_the_tuner_counts_cores_not_their_threads(monkeypatch):
    monkeypatch.setattr(cpus, "cores", lambda: [[0, 4], [1, 5], [2, 6]])
    monkeypatch.setattr(cpus, "quota", lambda: None)
    assert load.cores() == 3
