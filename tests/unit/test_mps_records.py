"""Whose MPS daemons are whose: the records in their folders, and limits of drivers."""

import fcntl
import os

import pytest

from accdp_comm.launch.mps import daemon, records, refusals


def test_one_process_at_a_time_starts_and_cleans(tmp_path):
    with records.locked(tmp_path), open(tmp_path / "lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("mode", "is_private"), [(0o700, True), (0o750, False), (0o710, False), (0o705, False)])
def test_a_folder_that_others_can_look_into_is_none_of_ours(tmp_path, mode, is_private):
    tmp_path.chmod(mode)
    assert records._is_private(tmp_path) == is_private


def test_a_folder_of_another_user_is_none_of_ours(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not records._is_private(tmp_path)


def test_a_reader_sees_the_old_record_or_the_new_one(tmp_path):
    record = records.of_this_process("GPU-1", is_kept=False)
    records.write(tmp_path, record)
    with open(tmp_path / "owner.json") as old:
        records.write(tmp_path, records.with_daemon(record, os.getpid()))
        assert '"daemon_pid": 0' in old.read()


def test_a_folder_without_an_owner_that_a_server_uses_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "_processes_of", lambda pipe: ([], [(7, 1)]))
    assert "left alone" in daemon._clean_unowned(tmp_path) and tmp_path.exists()


def test_the_record_goes_last(tmp_path, monkeypatch):
    gone = []
    monkeypatch.setattr(daemon.shutil, "rmtree", gone.append)
    daemon._remove(tmp_path)
    assert gone == [tmp_path / records.PIPE, tmp_path / records.LOG, tmp_path]


def test_how_many_clients_a_gpu_takes(monkeypatch):
    assert [refusals.client_limit(cuda) for cuda in ((12, 9), (13, 0), (13, 1), (14, 0))] == [48, 48, 60, 60]
    monkeypatch.setattr(refusals, "find_binary", lambda: "/bin/mps")
    monkeypatch.setattr(refusals, "driver_cuda", lambda: (13, 1))
    monkeypatch.setattr(refusals, "foreign_servers", list)
    assert refusals.why_not([], 60) == "" and "61 ranks per GPU, but MPS takes 60" in refusals.why_not([], 61)
