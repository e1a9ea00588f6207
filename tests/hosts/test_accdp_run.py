"""`accdp run --hosts` from a login node: ranks on two hosts, each with a GPU there, and failures across hosts."""

import os
import shutil
import sys
import tempfile
import time

import jobs
import pytest

ACCDP_RUN = [sys.executable, "-m", "accdp_comm", "run"]
STAND_INS = jobs.TESTS / "launch" / "stand_ins"
SECONDS = 90.0


@pytest.fixture
def places(two_hosts, mpich_launcher, tmp_path) -> list[str]:
    """The option that names both hosts, with two ranks each."""
    path = tmp_path / "hosts"
    path.write_text("".join(f"{address}:2\n" for address in two_hosts.addresses))
    return ["--hosts", str(path)]


def test_a_group_over_two_hosts(two_hosts, places):
    script = str(jobs.TESTS / "launch_child.py")
    result = two_hosts.login([*ACCDP_RUN, *places, script], {"UCX_TLS": "tcp,self"}, SECONDS)
    assert result.returncode == 0, str(result)
    assert [row["hosts"] for row in result.reports] == [["node0", "node0", "node1", "node1"]] * 4, str(result)


@pytest.mark.parametrize("failing", [("0=is_killed",), ("1=raises", "2=is_killed"), ("2=exits", "3=exits")], ids=str)
def test_those_that_live_go_on(two_hosts, places, failing):
    """Rank 0 may be among the dead, and a whole host's ranks but one."""
    script = str(jobs.TESTS / "launch" / "keep_going_rank.py")
    command = [*ACCDP_RUN, "--keep-going", *places, script, *failing]
    result = two_hosts.login(command, {"UCX_TLS": "tcp,self"}, SECONDS)
    assert result.returncode == 0, str(result)
    gone = {int(word[0]) for word in failing}
    living = [rank for rank in range(4) if rank not in gone]
    bits = sum(1 << rank for rank in living)
    told = sorted((report["rank"], report["place"], report["bits"]) for report in result.reports)
    assert told == [(rank, [place, len(living)], bits) for place, rank in enumerate(living)], str(result)
    for rank in gone:
        assert f"accdp run: rank {rank} (pid " in result.stderr, str(result)


def test_each_rank_gets_a_gpu_of_its_own_host(two_hosts, places, tmp_path):
    """Every host lists the same two stand-ins; the login node's are none of the job's."""
    rows = "".join(f"{i}, GPU-{i}, Stand-in, 81920, 9.0, Disabled, 00000000:0{i}:00.0\n" for i in range(2))
    (tmp_path / "gpus.csv").write_text(rows)
    env = {"PATH": f"{STAND_INS}{os.pathsep}{os.environ['PATH']}", "STAND_IN_GPUS": str(tmp_path)}
    script = "echo $RANK $(hostname) $CUDA_VISIBLE_DEVICES $LOCAL_RANK $ACCDP_LOCAL_RANK"
    result = two_hosts.login([*ACCDP_RUN, "--ranks-per-gpu", "1", *places, "sh", "-c", script], env, SECONDS)
    found = sorted(line.split() for line in result.stdout.splitlines())
    wanted = [[str(rank), f"node{rank // 2}", f"GPU-{rank % 2}", "0", str(rank % 2)] for rank in range(4)]
    assert found == wanted, str(result)


