"""`accdp ps`: what ranks do, seen from outside."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
from running import ACCDP, act

RANK = str(jobs.TESTS / "launch" / "ps_rank.py")


def ps(*words: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*ACCDP, "ps", *words], env=jobs.environment(**env), capture_output=True, text=True, timeout=60, check=False
    )


def job_with(pids: list[int], *words: str, **env: str) -> dict:
    """What is said of the job that these processes are the ranks of: exactly these."""
    answer = ps("--json", *words, **env)
    found = [job for job in json.loads(answer.stdout)["jobs"] if {rank["pid"] for rank in job["ranks"]} & set(pids)]
    assert len(found) == 1 and [rank["pid"] for rank in found[0]["ranks"]] == pids, answer.stdout
    return found[0]


def when(said: str, pids: list[int], *words: str, **env: str) -> dict:
    """What is said of the job once a line of its verdict has that in it."""
    deadline = time.monotonic() + jobs.SOON_S
    while True:
        job = job_with(pids, *words, **env)
        if any(said in line for line in job["verdict"]):
            return job
        assert time.monotonic() < deadline, json.dumps(job, indent=1)


def table(pids: list[int]) -> list[str]:
    """The same job as text, without what changes: numbers of processes and times."""
    block = next(text for text in ps().stdout.split("\n\n") if f" {pids[0]}  " in text)
    return block.splitlines()


@contextlib.contextmanager
def opening(gate: Path) -> Iterator[None]:
    """Let the ranks go on afterwards, however the test ends."""
    try:
        yield
    finally:
        gate.touch()


def look_at(mode: str, gate: Path, look, ranks: int = 3) -> jobs.Result:
    def action(_: subprocess.Popen, told: list[dict]) -> None:
        with opening(gate):
            look([report["pid"] for report in sorted(told, key=lambda report: report["rank"])])

    return act(["run", "-n", str(ranks), RANK, mode, str(gate)], ranks, action, {})


def test_who_is_waited_for_and_what_it_does(tmp_path):
    def look(pids: list[int]) -> None:
        job = when("2 ranks wait for rank 2", pids)
        assert job["verdict"][0].startswith(
            f"2 ranks wait for rank 2 (pid {pids[2]}), which has not come to allreduce #4: in no collective for "
        )
        world = [rank["groups"][0] for rank in job["ranks"]]
        assert [group["rank"] for group in world] == [0, 1, 2] and len({group["group"] for group in world}) == 1
        assert [(group["sequence"], group["is_busy"]) for group in world] == [(4, True), (4, True), (3, False)]
        assert all(group["call"] == "allreduce (sum) of 1000 float32" for group in world)
        awaited = world[0]["waits"][0]["peers"]
        assert [(peer["rank"], peer["pid"], peer["host"]) for peer in awaited] == [(2, pids[2], socket.gethostname())]
        assert len(job["ranks"][0]["groups"]) == 1 and len(job["ranks"][1]["groups"]) == 2

        lines = table(pids)
        assert lines[0].startswith("3 ranks: ") and "ps_rank.py late" in lines[0]
        assert lines[1].split() == ["rank", "pid"]
        for rank in (0, 1):
            assert f"{pids[rank]}  allreduce (sum) of 1000 float32 #4 for " in lines[2 + rank]
            assert lines[2 + rank].endswith(" s, waits for rank 2")
        assert f"{pids[2]}  no collective for " in lines[4] and lines[4].endswith(
            "last allreduce (sum) of 1000 float32 #3"
        )
        assert len(lines) == 6

        os.kill(pids[2], signal.SIGSTOP)
        try:
            when(f"2 ranks wait for rank 2 (pid {pids[2]}), which is stopped: kill -CONT {pids[2]} lets it go on", pids)
        finally:
            os.kill(pids[2], signal.SIGCONT)

    ended: list[int] = []
    result = look_at("late", tmp_path / "gate", lambda pids: (ended.extend(pids), look(pids)))
    assert result.returncode == 0, str(result)
    left = [rank["pid"] for job in json.loads(ps("--json").stdout)["jobs"] for rank in job["ranks"]]
    assert not set(left) & set(ended)


def test_messages(tmp_path):
    """One that is waited for, and one that lies open while its rank does something else."""

    def look(pids: list[int]) -> None:
        job = when("rank 0", pids)
        assert [line.partition(":")[0] for line in job["verdict"]] == [
            f"rank 0 (pid {pids[0]}) waits for rank 1 (pid {pids[1]}), which has not done its part of recv of 4000 "
            "bytes, tag 0"
        ]
        lines = table(pids)
        assert "recv of 4000 bytes, tag 0 for " in lines[2] and lines[2].endswith(" s, waits for rank 1")
        assert "no collective for " in lines[3] and "no collective for " in lines[4]
        assert "meanwhile open for " in lines[5] and lines[5].endswith(": recv of 4000 bytes, tag 0, waits for rank 1")

    assert look_at("message", tmp_path / "gate", look).returncode == 0


def test_ranks_of_a_part_have_their_numbers_in_the_job(tmp_path):
    def look(pids: list[int]) -> None:
        job = when("rank 1", pids)
        assert job["verdict"][0].startswith(
            f"rank 1 (pid {pids[1]}) waits for rank 2 (pid {pids[2]}), which has not come to allreduce #1 in group "
        )
        line = next(line for line in table(pids) if "#1" in line)
        assert "allreduce (sum) of 1000 float32 #1 in group " in line and line.endswith("waits for rank 2"), line

    assert look_at("pair", tmp_path / "gate", look).returncode == 0


def test_a_rank_whose_files_come_and_go_is_always_seen(tmp_path):
    def look(pids: list[int]) -> None:
        for _ in range(20):
            job_with(pids)

    assert look_at("late", tmp_path / "gate", look).returncode == 0


def test_ranks_that_wait_for_each_other(tmp_path):
    def look(pids: list[int]) -> None:
        job = when("these wait for each other", pids)
        assert len(job["verdict"]) == 1
        # rank 0 waits for rank 1 in the job's allreduce, and so does rank 2; rank 1 waits for rank 2 in the pair's
        said = job["verdict"][0]
        assert f"rank 1 (pid {pids[1]}) in allreduce #1 in group " in said and " for rank 2" in said
        assert f"rank 2 (pid {pids[2]}) in allreduce #4 for rank 1" in said and "rank 0" not in said
        os.kill(pids[0], signal.SIGKILL)

    assert look_at("circle", tmp_path / "gate", look).returncode == 128 + signal.SIGKILL


def test_what_runs_in_the_background_is_no_certain_deadlock(tmp_path):
    """Ranks 1 and 2 have each begun what the other has not come to, but wait for neither."""

    def look(pids: list[int]) -> None:
        when(f"rank 0 (pid {pids[0]}) waits for rank 1 (pid {pids[1]}), which has not come to allreduce #4", pids)
        job = when("these wait for each other, if their scripts wait for that: ", pids)
        assert [line for line in job["verdict"] if "wait for each other: " in line] == []
        assert ", in the background, waits for rank 2" in next(line for line in table(pids) if "#1" in line)

    assert look_at("background", tmp_path / "gate", look).returncode == 0


def test_a_wait_for_a_future_is_one_in_the_background(tmp_path):
    """DDP waits for gradients by futures."""

    def look(pids: list[int]) -> None:
        job = when("2 ranks wait in the background for rank 2", pids)
        assert len(job["verdict"]) == 1 and "which has not come to allreduce #4: in no collective" in job["verdict"][0]

    assert look_at("future", tmp_path / "gate", look).returncode == 0


def test_a_wait_for_what_a_communicator_runs_in_the_background_is_one(tmp_path):
    def look(pids: list[int]) -> None:
        [line] = when("2 ranks wait for rank 2", pids)["verdict"]
        assert "which has not come to " in line

    assert look_at("communicator", tmp_path / "gate", look).returncode == 0


def test_other_hosts(tmp_path):
    """Each is asked by ssh, and one that does not answer is named. The stand-in of ssh runs the command here."""
    programs = tmp_path / "programs"
    programs.mkdir()
    jobs.write_program(
        programs / "ssh",
        "for word; do host=$before; before=$word; done; command=$word",
        'test "$host" = far || { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }',
        f'sh -c "$command" | sed \'s/"host": "{socket.gethostname()}"/"host": "far"/\'',
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("far:3\nfarther:3\n")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def look(pids: list[int]) -> None:
        job = when("2 ranks wait for rank 2", pids, "--hosts", str(hosts), PATH=path)
        assert {rank["host"] for rank in job["ranks"]} == {"far"}
        answer = ps("--hosts", str(hosts), PATH=path)
        assert answer.returncode == 1
        assert "farther could not be looked at: ssh: connect to host farther port 22: No route to host" in answer.stdout

    assert look_at("late", tmp_path / "gate", look).returncode == 0


@pytest.mark.parametrize("words", [["--hosts", "/nowhere"], ["--jason"]])
def test_wrong_words(words):
    answer = ps(*words)
    assert answer.returncode == 2 and answer.stderr.startswith("accdp ps: ") and answer.stderr.count("\n") == 1
