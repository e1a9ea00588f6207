"""Ownership of MPS, over stand-ins of NVIDIA's programs: start, verify, crash, clean-up, faults, strangers, refusals.

The journal is what the stand-in daemons saw: ``lost PID`` in it is a client that was killed with work under way.
"""

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from running import ACCDP, act
from stand_in_machine import UUIDS

RANK = str(jobs.TESTS / "launch" / "mps_rank.py")
ONE_GPU = ["--gpus", "0", "--ranks-per-gpu", "2"]


def run(machine, *words: str, **env: str) -> jobs.Result:
    return jobs.run([*ACCDP, "run", *words], env=machine.env | env)


def mps(machine, *words: str) -> jobs.Result:
    """`accdp mps`; its daemons may stay."""
    done = subprocess.run(
        [*ACCDP, "mps", *words], env=jobs.environment() | machine.env, capture_output=True, text=True, timeout=60
    )
    return jobs.Result(done.returncode, done.stdout, done.stderr, 0.0)


def assert_clean(machine, started: int) -> None:
    """So many daemons were started; all have ended after their clients, none of which was killed in its work."""
    journal = machine.journal()
    assert sum(line.startswith("started") for line in journal) == started, journal
    assert sum(line.startswith("ended") for line in journal) == started, journal
    assert not [line for line in journal if line.startswith("lost")], journal
    assert all(line == "quit with 0 clients" for line in journal if line.startswith("quit")), journal
    assert machine.folders() == []


def terminate(process, reports):
    process.send_signal(signal.SIGTERM)


