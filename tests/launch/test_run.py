"""`accdp run` with real processes: what ranks are told, what is shown, how jobs end."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections import Counter

import jobs
import pytest
from running import ACCDP, act

from accdp_comm.launch.standard_input import is_for_others

RANK = str(jobs.TESTS / "launch" / "rank.py")
CORES = len(os.sched_getaffinity(0))


def run(*words: str, timeout: float = 60.0, env=None) -> jobs.Result:
    return jobs.run([*ACCDP, "run", *words], timeout=timeout, env=env)


def by_rank(result: jobs.Result) -> list[dict]:
    return sorted(result.reports, key=lambda report: int(report["RANK"]))


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_ranks_know_their_place_and_have_cores(launcher):
    result = run("--launcher", launcher, "-n", "3", RANK, "once")
    assert result.returncode == 0, str(result)
    told = by_rank(result)
    assert [(row["RANK"], row["WORLD_SIZE"], row["LOCAL_RANK"]) for row in told] == [
        (str(r), "3", str(r)) for r in range(3)
    ]
    assert len({(row["MASTER_ADDR"], row["MASTER_PORT"]) for row in told}) == 1
    assert len({row["pid"] for row in told}) == 3
    if CORES < 3:
        assert all(row["cpus"] == sorted(os.sched_getaffinity(0)) for row in told), "cores are shared"
    else:
        assert sum(len(row["cpus"]) for row in told) == len({cpu for row in told for cpu in row["cpus"]})


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_ranks_meet_in_torch(launcher, tmp_path):
    child = str(jobs.TESTS / "launch_child.py")
    result = run("--launcher", launcher, "-n", "2", child, env={"TMPDIR": str(tmp_path)})
    assert result.returncode == 0, str(result)
    assert list(tmp_path.iterdir()) == []
    assert [(row["rank"], row["size"]) for row in sorted(result.reports, key=lambda row: row["rank"])] == [
        (0, 2),
        (1, 2),
    ], str(result)


def test_binding_can_be_turned_off_and_threads_asked_for():
    result = run("--bind", "none", "-n", "1", RANK, "once", env={"OMP_NUM_THREADS": "7"})
    (told,) = result.reports
    assert told["cpus"] == sorted(os.sched_getaffinity(0)) and told["OMP_NUM_THREADS"] == "7", str(result)


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_two_ranks_have_different_cores():
    told = by_rank(run("-n", "2", RANK, "once"))
    assert not set(told[0]["cpus"]) & set(told[1]["cpus"]) and told[0]["cpus"] and told[1]["cpus"]


def test_a_profile_says_how_to_run(tmp_path):
    profile = {
        "ranks_per_gpu": None,
        "ranks": 2,
        "batch_size": 32,
        "workers": 0,
        "codec": "fpk",
        "script": [RANK, "once"],
    }
    (tmp_path / "p").write_text(json.dumps(profile))
    result = run("--profile", str(tmp_path / "p"))
    assert [(row["ACCDP_TUNED_BATCH_SIZE"], row["ACCDP_CODEC"]) for row in result.reports] == [("32", "fpk")] * 2


def test_modules_run_too():
    result = run("-n", "2", "-m", "json.tool", "--help")
    assert result.returncode == 0 and result.stdout.count("usage:") == 2, str(result)


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_standard_input_reaches_rank_0_whole(tmp_path, way):
    """Launchers that relay it lose more than some 64 KiB, or its end."""
    (tmp_path / "in").write_text("0123456789" * 50_000)
    command = " ".join([*ACCDP, "run", "-n", "2", RANK, "stdin"])
    given = f"{command} < {tmp_path}/in" if way == "file" else f"cat {tmp_path}/in | {command}"
    told = by_rank(jobs.run(["sh", "-c", given]))
    assert told[0]["stdin"] == "0123456789" * 50_000 and told[1]["stdin"] == ""


def test_other_ranks_find_the_end_of_standard_input():
    command = " ".join([*ACCDP, "run", "-n", "3", RANK, "stdin", "<", "/dev/null"])
    assert [told["stdin"] for told in jobs.run(["sh", "-c", command]).reports] == [""] * 3


@pytest.mark.parametrize("number", ["5", "7"])
def test_torchrun_is_not_told_of_an_mpi_around_it(number):
    result = run("-n", "2", "--launcher", "torchrun", RANK, "once", env={"PMI_FD": number, "PMI_RANK": "0"})
    assert result.returncode == 0 and len(result.reports) == 2, str(result)


def test_lines_stay_whole_and_in_order():
    result = run("-n", "4", RANK, "lines", "500")
    lines = [line.split() for line in result.stdout.splitlines() if not line.startswith("{")]
    assert Counter(line[0] for line in lines) == dict.fromkeys("0123", 500)
    assert all(len(line) == 3 and line[2] == "x" * 50 for line in lines)
    for rank in "0123":
        assert [int(line[1]) for line in lines if line[0] == rank] == list(range(500))
    errors = [line.split() for line in result.stderr.splitlines()]
    assert all(line[0] == f"[{line[1]}]" for line in errors) and len(errors) == 2000


def test_labels_on_request():
    result = run("--label", "always", "-n", "2", "sh", "-c", "echo out $RANK")
    assert sorted(result.stdout.splitlines()) == ["[0] out 0", "[1] out 1"]
    result = run("--label", "never", "-n", "2", "sh", "-c", "echo err $RANK >&2")
    assert sorted(result.stderr.splitlines()) == ["err 0", "err 1"]


def test_the_exit_code_is_the_rank_s_own():
    result = run("-n", "3", RANK, "exit", "42")
    assert result.returncode == 42, str(result)
    assert "accdp run: rank 1 (pid" in result.stderr.splitlines()[-1] and "ended with status 42" in result.stderr
    assert result.seconds < 15, "the others were told to end"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("behaviour", "code"), [("raise_in_mpi", 1), ("exit_in_mpi", 7)])
def test_so_it_is_where_the_launcher_ends_the_job(ranks, behaviour, code):
    """mpiexec kills what it has started when a rank leaves MPI so, before that one has ended."""
    result = run("-n", str(ranks), RANK, behaviour)
    assert result.returncode == code, str(result)
    last = [line for line in result.stderr.splitlines() if line.startswith("accdp run: ")][-1]
    assert last.startswith("accdp run: rank 1 (pid") and f"ended with status {code}" in last, str(result)
    if code == 1 and not last.endswith("its error stands above"):
        assert result.stderr.rstrip().endswith("ValueError: rank 1 has had enough"), str(result)


def test_so_it_is_behind_much_output():
    result = run("-n", "2", RANK, "exit_saying", "42")
    assert result.returncode == 42 and "ended with status 42" in result.stderr, str(result)[-2000:]


def test_a_rank_killed_by_a_signal_for_real_time_is_named():
    program = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 40); time.sleep(20)"
    result = run("-n", "2", "--", sys.executable, "-c", program)
    assert result.returncode == 128 + 40 and "was killed by signal 40" in result.stderr, str(result)


def test_a_rank_killed_by_a_signal_is_named():
    result = run("-n", "2", "sh", "-c", "[ $RANK = 0 ] && kill -SEGV $$; sleep 100")
    assert result.returncode == 128 + signal.SIGSEGV, str(result)
    assert "was killed by SIGSEGV" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "label"),
    [("0.7", ""), ("0.7", "[rank7]: "), ("30", "")],
    ids=["the-first-leaves-last", "with-the-label-of-torch", "the-first-has-to-be-ended"],
)
def test_the_first_error_is_shown_last_and_by_itself(seconds, label, tmp_path):
    shown = tmp_path / "shown"
    command = ["run", "-n", "3", RANK, "fail_slowly", "2", str(shown), seconds, label]
    result = act(command, 3, lambda *_: shown.touch(), {}, marker="the cause")
    lines = result.stderr.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("accdp run: rank 2 "))
    assert lines[start].endswith("this is its error:"), str(result)
    assert [line.strip() for line in lines[start + 1 :]] == ["Traceback (most recent call last):", "the cause"]


def test_an_error_that_already_stands_last_is_not_repeated():
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("Open MPI's mpirun writes a report of its own after it")
    result = run("-n", "2", RANK, "fail", "1")
    assert result.returncode == 1 and result.stderr.count("ValueError: rank 1 has had enough") == 1, str(result)
    assert result.stderr.splitlines()[-1].endswith("ended with status 1; its error stands above"), str(result)


def test_ranks_that_left_before_the_first_failure_are_named(tmp_path):
    result = run("-n", "3", RANK, "missed", str(tmp_path / "left"))
    assert result.returncode == 1, str(result)
    assert "ended with status 1 (after rank 1 with status 0); " in result.stderr, str(result)
    assert "(after rank" not in run("-n", "2", RANK, "fail", "1").stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_everything_quickly(number):
    result = act(["run", "-n", "3", RANK, "parent"], 3, lambda process, _: process.send_signal(number), {})
    assert result.returncode == 128 + number, str(result)
    assert f"ended by {signal.Signals(number).name}" in result.stderr and result.seconds < 10, str(result)


def test_ctrl_c_comes_to_scripts_as_without_a_launcher(tmp_path):
    """They save what they have, in the grace period; so does one run by a shell, which does not end by SIGINT."""
    by_shell = ["--", "sh", "-c", f"{sys.executable} {RANK} saves {tmp_path}; exit 0"]
    for words in ([RANK, "saves", str(tmp_path)], by_shell):
        result = act(["run", "-n", "2", *words], 2, lambda process, _: process.send_signal(signal.SIGINT), {})
        assert result.returncode == 128 + signal.SIGINT and "ended by SIGINT" in result.stderr, str(result)
        assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"], str(result)
        for path in tmp_path.glob("saved.*"):
            path.unlink()


def test_who_does_not_heed_ctrl_c_is_told_to_terminate():
    result = act(["run", "--grace", "1", "-n", "2", RANK, "deaf"], 2, lambda p, _: p.send_signal(signal.SIGINT), {})
    assert result.returncode == 128 + signal.SIGINT and result.seconds < 10, str(result)
    assert [report["told"] for report in result.reports if "told" in report] == [signal.SIGTERM] * 2, str(result)


def test_nohup(tmp_path):
    rank = f"'touch {tmp_path}/$RANK; until [ -e {tmp_path}/go_on ]; do sleep 0.1; done; touch {tmp_path}/after.$RANK'"
    ranks = ["nohup", *ACCDP, "run", "-n", "2", "--", "sh", "-c", rank, "&"]
    until_they_run = f"until [ -e {tmp_path}/0 -a -e {tmp_path}/1 ]; do sleep 0.1; done"
    hang_up = f"kill -HUP $! && sleep 2 && touch {tmp_path}/go_on; wait $!"
    result = jobs.run(["bash", "-c", f"{' '.join(ranks)} {until_they_run}; {hang_up}"])
    assert result.returncode == 0 and len(list(tmp_path.glob("after.*"))) == 2, str(result)


def test_a_closed_terminal_ends_the_job():
    """Nothing can be written to it any more; the job still ends in order, by SIGHUP."""
    ours, theirs = os.openpty()
    command = [*ACCDP, "run", "-n", "2", RANK, "wait"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_own_terminal)
    os.close(theirs)
    said = b""
    while said.count(b'"pid"') < 2:
        said += os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(timeout=30) == 128 + signal.SIGHUP


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_period():
    argv = ["run", "--grace", "0.5", "-n", "2", RANK, "stubborn"]
    result = act(argv, 2, lambda process, _: process.send_signal(signal.SIGTERM), {})
    assert result.returncode == 128 + signal.SIGTERM and 0.5 <= result.seconds < 10, str(result)


def test_a_second_ctrl_c_ends_the_grace_period():
    def insist(process, _):
        process.send_signal(signal.SIGUSR2)  # passed on, and not counted as a first Ctrl-C
        for _ in range(30):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.3)  # two signals at once are one

    result = act(["run", "--grace", "600", "-n", "2", RANK, "stubborn"], 2, insist, {})
    assert result.returncode == 128 + signal.SIGINT and result.seconds < 15, str(result)


def test_who_insists_does_not_change_the_exit_code():
    """Also where a signal comes when Python shuts down: it would end by it then."""

    def insist(process, _):
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.0005)

    for _ in range(3):
        result = act(["run", "-n", "1", RANK, "wait"], 1, insist, {})
        assert result.returncode == 128 + signal.SIGINT, str(result)


def test_other_signals_are_passed_on():
    result = act(["run", "-n", "2", RANK, "usr1"], 2, lambda process, _: process.send_signal(signal.SIGUSR1), {})
    assert result.returncode in (40, 41), str(result)


def test_ranks_end_when_the_launcher_is_killed():
    result = act(["run", "--grace", "1", "-n", "2", RANK, "parent"], 2, lambda process, _: process.kill(), {})
    assert result.returncode == -signal.SIGKILL


def test_ranks_that_write_end_when_the_launcher_is_killed():
    """Who finds the connection gone is the guard that passes on what its rank writes."""
    reading, writing = os.pipe()
    token = {"TEST_JOB_TOKEN": f"chatty-{os.getpid()}"}
    command = [*ACCDP, "run", "--grace", "1", "-n", "2", "yes"]
    process = subprocess.Popen(command, env=jobs.environment(**token), stdout=writing, stderr=subprocess.DEVNULL)
    try:
        assert not jobs.until_empty(lambda: select.select([], [writing], [], 0)[1], 30.0), "the pipe never filled up"
    finally:
        process.kill()
        process.wait(60.0)
        os.close(reading)
        os.close(writing)
        stayed = jobs.until_empty(lambda: jobs._carrying(token["TEST_JOB_TOKEN"]))
        jobs.kill(stayed)
    assert not stayed


def test_what_ranks_leave_running_is_ended():
    result = run("-n", "2", RANK, "leaving")
    assert result.returncode == 0, str(result)  # jobs.run has looked for processes that stayed


def test_a_reader_that_leaves_ends_the_job():
    command = " ".join([*ACCDP, "run", "-n", "2", "yes", "|", "head", "-1"])
    result = jobs.run(["sh", "-c", command])
    assert result.stdout == "y\n" and result.seconds < 20, str(result)


def test_a_full_disk_ends_the_job():
    result = jobs.run(["sh", "-c", " ".join([*ACCDP, "run", "-n", "2", "yes", ">", "/dev/full"])])
    assert result.returncode == 1 and result.seconds < 20, str(result)
    said = "accdp run: standard output cannot be written to: No space left on device\n"
    is_all = not jobs.is_open_mpi(jobs.find_mpiexec())  # which says that it was ended
    assert result.stderr == said if is_all else result.stderr.endswith(said), str(result)


def test_a_reader_that_does_not_read_does_not_keep_the_job_from_ending():
    """Ranks write more than all pipes take: guards wait for `accdp run`, and it for its reader."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*ACCDP, "run", "--grace", "1", "-n", "2", "yes"],
        env=jobs.environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert not jobs.until_empty(lambda: select.select([], [writing], [], 0)[1], 30.0), "the pipe never filled up"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20.0) == 128 + signal.SIGTERM
        assert "ended by SIGTERM" in process.stderr.read()
    finally:
        os.close(reading)
        os.close(writing)
        process.wait(60.0)
        process.stderr.close()


