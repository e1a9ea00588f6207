"""bench/gpu_check.py without a GPU: it says so, its ranks run on host memory, and its table shows what was measured."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest

from accdp_comm import _core, nvcomp

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)
import gpu_machine  # noqa: E402
import gpu_run  # noqa: E402
import gpu_table  # noqa: E402

ANS = [codec for codec in ("ans",) if codec not in nvcomp.missing_codecs()]


def test_a_machine_without_gpu_is_told(tmp_path):
    if not _core.cuda_report()["why_not"]:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu_check.py"), "--out", str(tmp_path / "x.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gpu_check: nothing to check here: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ranks_check_and_measure(tmp_path):
    out, rank = tmp_path / "rank0.json", tmp_path / "rank.py"  # with all the time that it wants for the reductions
    folder = str(gpu_check.RANK.parent)
    rank.write_text(f"import sys\nsys.path.insert(0, {folder!r})\nimport gpu_ops, gpu_rank\n")
    with rank.open("a") as file:
        file.write("gpu_ops.WITHIN_S = float('inf')\ngpu_rank.main()\n")
    command = [*gpu_check.ACCDP, "run", "-n", "2", str(rank), "--device", "cpu", "--most-bytes", "4096"]
    command += ["--most-elements", "70000", "--compressed", "--slots"]
    ended = gpu_check.run([*command, "--out", str(out)], 110)
    assert ended.status == 0, ended.said
    assert not out.with_suffix(".failures").exists()
    found = json.loads(out.read_text())
    rows, reductions = found["rows"], found["reductions"]
    # 107 reductions that there are, of 5 calls each; torch refuses products of complex numbers.
    assert {who: one["calls"] for who, one in reductions.items()} == {"Communicator": 535, "torch backend": 525}
    assert all(one["datatypes"] == 17 and "not_done" not in one for one in reductions.values())
    ways = [f"compressed {codec}" for codec in ("none", "fpk", *ANS, "qpk")]
    ways += [f"{name}{way}" for way in ("", " torch", " gloo") for name in ("allreduce", "bcast")]
    ways += [f"slots of {size}" for size in ("1M", "2M", "4M", "8M", "16M", "32M")]
    assert [row["what"] for row in rows] == ways
    assert all(row["bytes"] == 4096 and row["ranks"] == 2 and row["s"] > 0 for row in rows)


@pytest.fixture
def without_gpu(monkeypatch, tmp_path):
    """Steps run on host memory, with short messages; a program of compute-sanitizer's name only starts its child."""
    short = ["--device", "cpu", "--most-bytes", "4096", "--most-elements", "1000"]
    rank = tmp_path / "rank.py"
    rank.write_text(
        f"import sys\nsys.argv += {short}\nsys.path.insert(0, {str(BENCH)!r})\nimport gpu_rank\n"
        "# changes\ngpu_rank.main()\n"
    )
    jobs.write_program(
        tmp_path / "compute-sanitizer",
        '[ "$1 $2 $3 $4 $5 $6" = "--error-exitcode 99 --report-api-errors no --print-limit 3" ] || exit 1',
        '[ "$7 $8" = "--destroy-on-device-error kernel" ] || exit 1; shift 8',
        '[ "$1 $2 $3" = "--kernel-name kns=accdp --launch-timeout" ] || exit 1; shift 4',
        'echo "${SEES:-}"; "$@" || exit',
        'echo "========= ERROR SUMMARY: ${ERRORS:-0} errors"',
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_check, "RANK", rank)
    monkeypatch.setattr(gpu_check, "place", lambda ranks, mps: ["-n", str(ranks)])


def test_apart(without_gpu):
    found = gpu_check.apart(mps=False)
    assert "failed" not in found, found["failed"]
    assert (found["ranks"], found["topology"], found["mps"]) == (2, "0,1", False)
    rows = [row for row in found["rows"] if row["what"].startswith("compressed ")]
    assert [row["what"] for row in rows] == [f"compressed {codec}" for codec in ("none", "fpk", *ANS, "qpk")]
    assert all(row["ratio"] >= 1 and row["codec_place"] == "host" for row in rows)
    assert all(row["codec"] in ("none", "fpk", "qpk") for row in rows)  # no GPU: fpk stands in for ans


