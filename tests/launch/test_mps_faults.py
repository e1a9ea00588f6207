"""Daemons that hang or say nothing, within a short limit for that: nothing waits for ever, nothing of them is left."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import jobs
import pytest
from running import ACCDP
from stand_in_machine import UUIDS

from accdp_comm import _core
from accdp_comm.launch.mps import attachment, control, daemon, records, refusals, session
from accdp_comm.launch.mps.control import MpsError

LIMIT_S = 4.0  # of what does not come
PATIENCE_S = 60.0  # of what does: a stand-in is a Python program that has to start


@pytest.fixture
def base(machine, monkeypatch):
    """The folder of daemons, whose limits are long."""
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    for name in ("_START_S", "_ANSWER_S", "_LISTEN_S"):
        monkeypatch.setattr(control, name, PATIENCE_S)
    for name in ("_QUIT_S", "_PID_S"):
        monkeypatch.setattr(daemon, name, PATIENCE_S)
    monkeypatch.setattr(daemon, "_KILL_S", 0.5)
    return records.base_directory()


def start(base, fault, monkeypatch, **options):
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with records.locked(base):
        return daemon.start(base, UUIDS[0], is_kept=options.get("is_kept", False))


def stand_ins() -> list[int]:
    """Processes of the stand-in daemons of this test."""
    here = os.environ["ACCDP_RUN_MPS_DIR"].encode()

    def is_ours(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return b"CUDA_MPS_PIPE_DIRECTORY=" + here in file.read()
        except OSError:
            return False

    return list(jobs.until_empty(lambda: jobs.living(is_ours)))


@pytest.mark.parametrize(
    ("fault", "limit", "message"),
    [
        ("no_start", None, r"failed with status 1; its log ends: \[Control\] Failed to start"),
        ("hang_start", "_START_S", f"did not return within {LIMIT_S:g} s"),
        ("hang", "_ANSWER_S", f"did not answer 'get_server_list' within {LIMIT_S:g} s"),
    ],
)
def test_a_daemon_that_does_not_start_leaves_nothing(base, machine, monkeypatch, fault, limit, message):
    if limit:
        monkeypatch.setattr(control, limit, LIMIT_S)
    with pytest.raises(MpsError, match=message):
        start(base, fault, monkeypatch)
    assert machine.folders() == [] and not stand_ins()


def test_numbers_in_a_sentence_are_no_processes():
    """What stands in a list is ended with the daemon."""
    assert control._pids("4711\n 4712 \n") == [4711, 4712]
    assert control._pids(f"Server {os.getpid()} ended with error 7 while 1 client was there\n") == []


def test_a_daemon_may_listen_only_some_time_after_it_was_started(base, machine, monkeypatch):
    assert daemon.stop(start(base, "late", monkeypatch)) == []
    assert machine.journal()[0] == f"started {UUIDS[0]}" and machine.folders() == [] and not stand_ins()


def test_a_daemon_that_does_not_listen_in_time_leaves_nothing(base, machine, monkeypatch):
    monkeypatch.setenv("STAND_IN_LATE_S", "60")
    monkeypatch.setattr(control, "_LISTEN_S", 0.0)
    with pytest.raises(MpsError, match=r"Cannot find MPS control daemon process, for 0 s .*; it wrote no log"):
        start(base, "late", monkeypatch)
    assert machine.folders() == [] and not stand_ins()


def test_logs_are_kept_where_they_are_asked_for(base, machine, monkeypatch, tmp_path):
    monkeypatch.setenv(daemon.LOGS_VARIABLE, str(tmp_path / "logs"))
    with pytest.raises(MpsError, match="failed with status 1"):
        start(base, "no_start", monkeypatch)
    (log,) = (tmp_path / "logs").glob("*/control.log")
    assert log.read_text() == "[Control] Failed to start: no permission\n" and machine.folders() == []
    monkeypatch.setenv(daemon.LOGS_VARIABLE, "/dev/null/logs")
    (trouble,) = daemon.stop(start(base, "", monkeypatch))
    assert "were not kept" in trouble and machine.folders() == []


def test_a_daemon_that_does_not_say_its_pid_is_stopped_all_the_same(base, machine, monkeypatch):
    monkeypatch.setattr(daemon, "_PID_S", LIMIT_S)
    with pytest.raises(MpsError, match="did not say its pid"):
        start(base, "no_pid", monkeypatch)
    assert machine.folders() == [] and not stand_ins()


def test_a_daemon_that_stops_answering_is_killed(base, machine, monkeypatch):
    running = start(base, "", monkeypatch)
    os.kill(running.record.daemon_pid, signal.SIGSTOP)
    monkeypatch.setattr(control, "_ANSWER_S", LIMIT_S)
    trouble = daemon.stop(running)
    assert "did not answer" in trouble[0] and "SIGKILL" in trouble[-1], trouble
    assert machine.folders() == [] and not stand_ins()


def test_an_owner_is_its_pid_and_start_time(base, machine, monkeypatch):
    running = start(base, "", monkeypatch)
    try:
        assert not running.record.is_orphan() and running.record.daemon_lives()
        with records.locked(base):
            assert daemon.clean(base) == []
        changed = records.Record(**{**vars(running.record), "owner_start": running.record.owner_start - 1})
        assert changed.is_orphan(), "the pid was given to another process"
        assert records.Record(**{**vars(running.record), "boot_id": "another"}).is_orphan()
    finally:
        assert daemon.stop(running) == []
    assert machine.folders() == []


def test_a_folder_without_a_record_is_removed(base, machine):
    (base / "12345678-1").mkdir()
    with records.locked(base):
        (line,) = daemon.clean(base)
    assert "it had no owner" in line and machine.folders() == []


def test_a_living_daemon_whose_record_is_gone_is_left_alone(base, machine, monkeypatch):
    """What tidies /tmp takes files that nobody has read for days, and leaves the daemon's sockets."""
    running = start(base, "", monkeypatch)
    record = running.folder / "owner.json"
    said = record.read_text()
    record.unlink()
    with records.locked(base):
        (line,) = daemon.clean(base)
    assert f"left alone, it does not say whose MPS processes {running.record.daemon_pid} are" in line
    record.write_text(json.dumps({**json.loads(said), "of_a_later_version": 1}))
    assert [found.record for found in daemon.find_all(base)] == [running.record]
    assert daemon.stop(running) == [] and machine.folders() == []