LEAVES = """
import os, time
from accdp_comm import mpi_world
rank, _ = mpi_world.enter_launched(30.0)
if rank == 1: os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_standard_stream_that_is_closed_is_nobody_s(stream):
    command = [*ACCDP, "run", "-n", "1", "sh", "-c", "echo out; echo err >&2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=lambda: os.close(stream))
    expected = ["", "out\n", "err\n"]
    expected[stream] = ""
    assert [done.returncode, done.stdout, done.stderr] == [0, *expected[1:]]


def test_a_rank_that_leaves_mpi_s_world_open_ends_the_job(tmp_path):
    """mpiexec sees it, and ends the others by SIGKILL: it hits the stubs, and the guards end the ranks."""
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("Open MPI's mpirun waits for the others")
    (tmp_path / "leaves.py").write_text(LEAVES)
    result = run("-n", "3", str(tmp_path / "leaves.py"))
    assert result.returncode != 0 and "a rank left without MPI_Finalize" in result.stderr.splitlines()[-1], str(result)


def test_a_program_that_cannot_start_is_said():
    result = run("-n", "2", "/dev/null")
    assert result.returncode == 2 and "neither a Python script (*.py) nor a program" in result.stderr, str(result)


# A launcher that starts nothing, and less patience than a user's.
IMPATIENT = """
import sys
from accdp_comm import cli
from accdp_comm.launch import job
job._PATIENCE_S = 0.2
sys.exit(cli.main(["run", "--launcher", "srun", "-n", "3", "true"]))
"""


def test_who_waits_for_ranks_to_start_hears_how_many_have(tmp_path):
    said = tmp_path / "said"
    jobs.write_program(tmp_path / "srun", f"until grep 'has started 0 of 3 ranks' {said}; do sleep 0.1; done", "exit 7")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = f"exec '{sys.executable}' -c '{IMPATIENT}' 2> {said}"
    result = jobs.run(["sh", "-c", command], env={"PATH": path})
    assert result.returncode == 7 and "accdp run: srun has started 0 of 3 ranks\n" in said.read_text(), str(result)


LINGERING = """
import sys
from accdp_comm import cli
from accdp_comm.launch import job, programs
job._LAUNCHER_END_S = 0.5
programs.find_mpiexec = lambda family: sys.argv[1]
sys.exit(cli.main(["run", "--launcher", "mpiexec", "-n", "2", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(("command", "status"), [(["true"], 0), (["sh", "-c", "exit 3"], 3)])
def test_a_launcher_that_outstays_its_ranks_does_not_decide_how_they_ended(tmp_path, command, status):
    """As srun does behind a slow epilog."""
    launcher = tmp_path / "mpiexec"
    jobs.write_program(launcher, f'{jobs.mpiexec_command(1)[0]} "$@"', "exec sleep 60")
    result = jobs.run([sys.executable, "-c", LINGERING, str(launcher), *command])
    assert result.returncode == status, str(result)
    assert ("mpiexec did not end after its ranks, and was ended" in result.stderr) == (status == 0), str(result)


def test_an_empty_name_of_a_profile_is_none_that_is_there():
    """As of a variable that is not set, which would else be passed over."""
    result = jobs.run([sys.executable, "-m", "accdp_comm", "run", "-n", "1", "--profile", "", "true"])
    assert result.returncode == 2 and "--profile : No such file or directory" in result.stderr, str(result)


def test_profile_or_number_is_needed():
    result = jobs.run([sys.executable, "-m", "accdp_comm", "run", RANK])
    assert result.returncode == 2 and "one of -n/--ranks" in result.stderr


def test_the_background_of_a_terminal_is_known():
    """What is typed there is for the shell; a launcher in a session of its own would be handed it."""
    pid, terminal = pty.fork()
    if pid == 0:  # leads the session, in the foreground
        is_known = not is_for_others()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os._exit(17 if is_for_others() else 0)
        os._exit(0 if is_known and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