def test_ranks_share_gpus_through_daemons_of_their_own(machine):
    result = run(machine, "--ranks-per-gpu", "2", RANK, "once")
    assert result.returncode == 0, str(result)
    told = sorted(result.reports, key=lambda row: row["RANK"])
    assert [row["CUDA_VISIBLE_DEVICES"] for row in told] == [UUIDS[0]] * 2 + [UUIDS[1]] * 2
    assert [(row["LOCAL_RANK"], row["ACCDP_RANKS_PER_GPU"]) for row in told] == [("0", "2")] * 4
    assert len({row["CUDA_MPS_PIPE_DIRECTORY"] for row in told}) == 2
    assert {row["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for row in told} == {"0=38912M"}
    assert_clean(machine, 2)


def test_attachment_is_verified_and_folders_are_private(machine):
    modes = {}

    def look(process, reports):
        for report in reports:
            folder = Path(report["CUDA_MPS_PIPE_DIRECTORY"])
            modes.update(
                (path, stat.S_IMODE(path.stat().st_mode)) for path in (folder, folder.parent, folder.parent.parent)
            )
        terminate(process, reports)

    act(["run", "--mps", "on", *ONE_GPU, RANK, "work"], 2, look, machine.env, "MPS: all 2 ranks are attached")
    assert set(modes.values()) == {0o700}
    assert_clean(machine, 1)


def test_daemons_get_none_of_the_users_settings(machine):
    """Those of a script for a daemon of its own: its protocol, which has other commands, and a limit for all."""
    result = run(machine, *ONE_GPU, RANK, "once", CUDA_MPS_PROTOCOL_VERSION="3", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="5")
    assert result.returncode == 0 and "no MPS is started" not in result.stderr, str(result)
    assert [row["daemon_leaves"] for row in result.reports] == ["100", "100"], str(result)
    assert_clean(machine, 1)


def test_options_override_the_shares(machine):
    words = ["--thread-percentage", "30", "--memory-limit", "2g", *ONE_GPU]
    result = run(machine, *words, RANK, "once")
    assert {
        (row["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], row["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]) for row in result.reports
    } == {("30", "0=2048M")}


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_rank_outside_mps_is_found(machine, mode):
    """With `on` the job ends; with `auto` it is said once, and the job runs until it is told to stop."""
    words = ["--mps", mode, *ONE_GPU, "--grace", "1", RANK, "outside"]
    if mode == "on":
        result = run(machine, *words)
        assert result.returncode == 1, str(result)
    else:
        result = act(["run", *words], 2, terminate, machine.env, "uses its GPU without MPS")
    assert result.stderr.count("rank 0, 1 uses its GPU without MPS") == 1, str(result)
    assert_clean(machine, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_clients_end_before_their_daemon(machine, number):
    result = act(
        ["run", "--ranks-per-gpu", "1", "--mps", "on", RANK, "work"], 2, lambda p, _: p.send_signal(number), machine.env
    )
    assert result.returncode == 128 + number, str(result)
    assert "terminate_client" not in "".join(machine.journal()), "SIGTERM was enough"
    assert_clean(machine, 2)


def test_a_stubborn_client_is_terminated_before_it_is_killed(machine):
    result = act(["run", "--grace", "0.5", *ONE_GPU, RANK, "stubborn"], 2, terminate, machine.env)
    assert result.returncode == 128 + signal.SIGTERM, str(result)
    assert sum(line.startswith("terminate_client") for line in machine.journal()) == 2
    assert_clean(machine, 1)


@pytest.mark.parametrize("how", ["told", "below a shell", "killed"])
def test_a_client_that_sigterm_ends_at_once_has_no_work_then(machine, how):
    """Most scripts handle no SIGTERM."""
    words = [sys.executable, RANK, "plain"]
    if how == "below a shell":
        words = ["sh", "-c", f"{shlex.join(words)}; :"]
    if how == "killed":
        act(["run", *ONE_GPU, "--", *words], 2, lambda process, _: process.kill(), machine.env | REAPED)
        mps(machine, "clean")
    else:
        result = act(["run", *ONE_GPU, "--", *words], 2, terminate, machine.env)
        assert result.returncode == 128 + signal.SIGTERM and result.seconds < 20, str(result)
    assert sum(line.startswith("terminate_client") for line in machine.journal()) == 2, machine.journal()
    assert_clean(machine, 1)


@pytest.mark.parametrize("behaviour", ["slow", "stubborn"])
def test_a_program_below_a_shell_has_the_grace_of_a_rank(machine, behaviour):
    """The shell ends by SIGTERM at once. Its program is told then; a client that does not end is not merely killed."""
    words = ["sh", "-c", f"{shlex.join([sys.executable, RANK, behaviour])}; :"]
    grace = "20" if behaviour == "slow" else "1"
    result = act(["run", "--grace", grace, *ONE_GPU, "--", *words], 2, terminate, machine.env)
    assert result.returncode == 128 + signal.SIGTERM, str(result)
    assert 2 < result.seconds < 20 if behaviour == "slow" else result.seconds > 1, str(result)
    asked = sum(line.startswith("terminate_client") for line in machine.journal())
    assert asked == (0 if behaviour == "slow" else 2), machine.journal()
    assert_clean(machine, 1)


def test_all_clients_of_a_rank_are_terminated_before_one_is_killed(machine):
    """The rank ends when its own work was; its child's has its turn still, before the helper has ended."""
    child = shlex.join([sys.executable, RANK, "stubborn"])
    script = f"{child} & exec {shlex.join([sys.executable, RANK, 'deaf'])}"
    result = act(
        ["run", "--grace", "1", *ONE_GPU, "-n", "1", "--mps", "on", "--", "sh", "-c", script], 2, terminate, machine.env
    )
    assert result.returncode, str(result)
    assert sum(line.startswith("terminate_client") for line in machine.journal()) == 2, machine.journal()
    assert_clean(machine, 1)


def test_what_a_rank_leaves_running_is_not_merely_killed(machine):
    """It ends in order, and has a client of MPS in the background that takes no SIGTERM."""
    words = [
        "sh",
        "-c",
        f"{shlex.join([sys.executable, RANK, 'stubborn'])} & while ! grep -q client $STAND_IN_JOURNAL;",
    ]
    words[-1] += " do sleep 0.1; done"
    result = run(machine, *ONE_GPU, "-n", "1", "--mps", "on", "--", *words)
    assert result.returncode == 0, str(result)
    assert sum(line.startswith("terminate_client") for line in machine.journal()) == 1, machine.journal()
    assert_clean(machine, 1)


def test_terminate_tells_what_it_did_with_each_process(machine):
    said = {}

    def end_one(process, reports):
        client = next(report["pid"] for report in reports if report["RANK"] == "0")
        words = [str(client), str(os.getpid())]
        said.update(pid=client, loud=mps(machine, "terminate", *words), quiet=mps(machine, "terminate", "-q", *words))
        terminate(process, reports)

    act(["run", *ONE_GPU, RANK, "work"], 2, end_one, machine.env)
    assert (said["loud"].returncode, said["quiet"].returncode) == (0, 0), str(said)
    assert said["loud"].stdout == (
        f"{said['pid']}: its work on {UUIDS[0]} was ended\n"
        f"{os.getpid()}: nothing to end, for it is no client of a daemon of `accdp mps status`\n"
    )
    assert said["quiet"].stdout == ""
    assert_clean(machine, 1)


def test_a_failing_rank_takes_others_that_handle_no_signal_along_safely(machine):
    fail = f"{shlex.join([sys.executable, RANK])} $([ $RANK = 1 ] && echo fail || echo plain)"
    result = run(machine, *ONE_GPU, "--", "sh", "-c", f"exec {fail}")
    assert result.returncode == 1 and "ValueError: rank 1 has had enough" in result.stderr, str(result)
    assert sum(line.startswith("terminate_client") for line in machine.journal()) == 1, machine.journal()
    assert_clean(machine, 1)


def test_a_failing_rank_takes_the_others_along_safely(machine):
    result = run(machine, *ONE_GPU, RANK, "fail")
    assert result.returncode == 1 and "ValueError: rank 1 has had enough" in result.stderr, str(result)
    assert_clean(machine, 1)


def test_a_crashed_owner_is_cleaned_up_after_by_the_next_run(machine):
    act(["run", "--grace", "1", *ONE_GPU, RANK, "work"], 2, lambda process, _: process.kill(), machine.env | REAPED)
    (left,) = machine.folders()
    status = mps(machine, "status")
    assert status.returncode == 1 and "orphaned: accdp mps clean" in status.stdout, str(status)
    result = run(machine, *ONE_GPU, RANK, "once")
    assert result.returncode == 0 and f"{left}: stopped and removed, its owner" in result.stderr, str(result)
    assert_clean(machine, 2)


# Daemons are not looked for when a test asks what stayed: they lose the mark that the processes of a test carry.
REAPED = {"STAND_IN_DAEMON_DROPS": "LAUNCH_TEST_TOKEN"}


def test_clean_stops_what_a_crash_left(machine):
    act(["run", "--grace", "1", *ONE_GPU, RANK, "work"], 2, lambda process, _: process.kill(), machine.env | REAPED)
    result = mps(machine, "clean")
    assert result.returncode == 0 and "stopped and removed, its owner" in result.stdout, str(result)
    assert_clean(machine, 1)
    assert mps(machine, "clean").stdout == "nothing to clean\n"


def test_a_dead_daemon_s_folder_and_server_are_cleaned(machine):
    act(["run", "--grace", "1", *ONE_GPU, RANK, "work"], 2, lambda process, _: process.kill(), machine.env | REAPED)
    (row,) = json.loads(mps(machine, "status", "--json").stdout)
    os.kill(row["daemon"], signal.SIGKILL)
    assert "stopped and removed" in mps(machine, "clean").stdout
    assert machine.folders() == [] and not servers(row["pipe_directory"])


def servers(pipe: str) -> list[int]:
    def is_server(pid: int) -> bool:
        try:
            found = Path("/proc", str(pid), "environ").read_bytes()
        except OSError:
            return False
        return f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in found

    return list(jobs.until_empty(lambda: jobs.living(is_server)))


def test_kept_daemons_serve_several_runs_until_they_are_stopped(machine):
    started = mps(machine, "start", "--gpus", "1")
    try:
        assert started.returncode == 0 and f"CUDA_VISIBLE_DEVICES={UUIDS[1]}" in started.stdout, str(started)
        assert mps(machine, "start", "--gpus", "1").returncode == 0, "again does no harm"
        for _ in range(2):
            assert run(machine, "--gpus", "1", "--ranks-per-gpu", "2", RANK, "once").returncode == 0
        status = json.loads(mps(machine, "status", "--json").stdout)
        assert [(row["gpu"], row["owner"], row["state"]) for row in status] == [(UUIDS[1], "kept", "ok")]
        assert mps(machine, "clean").stdout == "nothing to clean\n"
        # One rank per GPU, too: several jobs may share it. Nor is the line that start prints in the way.
        pipe = status[0]["pipe_directory"]
        for ranks, env in (("1", {}), ("2", {"CUDA_MPS_PIPE_DIRECTORY": pipe})):
            words = ["--gpus", "1", "-n", ranks, "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"]
            result = run(machine, *words, **env)
            assert result.stdout == f"{pipe}\n" * int(ranks) and "somebody else" not in result.stderr, str(result)
    finally:
        assert mps(machine, "stop").stdout == "stopped 1 daemons\n"
    assert_clean(machine, 1)
    assert mps(machine, "status").stdout == "no daemons\n"


def test_who_stops_a_kept_daemon_is_told_whose_work_ends(machine):
    assert mps(machine, "start", "--gpus", "0").returncode == 0
    said = {}

    def stop(_, reports):
        said.update(pids=sorted(report["pid"] for report in reports), stop=mps(machine, "stop"))

    act(["run", *ONE_GPU, RANK, "plain"], 2, stop, machine.env)
    clients = " ".join(map(str, said["pids"]))
    assert said["stop"].stdout == f"ends its clients on {UUIDS[0]}: {clients}\nstopped 1 daemons\n", str(said["stop"])
    assert_clean(machine, 1)


def test_another_job_on_the_gpu_is_told(machine):
    said = {}

    def begin_another(process, _):
        said.update(result=run(machine, *ONE_GPU, RANK, "once"), pid=process.pid)
        terminate(process, _)

    act(["run", *ONE_GPU, RANK, "work"], 2, begin_another, machine.env)
    wanted = f"MPS: GPU 0 is used by another job of yours (pid {said['pid']}), too"
    assert said["result"].returncode == 0 and said["result"].stderr.count(wanted) == 1, str(said["result"])
    assert_clean(machine, 2)


REFUSALS = {
    "MIG": (("Disabled", "Enabled"), {}, "is divided by MIG"),
    "pre-Volta": ((" 9.0,", " 6.0,"), {}, "before 7.0 (Volta)"),
    "another's pipe": (None, {"CUDA_MPS_PIPE_DIRECTORY": "/somewhere"}, "somebody else runs MPS for this job"),
    "does not start": (None, {"STAND_IN_FAULT": "no_start"}, "failed with status 1; its log ends: [Control] Failed"),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_where_mps_cannot_be_used(machine, name, mode):
    """An error with `on`; with `auto` one warning, and the ranks run without."""
    edit, env, message = REFUSALS[name]
    if edit:
        machine.edit_gpus(*edit)
    result = run(machine, "--mps", mode, *ONE_GPU, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", **env)
    assert result.stderr.count(message) == 1, str(result)
    assert (result.returncode, result.stdout) == ((2, "") if mode == "on" else (0, f"{UUIDS[0]}\n" * 2)), str(result)
    assert machine.folders() == []


def test_without_the_program(machine):
    machine.env["PATH"] = machine.env["PATH"].replace(str(jobs.TESTS / "launch" / "stand_ins"), str(only_smi(machine)))
    result = run(machine, "--mps", "on", *ONE_GPU, "true")
    assert result.returncode == 2 and "nvidia-cuda-mps-control is not in PATH" in result.stderr, str(result)


def only_smi(machine) -> Path:
    folder = machine.folder / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").symlink_to(jobs.TESTS / "launch" / "stand_ins" / "nvidia-smi")
    return folder


def test_too_many_clients(machine):
    result = run(machine, "--mps", "on", "--gpus", "0", "--ranks-per-gpu", "49", "true")
    assert result.returncode == 2 and "MPS takes 48 clients (driver for CUDA 13.0)" in result.stderr, str(result)


def test_part_of_a_gpu_is_not_shared_out(machine):
    result = run(machine, *ONE_GPU, "true", CUDA_VISIBLE_DEVICES="MIG-1234")
    assert result.returncode == 2 and "CUDA_VISIBLE_DEVICES=MIG-1234 names a part of a GPU" in result.stderr, str(
        result
    )


def test_off_touches_nothing(machine):
    result = run(
        machine, "--mps", "off", *ONE_GPU, "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY", CUDA_MPS_PIPE_DIRECTORY="/x"
    )
    assert result.stdout == "/x\n" * 2, str(result)
    assert not list(machine.runtime.iterdir()) and machine.journal() == []


def test_a_rank_alone_on_its_gpu_needs_no_mps(machine):
    result = run(machine, "-n", "2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert sorted(result.stdout.split()) == list(UUIDS), str(result)
    assert machine.journal() == []


def test_a_full_server_s_refusal_is_the_rank_s_error(machine):
    result = run(machine, *ONE_GPU, RANK, "once", STAND_IN_FAULT="full")
    assert result.returncode == 1 and "cudaErrorMpsMaxClientsReached" in result.stderr, str(result)
    assert machine.folders() == []


def test_a_daemon_that_dies_ends_the_job(machine):
    result = run(machine, "--mps", "on", *ONE_GPU, RANK, "survivor", STAND_IN_FAULT="die_on_client")
    assert result.returncode == 1 and "has died" in result.stderr, str(result)
    assert machine.folders() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("on", [(), (0, 1), (1,)])
def test_another_user_s_server_is_refused(machine, on):
    """Unless it is seen to serve other GPUs alone."""
    machine.without_others()
    command = ["nvidia-cuda-mps-server", "1000"]
    stranger = subprocess.Popen(command, executable=shutil.which("sleep"), user=65534, cwd="/")
    try:
        for gpu in on:
            (machine.folder / "on" / UUIDS[gpu]).mkdir(parents=True)
            (machine.folder / "on" / UUIDS[gpu] / str(stranger.pid)).touch()
        result = run(machine, "--mps", "on", *ONE_GPU, "true")
        is_told = f"user 65534 runs an MPS server (pid {stranger.pid})" in result.stderr
        assert (result.returncode, is_told) == ((0, False) if on == (1,) else (2, True)), str(result)
    finally:
        stranger.kill()
        stranger.wait()