def test_a_job_ends_while_another_one_starts_daemons(base, machine, monkeypatch):
    """Which may take as long as a sick GPU takes to answer; who waits for its lock hears no signal."""
    ours = session.Session(True, print)
    ours._owned.append(start(base, "", monkeypatch))
    with records.locked(base):
        ours.stop()
    assert machine.folders() == []


def test_a_record_in_use_does_not_grow_old(base, machine):
    folder = records.make_folder(base, records.of_this_process(UUIDS[0], is_kept=False))
    for age_s, is_touched in ((60, False), (2 * 3600, True)):
        then = time.time() - age_s
        os.utime(folder / "owner.json", (then, then))
        records.refresh(folder)
        assert ((folder / "owner.json").stat().st_mtime > then + 1) == is_touched
    shutil.rmtree(folder)
    records.refresh(folder)  # it has been stopped meanwhile


class Clients:
    """Of a daemon that ends the work of some, refuses others, and at last says nothing more."""

    def __init__(self, answers):
        self.answers = answers

    def clients(self):
        return dict.fromkeys(self.answers, 1)

    def terminate_client(self, server, client):
        if self.answers[client] is not None:
            raise self.answers[client]


def test_one_client_that_is_refused_does_not_spare_the_others():
    gone, here = 1 << 30, os.getpid()
    answers = {gone: MpsError("no such client"), here: MpsError("not now"), 7: None, 8: None}
    assert daemon.terminate_work(Clients(answers), [gone, here, 8]) == ([8], ["not now"])
    answers = {7: None, here: control.MpsSilent("said nothing"), 8: None}
    assert daemon.terminate_work(Clients(answers), [7, here, 8]) == ([7], ["said nothing"])


def test_a_pid_of_an_earlier_boot_is_nobody_s(base, machine):
    """The daemon's number may be another process's now: ours, here."""
    record = records.of_this_process(UUIDS[0], is_kept=False)
    record = records.with_daemon(record, os.getpid())
    record = records.Record(**{**vars(record), "boot_id": "an earlier one"})
    folder = records.make_folder(base, record)
    assert daemon.stop(daemon.Daemon(folder, record)) == [] and machine.folders() == []


def test_a_base_that_others_can_write_to_is_refused(base):
    base.chmod(0o777)
    with pytest.raises(_core.UsageError, match="with mode 0700"):
        records.base_directory()