def test_a_host_whose_gpus_cannot_be_listed_is_named(two_hosts, places, tmp_path):
    (tmp_path / "gpus.csv").write_text("0, GPU-0, Stand-in, 81920, 9.0, Disabled, 00000000:00:00.0\n")
    fails = '[ "$(hostname)" = node1 ] && echo NVIDIA-SMI has failed && exit 9'
    jobs.write_program(tmp_path / "nvidia-smi", fails, f'exec {STAND_INS}/nvidia-smi "$@"')
    path = os.pathsep.join(map(str, [tmp_path, STAND_INS, os.environ["PATH"]]))
    env = {"PATH": path, "STAND_IN_GPUS": str(tmp_path)}
    why = "nvidia-smi: NVIDIA-SMI has failed"
    result = two_hosts.login([*ACCDP_RUN, "-n", "4", "--mps", "off", *places, "true"], env, SECONDS)
    said = f"accdp run: node1: no GPUs for the ranks there, as the others have: {why}\n"
    assert result.returncode == 0 and result.stderr.count(said) == 1 and "node0: no GPUs" not in result.stderr, str(
        result
    )
    result = two_hosts.login([*ACCDP_RUN, "--ranks-per-gpu", "2", *places, "true"], env, SECONDS)
    assert result.returncode == 2 and f"on the 0 GPUs that are listed there: {why}" in result.stderr, str(result)


@pytest.fixture
def shared_gpu(two_hosts, tmp_path, request) -> dict[str, str]:
    """Variables of a job on hosts with one stand-in GPU each, and each with a runtime folder of its own."""
    runtime = tempfile.mkdtemp(prefix="accdp-")  # not below tmp_path: the paths of Unix sockets must be short
    request.addfinalizer(lambda: shutil.rmtree(runtime))
    for host in range(2):
        assert two_hosts.popen(host, ["mount", "-t", "tmpfs", "-o", "mode=700", "none", runtime]).wait() == 0
    (tmp_path / "gpus.csv").write_text("0, GPU-0, Stand-in, 81920, 9.0, Disabled, 00000000:00:00.0\n")
    return {
        "PATH": f"{STAND_INS}{os.pathsep}{os.environ['PATH']}",
        "ACCDP_RUN_MPS_DIR": runtime,
        "STAND_IN_GPUS": str(tmp_path),
        "STAND_IN_JOURNAL": str(tmp_path / "journal"),
    }


def mps_run(hosts, places, env, behaviour: str, *words: str) -> jobs.Result:
    rank = str(jobs.TESTS / "launch" / "mps_rank.py")
    return hosts.login([*ACCDP_RUN, "--ranks-per-gpu", "2", *words, *places, rank, behaviour], env, SECONDS)


def assert_owned(tmp_path, clients: int) -> None:
    """On each host one daemon, that ended after its clients, none of which was killed in its work."""
    journal = (tmp_path / "journal").read_text().splitlines()
    assert sorted(line for line in journal if line.split()[0] in ("started", "ended", "quit", "lost")) == [
        *["ended GPU-0"] * 2,
        *["quit with 0 clients"] * 2,
        *["started GPU-0"] * 2,
    ], journal
    assert sum(line.startswith("client ") for line in journal) == clients, journal