def test_many_ranks(without_gpu):
    """Fewer than on a GPU, in case there are not that many cores; a wrong result is told."""
    change_rank(
        "equal, torch = gpu_rank.torch.equal, gpu_rank.torch",
        "torch.equal = lambda a, b: equal(a, b) and (a.numel(), a.dtype) != (1000, torch.int32)",
    )
    found = gpu_check.ranks_on_one_gpu(3, True, "", gpu_check.FEW[:1])
    assert sorted(found["failures"]) == sorted(
        f"rank {rank}: 1000 of torch.int32, of many ranks: {name}"
        for rank in range(3)
        for name in ("allreduce", "all_reduce", "bcast", "broadcast")
    )
    ways = ["allreduce", "bcast", "allreduce torch", "bcast torch"]
    assert [row["what"] for row in found["rows"]] == ways and found["reductions"] == {}


def test_sanitizer(without_gpu):
    found = gpu_check.sanitizer()
    assert found["clean"] is True, found


def test_sanitizer_that_saw_an_invalid_access(without_gpu, monkeypatch):
    """The check that it was seen in may fail, and end the program with a status of its own."""
    monkeypatch.setenv("SEES", f"{gpu_check.INVALID} __global__ read of size 4")
    change_rank("gpu_rank.check_training = None", "raise SystemExit('1 check failed')")
    found = gpu_check.sanitizer()
    assert found["clean"] is False and "read of size 4" in found["said"] and "1 check failed" in found["said"]


def test_sanitizer_that_saw_nothing(without_gpu, monkeypatch):
    monkeypatch.setenv("ERRORS", "no")
    assert "failed" in gpu_check.sanitizer()


@pytest.mark.parametrize(
    "status, verdict",
    [((gpu_check.UNCLEAN, "why"), {"clean": False, "said": "why"}), ((3, "why"), {"failed": "why"})]
    + [((status, "why"), {"not_done": "why"}) for status in (gpu_check.LATE, None)]
    + [
        ((status, f"{gpu_check.INVALID} read"), {"clean": False, "said": f"{gpu_check.INVALID} read"})
        for status in (gpu_check.LATE, None, 0, 1)
    ]
    + [((1, "Error: Device not supported"), {"skipped": "compute-sanitizer: Device not supported"})],
)
def test_sanitizer_that_did_not_end_well(without_gpu, monkeypatch, status, verdict):
    monkeypatch.setattr(gpu_check, "run", lambda *_, **__: gpu_run.Ended(*status))
    assert gpu_check.sanitizer() == verdict
    assert gpu_check.sanitizer_codecs() == verdict
    assert gpu_check.sanitizer_over_nodes() == verdict


def change_rank(*lines):
    text = gpu_check.RANK.read_text()
    gpu_check.RANK.write_text(text.replace("# changes", "\n".join([*lines, "# changes"])))


def test_all_ranks_go_on_after_a_check_that_fails_on_one(without_gpu):
    change_rank(
        "gpu_rank.check_float8 = lambda comm, expect, count, device: expect(comm.rank != 1, 'a sum')",
        "def raises(*_): raise ValueError('on all ranks\\nmore')",
        "gpu_rank.check_training = raises",
    )
    found = gpu_check.ranks_on_one_gpu(2, mps=False)
    failures = [f"rank 1: {count} of 8 bits: a sum" for count in (0, 1, 1000)]
    failures += [f"rank {rank}: DistributedDataParallel: ValueError: on all ranks" for rank in (0, 1)]
    assert sorted(re.sub(r" \(rank.py:\d+\)$", "", line) for line in found["failures"]) == sorted(failures)
    assert "checks failed, first rank " in found["failed"]
    assert len(found["rows"]) == 6 and found["device_path"] == ""


def test_where_a_run_hangs_is_told(without_gpu, monkeypatch, tmp_path):
    stand = tmp_path / "stand"
    stand.mkdir()
    change_rank("import os, time", "def stands(comm, *_):", f"    open('{stand}/' + str(comm.rank), 'w')")
    change_rank("    time.sleep(60)", "gpu_rank.check_float8 = stands")
    wait = subprocess.Popen.wait

    def wait_from_there_on(process, timeout):
        """Its limit counts from where they stand on: what comes before takes as long as the machine needs."""
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        jobs.until(lambda: len(list(stand.iterdir())) == 2)
        return process.wait(2)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_from_there_on)
    found = gpu_check.ranks_on_one_gpu(2, mps=False)
    assert "in stands" in found["failed"] and "its limit" in found["failed"], found["failed"]