def test_a_folder_with_a_long_path_is_refused(monkeypatch, tmp_path):
    """The path of a Unix socket has 107 bytes at most."""
    monkeypatch.setenv("ACCDP_RUN_MPS_DIR", str(tmp_path / ("x" * 80)))
    with pytest.raises(_core.UsageError, match="^ACCDP_RUN_MPS_DIR: .* and 107 are the most: name a folder"):
        records.base_directory()


def test_logins_and_batch_jobs_have_one_folder(monkeypatch, tmp_path):
    found = set()
    for variables in ({}, {"XDG_RUNTIME_DIR": str(tmp_path)}, {"TMPDIR": str(tmp_path)}, {"ACCDP_RUN_MPS_DIR": ""}):
        with monkeypatch.context() as patch:
            for name in ("XDG_RUNTIME_DIR", "TMPDIR", "ACCDP_RUN_MPS_DIR"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            found.add(base := records.base_directory())
    with contextlib.suppress(OSError):
        base.rmdir()  # unless it is in use
    assert len(found) == 1


def test_the_daemons_of_another_host_are_left_alone(base, machine, monkeypatch):
    """It may share the folder's file system; its owners cannot be seen from here."""
    monkeypatch.setattr(records.socket, "gethostname", lambda: "elsewhere")
    there = records.base_directory()
    owner = records.Record(UUIDS[0], 1 << 22, 5, "another boot", is_kept=False)
    folder = records.make_folder(there, owner)
    monkeypatch.undo()
    monkeypatch.setenv("ACCDP_RUN_MPS_DIR", machine.env["ACCDP_RUN_MPS_DIR"])
    assert there != base and there.parent == base.parent
    assert daemon.clean(records.base_directory()) == [] and folder.exists()
    assert daemon.clean(there) and not folder.exists()


@pytest.mark.parametrize("trouble", [_core.UsageError("is somebody else's"), OSError(30, "Read-only file system")])
def test_no_folder_for_daemons(monkeypatch, trouble):
    """A reason as any other: the ranks go on without MPS, unless it must be."""

    def fail():
        raise trouble

    monkeypatch.setattr(records, "base_directory", fail)
    monkeypatch.setattr(session, "why_not", lambda *_: "")
    monkeypatch.setattr(session.daemons, "adopt_daemons", lambda: None)
    said: list[str] = []
    with session.session("auto", ["a GPU"], 2, said.append) as ours:
        assert ours is None and len(said) == 1 and str(trouble) in said[0]
    with pytest.raises(_core.UsageError, match="--mps on: "), session.session("on", ["a GPU"], 2, said.append):
        pass


def test_a_folder_that_cannot_be_made_is_told(machine, monkeypatch):
    there = machine.runtime / "none"
    monkeypatch.setenv("ACCDP_RUN_MPS_DIR", str(there))
    with pytest.raises(_core.UsageError, match=f"No such file or directory; ACCDP_RUN_MPS_DIR .* than {there} for it"):
        records.base_directory()


def test_a_folder_that_stays_is_told(base, monkeypatch):
    started = start(base, "", monkeypatch)

    def fail(folder):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(daemon.shutil, "rmtree", fail)
    with records.locked(base):
        assert daemon.stop(started) == [f"{started.folder} could not be removed: Read-only file system"]


def test_a_daemon_that_all_programs_find_is_somebody_elses(machine, monkeypatch, tmp_path):
    """As an administrator's: ranks are its clients without being told, and one of ours may find the GPU taken."""
    monkeypatch.setenv("PATH", machine.env["PATH"])
    monkeypatch.setattr(refusals, "_DEFAULT", str(tmp_path))
    monkeypatch.setattr(refusals, "foreign_servers", list)
    assert refusals.somebody_elses({}) == ""
    with subprocess.Popen(["nvidia-cuda-mps-control", "60"], executable="/bin/sleep") as theirs:
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{theirs.pid}\n")
        try:
            while not Path(f"/proc/{theirs.pid}/cmdline").read_bytes():  # it has begun, but not got its words yet
                time.sleep(0.001)
            assert f"an MPS daemon (pid {theirs.pid}) serves {tmp_path}" in refusals.somebody_elses({})
        finally:
            theirs.kill()
    assert refusals.somebody_elses({}) == ""
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # a number that is ours by now
    assert refusals.somebody_elses({}) == ""
    (tmp_path / "nvidia-cuda-mps-control.pid").unlink()
    os.mkfifo(tmp_path / "nvidia-cuda-mps-control.pid")  # that nobody writes to: any user may have put it there
    assert refusals.somebody_elses({}) == ""


def test_nvidia_s_tools_are_not_asked_all_the_time_for_a_rank_that_uses_no_gpu(monkeypatch):
    """Nor at all for those that have ended; that the daemon has died is seen all the same."""
    now, looks, lives = [0.0], [], [True]
    record = SimpleNamespace(daemon_lives=lambda: lives[0], is_kept=True, gpu=UUIDS[0], daemon_pid=7)
    idle = SimpleNamespace(record=record, control=lambda: SimpleNamespace(clients=dict))
    monkeypatch.setattr(attachment.gpus, "processes", lambda gpus: looks.append(now[0]) or {})
    monkeypatch.setattr(attachment, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watched = attachment.Attachment({UUIDS[0]: idle}, [0, 1], print)
    members = [attachment.Member(0, os.getpid(), SimpleNamespace(uuid=UUIDS[0]))]
    for _ in range(200):
        assert watched.watch(members) == ""
        watched._thread.join()
        now[0] += 0.5
    assert looks[:4] == [0.0, 0.5, 2.0, 4.0] and 40 < len(looks) < 60
    members.clear()
    for _ in range(100):
        assert watched.watch(members) == ""
        now[0] += 0.5
    assert looks[-1] < 100 and watched.missing() == [0, 1]
    lives[0] = False
    assert watched.watch(members) == f"the MPS daemon of {UUIDS[0]} (pid 7) has died"


@pytest.mark.parametrize("refusals", [2, 3])
def test_a_server_that_is_starting_may_refuse_to_answer_at_first(monkeypatch, refusals):
    answers = iter([MpsError("refused 'get_client_list 7'")] * refusals + [[]] * 2)

    class Starting:
        record = SimpleNamespace(daemon_lives=lambda: True, is_kept=True)

        def control(self):
            return self

        def clients(self):
            answer = next(answers)
            if isinstance(answer, MpsError):
                raise answer
            return answer

    monkeypatch.setattr(attachment.gpus, "processes", lambda gpus: {})
    watched = attachment.Attachment({UUIDS[0]: Starting()}, [0], print)
    said = []
    for _ in range(5):
        said.append(watched.watch([attachment.Member(0, os.getpid(), SimpleNamespace(uuid=UUIDS[0]))]))
        watched._thread.join()
    assert said == ([""] * 5 if refusals < 3 else [""] * 3 + ["refused 'get_client_list 7'"] * 2)


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_number_in_a_file_is_not_trusted(base, monkeypatch, boot):
    """The owner was killed before it had kept its daemon's pid, and the number has become another process's since."""
    record = records.Record(UUIDS[0], 1 << 22, 1, records.procfs.boot_id() if boot == "this" else boot, is_kept=False)
    folder = records.make_folder(base, record)
    with subprocess.Popen(["sleep", "60"]) as innocent:
        (folder / "pipe" / "nvidia-cuda-mps-control.pid").write_text(f"{innocent.pid}\n")
        try:
            with records.locked(base):
                daemon.clean(base)
            assert innocent.poll() is None
        finally:
            innocent.kill()
    assert not folder.exists()


def test_a_reader_that_leaves_costs_no_daemon(machine):
    """What is said of them at the end is not to be written, and they are stopped."""
    words = " ".join(
        [*ACCDP, "run", "-n", "2", "--mps", "on", "sh", "-c", "'echo x >&2; sleep 0.5; echo y >&2; sleep 60'"]
    )
    result = jobs.run(["sh", "-c", f"{words} 2>&1 >/dev/null | head -1"], env=machine.env)
    assert result.stdout in ("[0] x\n", "[1] x\n") and result.seconds < 50, str(result)
    started = [line for line in machine.journal() if line.startswith("started")]
    assert started and sum(line.startswith("ended") for line in machine.journal()) == len(started), machine.journal()
    assert not machine.folders()


def test_a_reader_that_does_not_read_costs_no_daemon(machine):
    read_end, write_end = os.pipe()
    try:
        command = [*ACCDP, "run", "-n", "2", "--mps", "on", "--", "sh", "-c", "yes >&2"]
        with subprocess.Popen(
            command, env=jobs.environment() | machine.env, stdout=subprocess.DEVNULL, stderr=write_end
        ) as process:
            try:
                assert os.read(read_end, 10)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 128 + signal.SIGTERM
            finally:
                process.kill()
    finally:
        os.close(read_end)
        os.close(write_end)
    assert "ended" in machine.journal()[-1] and not machine.folders(), machine.journal()