def test_mps_is_owned_on_every_host(two_hosts, places, shared_gpu, tmp_path):
    """The login node, which has a GPU too, is left alone."""
    result = mps_run(two_hosts, places, shared_gpu, "once", "--mps", "on")
    assert result.returncode == 0, str(result)
    runtime = shared_gpu["ACCDP_RUN_MPS_DIR"]
    assert len(result.reports) == 4, str(result)
    assert all(row["CUDA_MPS_PIPE_DIRECTORY"].startswith(runtime) for row in result.reports), str(result)
    assert {row["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for row in result.reports} == {"0=38912M"}, str(result)
    assert_owned(tmp_path, 4)


def test_a_failure_ends_the_clients_of_all_hosts_before_their_daemons(two_hosts, places, shared_gpu, tmp_path):
    result = mps_run(two_hosts, places, shared_gpu, "fail", "--grace", "2")
    assert result.returncode == 1 and "ValueError: rank 1 has had enough" in result.stderr, str(result)
    assert_owned(tmp_path, 4)


def test_a_rank_outside_mps_on_another_host_ends_the_job(two_hosts, places, shared_gpu, tmp_path):
    result = mps_run(two_hosts, places, shared_gpu, "outside", "--mps", "on", "--grace", "1")
    assert result.returncode == 1 and "uses its GPU without MPS" in result.stderr.splitlines()[-1], str(result)
    assert result.stderr.splitlines()[-1].startswith("accdp run: node"), str(result)
    assert_owned(tmp_path, 0)


def test_an_owner_is_let_go_when_the_guard_of_a_rank_was_killed(two_hosts, places, shared_gpu, tmp_path):
    """The guard of the host's other rank waits for the owner, and would until the job gives up after the grace."""
    words = ["--ranks-per-gpu", "2", "--mps", "on", "--grace", "40", *places]
    script = f'[ "$RANK" = 3 ] && date +%s > {tmp_path}/killed && kill -KILL $PPID; exec sleep 600'
    result = two_hosts.login([*ACCDP_RUN, *words, "sh", "-c", script], shared_gpu, SECONDS)
    assert result.returncode and time.time() - int((tmp_path / "killed").read_text()) < 30, str(result)
    assert_owned(tmp_path, 0)


SAVES = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mps_rank import attach, load_cuda
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
library, (daemon, _) = load_cuda(), attach()
Path(f"began.{os.environ['RANK']}").touch()
while not told:
    time.sleep(0.05)
while time.monotonic() < told[0] + 8:  # longer than an owner of MPS lets clients be that it ends
    time.sleep(0.05)
Path(f"saved.{os.environ['RANK']}").write_text(str(len(told)))
daemon.sendall(b"bye")
"""
KILLS_THE_HEAD = (
    '"$@" & until [ "$(ls began.* 2>&1 | grep -c began.[0-3]$)" = 4 ]; do sleep 0.1; done; kill -KILL $!; wait'
)


@pytest.mark.parametrize("shell", [[], ["sh", "-c", '"$@"; :', "sh"]])
def test_ranks_have_their_grace_when_accdp_run_is_gone(two_hosts, places, shared_gpu, tmp_path, monkeypatch, shell):
    """What is below a shell, too, which ends at once when it is told to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saves.py").write_text(SAVES)
    rank = [*shell, *([sys.executable] if shell else []), "saves.py", str(jobs.TESTS / "launch")]
    words = ["--ranks-per-gpu", "2", "--mps", "on", "--grace", "30", *places, "--", *rank]
    two_hosts.login(["sh", "-c", KILLS_THE_HEAD, "sh", *ACCDP_RUN, *words], shared_gpu, SECONDS)
    assert not jobs.until_empty(two_hosts.processes, 60), jobs.describe(two_hosts.processes())
    assert [(tmp_path / f"saved.{rank}").read_text() for rank in range(4)] == ["1"] * 4  # and were told once
    assert_owned(tmp_path, 4)


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_where_mps_cannot_be_used_on_a_host(two_hosts, places, shared_gpu, tmp_path, mode):
    """An error with `on`; with `auto` one warning per host, and the ranks run without."""
    env = shared_gpu | {"STAND_IN_FAULT": "no_start"}
    words = ["--ranks-per-gpu", "2", "--mps", mode, *places, "sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY:-none}"]
    result = two_hosts.login([*ACCDP_RUN, *words], env, SECONDS)
    assert "failed with status 1; its log ends: [Control] Failed" in result.stderr, str(result)
    ran = result.stdout.splitlines().count("none")  # beside it the launcher may say that it was ended
    assert (result.returncode, ran) == ((2, 0) if mode == "on" else (0, 4)), str(result)
    if mode == "auto":
        warned = [line for line in result.stderr.splitlines() if "no MPS is started, and ranks that share" in line]
        assert sorted(line.split(": ")[1] for line in warned) == ["node0", "node1"], str(result)


def test_a_failure_on_one_host_ends_the_other(two_hosts, places):
    script = "import os, time; 1 / 0 if os.environ['RANK'] == '3' else time.sleep(600)"
    result = two_hosts.login([*ACCDP_RUN, "--grace", "1", *places, sys.executable, "-c", script], {}, SECONDS)
    assert result.returncode == 1 and "accdp run: rank 3 (pid" in result.stderr, str(result)
    assert "host node1) ended with status 1" in result.stderr.splitlines()[-1], str(result)
