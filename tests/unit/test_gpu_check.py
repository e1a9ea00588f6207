"""bench/gpu_check.py without a GPU: it says so, its ranks run on host memory, and its table shows what was measured."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accdp_comm import _core

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_check  # noqa: E402  (found only after the line above)


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
    out = tmp_path / "rank0.json"
    command = [*gpu_check.ACCDP, "run", "-n", "2", str(gpu_check.RANK), "--device", "cpu", "--most-bytes", "4096"]
    command += ["--most-elements", "70000", "--compressed"]
    good, said = gpu_check.run([*command, "--out", str(out)], 110)
    assert good, said
    rows = json.loads(out.read_text())["rows"]
    ways = [f"compressed {codec}" for codec in ("none", "fpk", "qpk")]
    ways += [f"{name}{way}" for way in ("", " torch", " gloo") for name in ("allreduce", "bcast")]
    assert [row["what"] for row in rows] == ways
    assert all(row["bytes"] == 4096 and row["ranks"] == 2 and row["s"] > 0 for row in rows)


def write_program(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.fixture
def without_gpu(monkeypatch, tmp_path):
    """Steps run on host memory, with short messages; a program of compute-sanitizer's name only starts its child."""
    short = ["--device", "cpu", "--most-bytes", "4096", "--most-elements", "1000"]
    rank = tmp_path / "rank.py"
    rank.write_text(
        f"import runpy, sys\nsys.argv += {short}\nsys.path.insert(0, {str(BENCH)!r})\n"
        f"runpy.run_path({str(gpu_check.RANK)!r}, run_name='__main__')\n"
    )
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\n[ "$1 $2" = "--error-exitcode 9" ] || exit 1\nshift 2\nexec "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_check, "RANK", rank)
    monkeypatch.setattr(gpu_check, "place", lambda ranks, mps: ["-n", str(ranks)])


def test_apart(without_gpu):
    found = gpu_check.apart(mps=False)
    assert "failed" not in found, found["failed"]
    assert (found["ranks"], found["topology"], found["mps"]) == (2, "0,1", False)
    rows = [row for row in found["rows"] if row["what"].startswith("compressed ")]
    assert [row["what"] for row in rows] == ["compressed none", "compressed fpk", "compressed qpk"]
    assert all(row["ratio"] >= 1 and row["codec_place"] == "host" for row in rows)


def test_sanitizer(without_gpu):
    found = gpu_check.sanitizer()
    assert found["clean"] is True, found


def test_rows_of_a_run_that_fails_are_kept(without_gpu, tmp_path):
    gpu_check.RANK.write_text(
        "import sys\nout = sys.argv[sys.argv.index('--out') + 1]\n"
        "open(out, 'w').write('{\"path\": \"p\", \"rows\": [1]}')\nsys.exit('the reason')\n"
    )
    found = gpu_check.ranks_on_one_gpu(1, 60, mps=False)
    assert found["rows"] == [1] and "the reason" in found["failed"]


def test_a_program_that_is_not_there():
    assert gpu_check.run(["no-such-program"], 5) == (False, "no-such-program: No such file or directory")
    assert gpu_check.said_by("no-such-program") == "unknown"


def test_a_step_that_fails_is_recorded_and_the_next_go_on(monkeypatch, tmp_path, capsys):
    machine = {"gpu": "a GPU", "nccl": "2.28.9", "copy_bytes_per_s": 1e12}
    monkeypatch.setattr(gpu_check, "run", lambda command, limit_s, **_: (True, "a warning\n" + json.dumps(machine)))
    monkeypatch.setattr(_core, "cuda_report", lambda: {"why_not": ""})
    run_ = {"mps": False, "ranks": 2, "rows": [], "path": "unknown"}
    monkeypatch.setattr(gpu_check, "ranks_on_one_gpu", lambda ranks, limit_s, mps: run_ | {"ranks": ranks, "mps": mps})
    monkeypatch.setattr(gpu_check, "over_nodes", lambda mps: 1 / 0)
    monkeypatch.setattr(gpu_check, "apart", lambda mps: run_ | {"topology": "0,1"})
    monkeypatch.setattr(gpu_check, "nvcomp_functions", lambda: {"device_codecs": ["fpk"], "why_not": ""})
    for step in ("codecs_on_the_gpu", "between_hosts", "sanitizer"):
        monkeypatch.setattr(gpu_check, step, lambda: {"skipped": "here"})
    out = tmp_path / "results" / "x.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(out)])
    assert gpu_check.main() == 1
    found = json.loads(out.read_text())
    assert found["nodes"] == {"failed": "ZeroDivisionError: division by zero"}
    assert list(found) == "machine nvcomp runs mps codecs nodes apart nccl hosts sanitizer".split()
    assert [(run_["ranks"], run_["mps"]) for run_ in found["runs"]] == [
        (ranks, mps) for ranks in gpu_check.RANKS for mps in (False, True)
    ]
    said = capsys.readouterr().out
    assert "nccl: NCCL 2.28.9 refuses" in said and "nvcomp: ['fpk']" in said
    assert said.strip().splitlines()[-1].startswith("a GPU, MPS works, compute-sanitizer {'skipped': 'here'}")
    monkeypatch.setattr(gpu_check, "over_nodes", lambda mps: run_ | {"topology": "2x2"})
    assert gpu_check.main() == 0