@pytest.mark.parametrize(
    "check, name, error, rows",
    [
        ("check_float8", "0 of 8 bits", "MismatchError", []),  # the meeting is another call of the same communicator
        (
            "check_torch",
            "torch backend, 0 of torch.float32",
            "Timed out after 5 s",
            ["allreduce", "bcast", "allreduce gloo", "bcast gloo"],
        ),
    ],
)
def test_ranks_do_not_wait_for_one_that_left_a_check(without_gpu, tmp_path, check, name, error, rows):
    left = tmp_path / "left"
    change_rank(
        f"check = gpu_rank.{check}",
        "def leaves(comm, *more):",
        f"    if comm.rank == 1: open({str(left)!r}, 'w'); raise ValueError('only here')",
        "    check(comm, *more)",
        f"gpu_rank.{check} = leaves",
        "gpu_rank.CALL_S = 5.0",
    )
    found = gpu_check.ranks_on_one_gpu(2, mps=False)
    assert any(line.startswith(f"rank 1: {name}: ValueError: only here (rank.py:") for line in found["failures"])
    assert any(line.startswith(f"rank 0: {name}: ") and error in line for line in found["failures"])
    assert [row["what"] for row in found["rows"]] == rows  # what still works is measured
    assert error in found["failed"] and time.time() - left.stat().st_mtime < 40


def test_rows_of_a_run_that_fails_are_kept(without_gpu):
    gpu_check.RANK.write_text(
        "import sys\nout = sys.argv[sys.argv.index('--out') + 1]\n"
        "open(out, 'w').write('{\"device_path\": \"p\", \"rows\": [1]}')\nsys.exit('the reason')\n"
    )
    found = gpu_check.ranks_on_one_gpu(1, mps=False)
    assert found["rows"] == [1] and "the reason" in found["failed"]


def test_gloo_is_not_timed_with_the_longest_messages(monkeypatch):
    import gpu_rank

    monkeypatch.setattr(gpu_rank, "seconds", lambda *_: 1.0)
    monkeypatch.setattr(gpu_rank.torch, "ones", lambda *_, **__: None)
    alone = type("Alone", (), {"size": 1})()
    rows = list(gpu_rank.measure(alone, "cpu", gpu_rank.BYTES[-1], {"gloo": None}))
    assert max(row["bytes"] for row in rows if "gloo" in row["what"]) == gpu_rank.GLOO_MOST_BYTES
    assert max(row["bytes"] for row in rows) == gpu_rank.BYTES[-1] > gpu_rank.GLOO_MOST_BYTES
    none = list(
        gpu_rank.measure(alone, "cpu", 4096, {"gloo": None}, lambda name, take: None if "gloo" in name else 1.0)
    )
    assert none and not [row for row in none if "gloo" in row["what"]]


def test_a_program_that_is_not_there():
    assert gpu_machine.said_by("no-such-program") == "unknown"