def test_runs_with_mps_end_where_it_is_refused(monkeypatch):
    kept = []

    def refuse(ranks, limit_s, mps):
        return {"ranks": ranks, "mps": mps} | ({"failed": "accdp run: --mps on: why\nmore"} if mps else {})

    monkeypatch.setattr(gpu_check, "ranks_on_one_gpu", refuse)
    assert gpu_check.with_and_without_mps(kept.append) == "does not work: accdp run: --mps on: why"
    assert kept == [{"ranks": ranks, "mps": False} for ranks in gpu_check.RANKS]


def test_limits():
    good, said = gpu_check.run(["sh", "-c", "echo begun; sleep 60"], 2)
    assert not good and said == "not done after 2 s; begun\n"


def test_table():
    rows = [
        {"what": "allreduce", "bytes": 1 << 20, "ranks": 2, "s": 2e-6},
        {"what": "allreduce gloo", "bytes": 1 << 20, "ranks": 2, "s": 50e-6},
    ]
    runs = [
        {"mps": False, "ranks": 2, "rows": rows, "path": "shared GPU, ordered by events"},
        {"mps": True, "ranks": 8, "rows": [], "path": "unknown", "failed": "one\nlast line"},
    ]
    nccl = {"mps": True, "ranks": 2, "path": "shared GPU, ordered by events"}
    nccl["rows"] = [{**rows[0], "what": "allreduce torch"}, {**rows[0], "what": "allreduce nccl", "s": 4e-6}]
    nodes = {"mps": False, "ranks": 4, "topology": "2x2", "path": "shared GPU on each of 2 nodes", "rows": [rows[0]]}
    apart = {**nodes, "ranks": 2, "topology": "0,1", "path": "staged: the ranks are on several nodes"}
    apart["rows"] = [{**rows[0], "what": "compressed fpk", "ratio": 1.17, "codec_place": "device"}]
    hosts = {"rows": [{"link_gbit": 10, "codec": "fpk", "reference": True, "logical_bytes": 9e9, "wire_bytes": 3e9}]}
    hosts["rows"][0]["s"] = 2.0
    machine = {"copy_bytes_per_s": 4 * (1 << 20) / 1e-6}
    codec = {"codec": "fpk", "dtype": "float32", "data": "weights", "ratio": 1.17, "wins_below_gbit": 800.0}
    codec |= {"encode_bytes_per_s": 1e11, "decode_bytes_per_s": 2e11, "copy_bytes_per_s": 2e12}
    found = {"machine": machine, "runs": runs, "nccl": nccl, "nodes": nodes, "apart": apart, "hosts": hosts}
    found["codecs"] = {"rows": [codec]}
    lines = gpu_check.table(found).splitlines()
    assert lines[1].split() == ["no", "2", "allreduce", "1048576", "2.0", "0.50", "25.0"]
    assert lines[2].strip() == "shared GPU, ordered by events"
    assert lines[3].startswith("yes") and "last line" in lines[3]
    assert lines[4].split() == ["no", "4", "allreduce", "1048576", "2.0", "-"]
    assert lines[5].strip() == "shared GPU on each of 2 nodes"
    assert lines[6].split() == "no 2 compressed fpk 1048576 2.0 - 1.17x on the device".split()
    assert lines[8].split() == ["yes", "2", "allreduce", "torch", "1048576", "2.0", "0.50", "2.0"]
    assert lines[10].split() == ["10", "Gbit/s", "fpk", "of", "differences", "3.00x", "4.50", "GB/s"]
    assert lines[12].split() == ["fpk", "float32", "weights", "1.17", "100.0", "200.0", "2000.0", "800"]


def test_no_time_left(monkeypatch):
    monkeypatch.setattr(gpu_check, "_end", time.monotonic() + 1)
    assert gpu_check.run([sys.executable, "-c", "raise SystemExit(0)"], 60) == (False, "not started: no time left")


def test_an_old_nccl_is_left_out():
    said = gpu_check.beside_nccl("2.28.9", mps=False)["skipped"]
    assert said == "NCCL 2.28.9 refuses several ranks per GPU; expected 2.30.3 or newer"


def test_the_script_names_a_wrong_option():
    done = subprocess.run(
        ["bash", str(BENCH / "gpu_check.sh"), "--wheel"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "gpu_check.sh: --wheel: expected --wheels FOLDER or --out FILE\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """gpu_check.sh in a tree of its own, in which `make` and the Python of .venv-gpu only say what they are asked."""
    for folder in ("root/bench", "root/requirements", "bin", "elsewhere/wheels"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(BENCH / "gpu_check.sh", tmp_path / "root" / "bench")
    for file, text in (
        ("build", "ninja==1 # runs\n"),
        ("run", "numpy==2; x < 1\nnvidia-libnvcomp-cu13==6\n"),
        ("mpi", "mpich\n"),
    ):
        (tmp_path / "root" / "requirements" / f"{file}.txt").write_text(text)
    python = tmp_path / "root" / ".venv-gpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    write_program(python, 'echo "python $*"', 'case "$*" in *libnvcomp*) exit 1;; esac')
    write_program(tmp_path / "bin" / "make", 'echo "make $*"', 'case "$*" in *stamps/run) exit "$CANNOT";; esac')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("MPICC", "sh")  # there is an MPI

    def call(cannot, *arguments):
        done = subprocess.run(
            ["bash", str(tmp_path / "root" / "bench" / "gpu_check.sh"), *arguments],
            cwd=tmp_path / "elsewhere",
            env={**os.environ, "CANNOT": str(cannot)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return call


def test_paths_of_the_script_are_the_callers(script, tmp_path):
    said, _ = script(0, "--wheels", "wheels", "--out", "x.json")
    here = tmp_path / "elsewhere"
    flags = f"make VENV=.venv-gpu VENV_FLAGS=--system-site-packages WHEELS={here}/wheels"
    assert said[:2] == [f"{flags} .venv-gpu/stamps/run", f"{flags} -o .venv-gpu/stamps/run build"]
    assert said[2].startswith(f"python bench/gpu_check.py --out {here}/x.json --seconds 5")
    said, _ = script(0)
    assert f" --out {tmp_path}/root/bench/results/gpu_check.json " in said[-1]


def test_the_script_goes_on_without_nvcomp(script, tmp_path, monkeypatch):
    said, errors = script(1, "--wheels", "wheels")
    install = f"python -m pip install --quiet --no-index --find-links {tmp_path}/elsewhere/wheels"
    assert said[1:4] == [f"{install} {package}" for package in ("ninja", "numpy", "nvidia-libnvcomp-cu13")]
    assert said[4].endswith(" -o .venv-gpu/stamps/run build") and "gpu_check.py" in said[5]
    assert errors == "gpu_check.sh: goes on without: nvidia-libnvcomp-cu13\n"
    monkeypatch.setenv("MPICC", "no-such-mpicc")
    assert "python -m pip install --quiet mpich" in script(1)[0]


def test_broadcast_between_hosts(tmp_path):
    """The step `hosts` on host memory, where this machine can make hosts; it says so where not."""
    out = tmp_path / "hosts.json"
    command = [sys.executable, str(gpu_check.HOSTS), "--device", "cpu", "--count", "65536", "--out", str(out)]
    good, said = gpu_check.run(command, 100)
    assert good, said
    found = json.loads(out.read_text())
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert "failed" not in found, found
    assert [(row["link_gbit"], row["codec"]) for row in found["rows"]] == [
        (gbit, codec) for gbit in (10, 25) for codec in ("none", "fpk", "auto", "auto")
    ]
    assert all(row["s"] > 0 and row["wire_bytes"] > 0 for row in found["rows"])