def test_a_step_that_fails_is_recorded_and_the_next_go_on(monkeypatch, tmp_path, capsys):
    machine = {"gpu": "a GPU", "nccl": "2.28.9", "copy_bytes_per_s": 1e12}
    told = gpu_run.Ended(0, "a warning\n" + json.dumps(machine))
    monkeypatch.setattr(gpu_check, "run", lambda command, limit_s, **_: told)
    monkeypatch.setattr(gpu_run, "_ends_at", gpu_run._ends_at)  # main() sets it
    monkeypatch.setattr(_core, "cuda_report", lambda: {"why_not": ""})
    run_ = {"mps": False, "ranks": 2, "rows": [{"what": "bcast", "bytes": 8, "s": 1.0}], "device_path": "unknown"}
    monkeypatch.setattr(gpu_check, "ranks_on_one_gpu", lambda ranks, mps, *_, **__: run_ | {"ranks": ranks, "mps": mps})
    monkeypatch.setattr(gpu_check, "over_nodes", lambda mps: 1 / 0)
    monkeypatch.setattr(gpu_check, "apart", lambda mps: run_ | {"topology": "0,1"})
    mpi = {"library": "MPICH Version: 5.0.2", "wheels": ["mpich 5.0.2"], "cuda_aware": "no"}
    monkeypatch.setattr(gpu_check, "mpi", lambda: mpi)
    monkeypatch.setattr(gpu_check, "probe", lambda: {"rows": [{"mps": True, "ipc_events": "works"}]})
    monkeypatch.setattr(gpu_check, "memory", lambda mps: {"rows": [{"scene": "MemPool", "skipped": "here"}]})
    monkeypatch.setattr(gpu_check, "nvcomp_functions", lambda: {"work_here": ["fpk"], "why_not": ""})
    monkeypatch.setattr(gpu_check, "sanitizer_over_nodes", lambda: {"not_done": "no time left"})
    monkeypatch.setattr(gpu_check, "with_connections", lambda count, mps: run_)
    for step in ("codecs_on_the_gpu", "between_hosts", "sanitizer", "sanitizer_codecs", "rank_killed"):
        monkeypatch.setattr(gpu_check, step, lambda **_: {"skipped": "here"})
    out = tmp_path / "results" / "x.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(out)])
    assert gpu_check.main() == 1
    found = json.loads(out.read_text())
    assert found["nodes"] == {"failed": "ZeroDivisionError: division by zero"}
    steps = "mpi nvcomp probe mps codecs apart nodes memory sanitizer sanitizer_codecs more_ranks by_host staged"
    steps += " most_ranks nccl one_connection connections hosts killed sanitizer_nodes"
    assert list(found) == ["machine", "gpu_path", "runs", *steps.split()]
    ways = [(run_["ranks"], run_["mps"]) for run_ in found["runs"]]
    assert ways == [(2, False), (2, True), (4, True), (8, True), (16, True), (4, False)]
    said = capsys.readouterr().out.splitlines()
    assert "nodes: failed: ZeroDivisionError: division by zero" in said and "nvcomp: ['fpk']" in said
    assert "mpi: MPICH Version: 5.0.2 (mpich 5.0.2), takes device memory: no" in said
    assert "2 processes with MPS: IPC events works" in said and "memory of MemPool: skipped: here" in said
    assert "sanitizer: skipped: here" in said and "sanitizer_nodes: not done: no time left" in said
    assert said[-1] == f"a GPU, MPS works; {out}"
    monkeypatch.setattr(gpu_check, "over_nodes", lambda mps: run_ | {"topology": "2x2"})
    assert gpu_check.main() == 0
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(out), "--only", "killed,one_connection"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "expected a new file with --only" in capsys.readouterr().err
    out.unlink()
    assert gpu_check.main() == 0
    assert list(json.loads(out.read_text())) == ["machine", "gpu_path", "runs", "one_connection", "killed"]
    assert capsys.readouterr().out.splitlines()[-1] == f"a GPU, MPS not looked at; {out}"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(out), "--only", "kill"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "--only kill: expected of mpi, nvcomp, probe, " in capsys.readouterr().err


@pytest.mark.parametrize(
    "said", ["expected a driver under which they do, or ACCDP_GPU_PATH=by_host", "stacks; ended after 130 s: its limit"]
)
@pytest.mark.parametrize("works", ["by_host", "staged"])
def test_ranks_that_cannot_wait_for_events_go_another_way(monkeypatch, works, said):
    def run_(ranks, mps, **_):
        way = os.environ.get("ACCDP_GPU_PATH", "auto")
        trouble = {"failed": said} if way != works and (mps or way != "auto") else {}
        return {"mps": mps, "rows": [], "device_path": way} | trouble

    monkeypatch.setenv("ACCDP_GPU_PATH", "auto")  # so that it is as before after this test
    monkeypatch.delenv("ACCDP_GPU_PATH")
    monkeypatch.setattr(gpu_check, "ranks_on_one_gpu", run_)
    kept = []
    assert gpu_check.two_ranks(kept.append) == "works" and os.environ["ACCDP_GPU_PATH"] == works
    ways = [(False, "auto"), (True, "auto"), *([(False, "by_host")] if works == "staged" else [])]
    assert [(one["mps"], one["device_path"]) for one in kept] == [*ways, (False, works), (True, works)]


def test_a_run_that_had_begun_to_measure_did_not_stand_still():
    assert not gpu_check.stood_still({"failed": "ended after 130 s: its limit", "rows": [{"bytes": 4}]})
    assert not gpu_check.stood_still({"failed": "ended after 9 s: no time left", "rows": []})
    assert not gpu_check.stood_still({"rows": []})


LATE = {"failed": "ended after 130 s: its limit", "rows": []}


@pytest.mark.parametrize(
    ("found", "used", "stood_still"),
    [
        ({"mps": False, "device_path": "unknown", **LATE}, False, True),
        ({"mps": True, "device_path": "unknown", **LATE}, False, False),  # in the server, it may be
        ({"mps": True, "device_path": "not used yet", **LATE}, False, False),
        ({"mps": True, "device_path": "shared GPU, ordered by events", **LATE}, True, True),
        ({"mps": True, "device_path": "", "rows": []}, False, False),
        (
            {"mps": True, "device_path": "shared GPU", "rows": [], "failures": ["rank 1: the first call: no"]},
            False,
            False,
        ),
        ({"mps": True, "device_path": "shared GPU", "rows": [], "failures": ["rank 1: capture: no"]}, True, False),
        ({"mps": True, "device_path": "shared GPU", "rows": [{"bytes": 4}]}, True, False),
    ],
)
def test_what_a_run_shows_of_mps(found, used, stood_still):
    assert (gpu_check.used_the_gpu(found), gpu_check.stood_still(found)) == (used, stood_still)


def test_a_second_run_knows_what_the_first_found(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setenv("ACCDP_GPU_PATH", "auto")  # so that it is as before after this test
    told = gpu_run.Ended(0, json.dumps({"gpu": "a GPU", "copy_bytes_per_s": 1e12}))
    monkeypatch.setattr(gpu_check, "run", lambda command, limit_s, **_: told)
    monkeypatch.setattr(gpu_run, "_ends_at", gpu_run._ends_at)
    monkeypatch.setattr(_core, "cuda_report", lambda: {"why_not": ""})
    monkeypatch.setattr(
        gpu_check, "apart", lambda mps: seen.append((mps, os.environ["ACCDP_GPU_PATH"])) or {"skipped": "here"}
    )
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for verdict, works in (("works", True), ("was not seen to work", False), ({"failed": "why"}, False)):
        first.write_text(json.dumps({"mps": verdict, "gpu_path": "by_host", "runs": []}))
        words = ["--out", str(second), "--only", "apart", "--after", str(first)]
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", *words])
        assert gpu_check.main() == 0 and seen.pop() == (works, "by_host")
        assert json.loads(second.read_text())["gpu_path"] == "by_host" and not list(tmp_path.glob("*.part"))
        second.unlink()


@pytest.mark.parametrize("part", [{"failed": "why"}, {"failures": ["why"], "not_done": "why"}, {"clean": False}])
def test_failures(part):
    assert gpu_table.has_failed({"runs": [], "nodes": part}) and gpu_table.has_failed({"runs": [part]})


def test_what_is_no_failure():
    parts = {"sanitizer": {"clean": True}, "nodes": {"not_done": "why", "rows": []}, "hosts": {"skipped": "why"}}
    assert not gpu_table.has_failed({"runs": [{"not_done": "why"}], "mps": "works", "nccl": {"failed": "why"}, **parts})


def test_table():
    rows = [
        {"what": "allreduce", "bytes": 1 << 20, "ranks": 2, "s": 2e-6},
        {"what": "allreduce gloo", "bytes": 1 << 20, "ranks": 2, "s": 50e-6},
    ]
    runs = [
        {"mps": False, "ranks": 2, "rows": rows, "device_path": "shared GPU, ordered by events"},
        {"mps": True, "ranks": 8, "rows": [], "device_path": "unknown", "failed": "one\nlast line"},
    ]
    runs[0]["gloo_most_bytes"] = 64 << 20
    runs[0]["overlap"] = {"during_backward": True, "spare_s": 0.24, "stood_still_s": 0.25}
    runs[0]["overlap"] |= {"step_alone_s": 0.01, "allreduces_s": 0.004, "together_s": 0.011, "hidden": 0.75}
    runs[1]["overlap"] = {"during_backward": False, "spare_s": -0.01, "stood_still_s": 0.25}
    runs[1]["failures"] = ["rank 1: 8 of 8 bits: a sum", "another"]
    runs[1]["reductions"] = {"Communicator": {"calls": 5}, "torch backend": {"not_done": "2 of 17 datatypes"}}
    nccl = {"mps": True, "ranks": 2, "device_path": "shared GPU, ordered by events"}
    nccl["rows"] = [{**rows[0], "what": "allreduce torch"}, {**rows[0], "what": "allreduce nccl", "s": 4e-6}]
    nodes = {"mps": False, "ranks": 4, "topology": "2x2", "device_path": "shared GPU on each of 2 nodes"}
    nodes["rows"] = [rows[0]]
    apart = {**nodes, "ranks": 2, "topology": "0,1", "device_path": "staged: the ranks are on several nodes"}
    apart["rows"] = [{**rows[0], "what": "compressed ans", "ratio": 1.17, "codec": "fpk", "codec_place": "device"}]
    host = {"link_gbit": 10, "codec": "auto", "used": "fpk", "reference": True, "logical_bytes": 9e9, "s": 2.0}
    hosts = {"rows": [host | {"wire_bytes": 3e9}]}
    killed = {"rows": [{"way": "exit", "ended": 0, "ended_s": 0.61, "noticed_s": 0.3, "error": "rank 1 exited"}]}
    killed["rows"].append({"way": "os._exit", "ended": "killed", "ended_s": 15.0, "failed": "rank 0 got no error"})
    machine = {"copy_bytes_per_s": 4 * (1 << 20) / 1e-6}
    codec = {"codec": "fpk", "dtype": "float32", "data": "weights", "ratio": 1.17, "wins_below_gbit": 800.0}
    codec |= {"encode_bytes_per_s": 1e11, "decode_bytes_per_s": 2e11, "copy_bytes_per_s": 2e12}
    found = {"machine": machine, "runs": runs, "nodes": nodes, "apart": apart, "nccl": nccl, "hosts": hosts}
    found["killed"] = killed
    broken = {"codec": "qpk", "dtype": "float16", "data": "zeros", "failed": "why"}
    skipped = [{"codec": "lz4", "dtype": dtype, "data": "zeros", "skipped": "why"} for dtype in ("float16", "float32")]
    found["codecs"] = {"rows": [codec, broken, *skipped], "not_done": "x; ended after 9 s: no time left"}
    lines = gpu_table.table(found).splitlines()
    assert lines[1].split() == ["no", "2", "allreduce", "1048576", "2.0", "0.50", "25.0"]
    assert lines.pop(2).split() == "gradients travel during backward, 240 ms of 250 ms left".split()
    assert lines.pop(2).split() == "step 10.0 ms, allreduces 4.0 ms, both 11.0 ms: 75% hidden".split()
    assert lines[2].strip() == "shared GPU, ordered by events"
    assert lines[3].split() == ["yes", "8", "failed:", "last", "line"]
    assert lines.pop(4).split() == "yes 8 reductions by torch backend: not done: 2 of 17 datatypes".split()
    assert lines[4].split() == "yes 8 2 checks failed, first rank 1: 8 of 8 bits: a sum".split()
    assert lines.pop(5).strip() == "gradients travel after backward only"
    assert lines[5].split() == ["no", "4", "allreduce", "1048576", "2.0", "-"]
    assert lines[6].strip() == "shared GPU on each of 2 nodes"
    assert lines[7].split() == "no 2 compressed ans 1048576 2.0 - 1.17x, fpk on the device".split()
    assert lines[9].split() == ["yes", "2", "allreduce", "torch", "1048576", "2.0", "0.50", "2.0"]
    assert lines[11] == "x Gloo: up to 64 MiB, above which it is not timed"
    assert lines.pop(12) == "rank killed, the other leaves by exit: told 0.3 s later; ended with 0 after 0.6 s"
    told = "failed: rank 0 got no error; still there after 15.0 s"
    assert lines.pop(12) == f"rank killed, the other leaves by os._exit: {told}"
    assert lines[12].split() == "10 Gbit/s auto (fpk) of differences 3.00x 4.50 GB/s".split()
    assert lines[13] == "codecs on the GPU: not done: x; ended after 9 s: no time left"
    assert lines[15].split() == ["fpk", "float32", "weights", "1.17", "100.0", "200.0", "2000.0", "800"]
    assert lines[16].split() == ["qpk", "float16", "zeros", "failed:", "why"]
    assert [line.split() for line in lines[17:]] == [["lz4", "skipped:", "why"]]


def test_an_old_nccl_is_left_out():
    said = gpu_check.beside_nccl("2.28.9", mps=False)["skipped"]
    assert said == "NCCL 2.28.9 refuses several ranks per GPU; expected 2.30.3 or newer"
