"""Every benchmark as it is started by hand, tiny sizes: exit code, output that parses, exact results, nothing left."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import numpy as np
import pytest

from accdp_comm import launcher, nvcomp
from accdp_comm.bench import command, omb
from accdp_comm.bench.operations import OPERATIONS

BENCH = Path(__file__).resolve().parents[2] / "bench"
TINY = ("-i", "4", "-x", "1")


def start(ranks: int, *words: str, env: dict[str, str] | None = None) -> jobs.Result:
    return jobs.run([*jobs.mpiexec_command(ranks), sys.executable, *words], env=env, timeout=60.0)


def module(*words: str) -> tuple[str, ...]:
    return ("-m", "accdp_comm.bench", *words)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_smoke(name, tmp_path):
    row, out = OPERATIONS[name], tmp_path / "out.jsonl"
    sizes = () if row.kind == "barrier" else ("-m", "4:64", "-c", "-u", "1")
    ranks = 2 if row.is_pair else 3
    words = (str(BENCH / f"osu_{name}.py"), *sizes, *TINY, "--backend", "accdp,mpi", "--json", str(out))
    result = start(ranks, *words)
    assert result.returncode == 0 and result.stderr == "", str(result)
    blocks = omb.parse(result.stdout)
    assert [block.operation for block in blocks] == [name, name], str(result)
    if row.kind != "barrier":
        for block in blocks:
            assert [line["Size"] for line in block.rows] == [4, 8, 16, 32, 64], str(result)
            assert {line["Validation"] for line in block.rows} == {"Pass"}, str(result)
    rows = rows_of(out)
    assert {line["backend"] for line in rows} == {"accdp", "mpi"}
    for line in rows:
        assert (line["op"], line["ranks"], line["iterations"]) == (name, ranks, 4)
        assert 0 < line["p10_us"] <= line["median_us"] <= line["p90_us"]
        assert {"machine", "versions", "settings", "command", "time", "harness_us"} <= line.keys()
        assert line["errors"] == (None if row.kind == "barrier" else 0)


def test_torch_backends_and_all_outputs(tmp_path):
    """Also the other forms of output: nccl-tests' columns, CSV, a chart, a figure; percentiles and rotating root."""
    pytest.importorskip("matplotlib")
    out, table = tmp_path / "o.jsonl", tmp_path / "o.csv"
    child = f"import os, sys; os.chdir({str(tmp_path)!r}); from accdp_comm.bench.command import main; sys.exit(main())"
    words = ("bcast", "-m", "256:1024", *TINY, "-f", "-z", "-c", "-k", "rotate", "-G", "tty,png", "--busbw")
    files = ("--json", str(out), "--csv", str(table))
    backends = ("--backend", "accdp,mpi,accdp-torch,gloo")
    result = start(2, "-c", child, *words, *files, *backends)
    assert result.returncode == 0, str(result)
    assert len(omb.parse(result.stdout)) == 4, str(result)
    assert result.stdout.count("# Out of bounds values : 0 OK") == 4, str(result)
    assert "bcast, us, median" in result.stdout and (tmp_path / "osu_bcast.png").stat().st_size > 10_000
    rows = rows_of(out)
    assert [row["backend"] for row in rows[:4]] == ["accdp", "mpi", "accdp-torch", "gloo"]
    assert all(row["errors"] == 0 and row["root"] == "rotate" and row["busbw_gbps"] > 0 for row in rows)
    with open(table, newline="") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == [row["backend"] for row in rows]


def test_torch_results_are_exact():
    """Operations whose calls differ most between torch and us, run after run in one job; 7 elements are uneven."""
    child = (
        "import sys; from accdp_comm.bench.command import main\n"
        "for op in ('allreduce', 'reduce_scatter', 'gather', 'bibw'):\n"
        "    words = [op, '-m', '28:28', '-T', 'mpi_float', '-i', '4', '-x', '1', '-c']\n"
        "    assert main([*words, '--backend', 'accdp-torch,gloo']) == 0"
    )
    result = start(2, "-c", child)
    assert result.returncode == 0, str(result)
    blocks = omb.parse(result.stdout)
    assert len(blocks) == 8 and {block.rows[0]["Validation"] for block in blocks} == {"Pass"}, str(result)


def test_asynchronous_calls_are_waited_for(tmp_path):
    out = tmp_path / "o.jsonl"
    child = (
        "import sys; from accdp_comm.bench.command import main\n"
        f"words = [*{TINY!r}, '--async', '--backend', 'accdp-torch,gloo', '--json', {str(out)!r}]\n"
        "for op in ('bcast', 'allreduce', 'reduce', 'allgather', 'reduce_scatter', 'alltoall', 'gather', 'scatter'):\n"
        "    assert main([op, '-m', '64:64', '-T', 'mpi_float', '-c', *words]) == 0\n"
        "assert main(['barrier', *words]) == 0"
    )
    result = start(2, "-c", child)
    assert result.returncode == 0, str(result)
    assert result.stdout.count("async_op=True") == 18, str(result)
    rows = rows_of(out)
    assert len(rows) == 18 and all(row["is_async"] for row in rows)
    assert {row["errors"] for row in rows if row["op"] != "barrier"} == {0}


def test_codecs_in_one_run(tmp_path):
    """Two ranks that pretend to be on two nodes; started by the command itself."""
    out, weights, two_nodes = tmp_path / "o.jsonl", tmp_path / "w.npy", {"ACCDP_TOPOLOGY": "2x1"}
    np.save(weights, np.random.default_rng(0).normal(0, 0.02, 1 << 18).astype(np.float32))
    words = ("bcast", "-n", "2", "-m", "256k:256k", *TINY, "-c", "-u", "0", "--data", f"weights:{weights}")
    words += ("--json", str(out), "--codec")
    command = [sys.executable, "-m", "accdp_comm", "bench", *words]
    lossless = jobs.run([*command, "none,zhuff"], timeout=60.0, env=two_nodes)
    assert lossless.returncode == 0, str(lossless)
    rows = {row["backend"]: row for row in rows_of(out)}
    assert list(rows) == ["accdp+none", "accdp+zhuff"], rows
    assert re.search(r"#   accdp\+zhuff: sent as zhuff, ratio 1\.[1-9]", lossless.stdout), str(lossless)
    assert all(row["command"].startswith("accdp bench bcast -n 2 ") for row in rows.values())
    assert rows["accdp+none"]["ratio"] < 1.01 and rows["accdp+zhuff"]["ratio"] > 1.1
    assert {row["errors"] for row in rows.values()} == {0} and rows["accdp+zhuff"]["nodes"] == 2
    lossy = jobs.run([*command, "qpk", "--error-bound", "relative:0.1"], timeout=60.0, env=two_nodes)
    assert lossy.returncode == 0, str(lossy)
    last = rows_of(out)[-1]
    assert last["backend"] == "accdp+qpk" and last["ratio"] > 2.5 and last["errors"] == 0


@pytest.mark.parametrize("words", [("-cfn2",), ("--ran", "2"), ("--ranks=2",)])
def test_it_starts_its_ranks_however_their_number_is_written(words):
    result = jobs.run([sys.executable, *module("allreduce", *TINY, "-m", "4:4", *words)], timeout=60.0)
    assert result.returncode == 0 and len(omb.parse(result.stdout)[0].rows) == 1, str(result)


def test_the_number_of_ranks_that_were_started_may_be_said():
    result = start(2, *module("barrier", *TINY, "--ranks", "2"))
    assert result.returncode == 0 and result.stderr == "", str(result)


def test_sizes_that_hold_no_elements_are_said_to_be_left_out():
    result = start(1, *module("bcast", *TINY, "--sizes", "6,8", "-T", "mpi_float"))
    assert [row["Size"] for row in omb.parse(result.stdout)[0].rows] == [8], str(result)
    assert result.stderr.endswith("--sizes: 6 bytes hold no whole mpi_floats and are left out\n"), str(result)


@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (2, ("bcast", "--ranks", "3"), "--ranks 3: this is one of 2 ranks already"),
        (
            1,
            ("bcast", "--sizes", "3,6", "-T", "mpi_int"),
            "expected multiples of 4 bytes, since -T is mpi_int, got 3, 6",
        ),
        (1, ("bcast", "-m", "8M:"), "-m: no size from 8388608 to 1048576 holds mpi_char"),
        (3, ("latency",), "osu_latency takes exactly 2 ranks, not 3"),
        (2, ("bcast", "-k", "fixed:2"), "-k fixed:2: expected a rank from 0 to 1"),
        (2, ("alltoall", "-m", "1M:1M", "-M", "1M"), "1048576 bytes of alltoall take 4194304 bytes a rank"),
        (2, ("bcast", "-m", "4T"), "got '4T'"),
        (2, ("allgather", "-m", "512G:512G", "-M", "8192G"), "too little memory"),
        (2, ("bcast", "--backend", "nccl"), "--backend nccl: it moves CUDA memory only"),
        (2, ("bcast", "--codec", "nope"), "codec=nope"),
        (2, ("bcast", "--codec", "qpk"), "codec=qpk: expected an error_bound"),
        (2, ("bcast", "--codec", "auto", "--error-bound", "0.1", "-T", "mpi_int"), "expected floats, got -T mpi_int"),
        (2, ("allreduce", "-T", "mpi_float", "-c", "--data", "gradients"), "are not exact"),
    ],
)
def test_refusals_are_one_line(ranks, words, said):
    result = start(ranks, *module(*words))
    assert result.returncode == 2 and said in result.stderr, str(result)
    assert len(result.stderr.splitlines()) == 1 and result.stdout == "", str(result)


@pytest.mark.parametrize(("step", "tasks"), [("0", 1), (None, 1), ("0", 2)])
def test_a_step_of_one_task_starts_ranks(monkeypatch, step, tasks):
    """As in srun --pty bash; a rank of anything else does not start others."""

    class Started(Exception):
        pass

    def execv(program, words):
        raise Started(words)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(launcher, "find_launcher", lambda: launcher.Launcher("srun", tasks))
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    if step is not None:
        monkeypatch.setenv("SLURM_STEP_ID", step)
    with pytest.raises(Started if (step, tasks) == ("0", 1) else command.Refused):
        command._be_one_of(3, ["bcast", "-n", "3"], None)


def test_a_full_disk_for_the_rows_is_one_line():
    command = [sys.executable, "-m", "accdp_comm", "bench", "bcast", "-m", "4:4", *TINY]
    result = jobs.run(["sh", "-c", 'exec "$@" > /dev/full', "sh", *command], timeout=60.0)
    said = "accdp bench: [Errno 28] No space left on device\n"
    assert (result.returncode, result.stderr) == (2, said), str(result)


INTERRUPTED = """
import os, signal, sys, time
from accdp_comm.bench import command, session
real = session.Session.measure
def measure(*words):
    found = real(*words)
    yield next(found)
    rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
    os.kill(os.getpid(), signal.SIGINT) if rank == "0" else time.sleep(60)  # the launcher ends the others
    yield next(found)
session.Session.measure = measure
sys.exit(command.main({words!r}, "bench"))
"""


def test_what_was_measured_before_ctrl_c_is_shown():
    words = ("bcast", "--backend", "accdp,mpi", "-m", "4:8", *TINY)
    result = start(2, "-c", INTERRUPTED.format(words=words))
    assert result.returncode and "Traceback" not in str(result), str(result)
    assert [[row["Size"] for row in block.rows] for block in omb.parse(result.stdout)] == [[4], [4]], str(result)


def test_a_full_disk_is_one_line_below_what_was_measured():
    result = start(2, *module("bcast", "-m", "4:4", *TINY, "--json", "/dev/full"))
    assert result.returncode == 2 and result.stderr.endswith("/dev/full: No space left on device\n"), str(result)
    assert len(result.stderr.splitlines()) == 1 and "# OSU" in result.stdout, str(result)


LACKING = """
import os, sys
rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank == {rank!r}:
    if {module!r} == "nvcomp":  # its libraries are looked for in folders, not imported
        from accdp_comm import nvcomp
        nvcomp.find_directory = lambda: None
    else:
        sys.modules[{module!r}] = None
from accdp_comm.bench.command import main
sys.exit(main({words!r}, "bench"))
"""


@pytest.mark.parametrize(
    ("rank", "module", "words", "said"),
    [
        ("1", "mpi4py", ["--backend", "accdp,mpi"], "bench: rank 1 of 3: --backend mpi: mpi4py is needed"),
        ("2", "torch", ["--backend", "accdp,gloo"], "bench: rank 2 of 3: --backend gloo: torch is missing"),
        (
            "2",
            "nvcomp",
            ["--codec", "zhuff,lz4"],
            "bench: rank 2 of 3: --codec: codec=lz4 does not work here: ",
        ),
        ("2", "ml_dtypes", ["-T", "mpi_int,bfloat16"], "bench: rank 2 of 3: -T bfloat16: NumPy has it from ml_dtypes"),
        ("0", "matplotlib", ["-G", "png"], "bench: rank 0 of 3: figures need matplotlib"),
    ],
)
def test_a_library_that_one_rank_lacks_ends_all_with_one_line(rank, module, words, said):
    """Before anything is measured, and none waits for the others."""
    if module == "ml_dtypes":
        pytest.importorskip(module)
    if module == "nvcomp" and nvcomp.find_directory() is None:
        pytest.skip("nvCOMP is not installed")
    result = start(3, "-c", LACKING.format(rank=rank, module=module, words=["bcast", "-m", "4:8", *TINY, *words]))
    lines = [line for line in result.stderr.splitlines() if line.startswith("bench: ")]
    assert result.returncode and len(lines) == 1 and lines[0].startswith(said), str(result)
    assert "OSU MPI" not in result.stdout and result.seconds < 30, str(result)


@pytest.mark.parametrize(
    ("condition", "module", "words", "said"),
    [
        ("rank == '1'", "mpi4py", ["--backend", "mpi"], "rank 1: --backend mpi: mpi4py is needed"),
        ("rank == '2'", "accdp_comm._core", [], "rank 2: accdp's core could not be loaded"),
        ("True", "mpi4py", ["--backend", "mpi"], "--backend mpi: mpi4py is needed"),
    ],
)
def test_a_rank_that_cannot_tell_the_others_ends_them(condition, module, words, said):
    """Not by jobs.run: what is killed in MPI_Init leaves MPICH's memory in /dev/shm, and that is taken away here."""
    child = LACKING.replace("rank == {rank!r}", condition).format(module=module, words=["bcast", "-m", "4:8", *words])
    before = jobs._shm_files()
    command = [*jobs.mpiexec_command(3), sys.executable, "-c", child]
    try:
        done = subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=60)
    finally:
        left = jobs._orphaned_shm(jobs._shm_files() - before)
        time.sleep(1)  # what another job makes just now it maps meanwhile
        for name in jobs._orphaned_shm(left):
            Path("/dev/shm", name).unlink(missing_ok=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("bench: ")]
    assert done.returncode and len(lines) == 1 and lines[0].startswith(f"bench: {said}"), done


def test_a_file_that_cannot_be_written_is_said_before_the_measurement(tmp_path):
    result = start(2, *module("bcast", *TINY, "--json", str(tmp_path / "none" / "o.jsonl")))
    assert result.returncode == 2 and "OSU MPI" not in result.stdout, str(result)
    said = f"rank 0 of 2: {tmp_path}/none/o.jsonl: No such file or directory\n"
    assert result.stderr.endswith(said) and result.stderr.count("\n") == 1, str(result)


@pytest.mark.parametrize(("datatype", "backends"), [("half", "accdp,mpi,gloo"), ("bfloat16", "accdp,accdp-torch")])
def test_sums_of_16_bits_are_exact(datatype, backends):
    if datatype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    words = ("allreduce", "-m", "2:64", *TINY, "-c", "-u", "0", "-T", datatype, "--backend", backends)
    result = start(3, *module(*words))
    assert result.returncode == 0, str(result)
    blocks = omb.parse(result.stdout)
    assert [block.datatype for block in blocks] == [datatype.upper()] * len(backends.split(",")), str(result)
    assert {line["Validation"] for block in blocks for line in block.rows} == {"Pass"}, str(result)


def test_bfloat16_moves_through_an_mpi_that_does_not_know_it():
    pytest.importorskip("ml_dtypes")
    for op in ("bcast", "latency"):
        words = (op, "-m", "2:64", *TINY, "-c", "-u", "0", "-T", "bfloat16", "--backend", "accdp,mpi,gloo")
        result = start(2, *module(*words))
        assert result.returncode == 0 and result.stdout.count("Pass") == 18, str(result)


def test_no_gpu_is_one_line():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for words, said in (
        ((), "-d cuda: torch finds no CUDA device here\n"),
        (("--backend", "accdp,nccl"), "--backend nccl: it moves CUDA memory only: expected -d cuda and a GPU\n"),
    ):
        result = start(2, *module("bcast", "-d", "cuda", *words))
        assert result.returncode == 2 and result.stderr.endswith(said), str(result)
        assert len(result.stderr.splitlines()) == 1 and result.stdout == "", str(result)


# CPU tensors in the place of a GPU's, which the harness takes for device memory: all but CUDA itself.
STAND_IN = """
import sys
from accdp_comm.bench import command, memory, session
class Device(memory.Tensors):
    finished = 0
    def __init__(self, device):
        assert device == "cuda:0"
        super().__init__("cpu")
        self.is_device = True
    def finish(self):
        Device.finished += 1
session.Tensors, session.use_gpu, session.gpu_id = Device, lambda local_rank: "cuda:0", lambda device: "uuid"
session.free_bytes = lambda device: {free}
sys.exit(any(command.main(words, "bench") for words in {lines!r}) or Device.finished < {calls})
"""


def test_all_operations_on_tensors_of_a_stand_in_for_a_device():
    pytest.importorskip("ml_dtypes")
    several = ("--backend", "accdp,mpi,accdp-torch,gloo", "--mpi-is-cuda-aware", "-d", "cuda")
    sized = ("-m", "24:24", "-c", "-u", "0", "-T", "mpi_float")
    lines = [(op, *several, *TINY, *(sized if row.kind != "barrier" else ())) for op, row in OPERATIONS.items()]
    lines = [line + (("--busbw", "gpus") if line[0] == "allreduce" else ()) for line in lines]
    lines.append(
        ("bcast", "-d", "cuda", "--backend", "accdp,mpi", "--mpi-is-cuda-aware", *TINY, *sized, "-T", "bfloat16")
    )
    result = start(2, "-c", STAND_IN.format(lines=lines, calls=len(lines) * 5, free=1 << 40))
    assert result.returncode == 0, str(result)
    blocks = omb.parse(result.stdout)
    assert {block.operation for block in blocks} == set(OPERATIONS), str(result)
    checked = [line["Validation"] for block in blocks for line in block.rows if "Validation" in line]
    assert set(checked) == {"Pass"} and "n = 1 counts gpus" in result.stdout, str(result)


@pytest.mark.parametrize(("free", "sets"), [(1 << 40, 64), (1 << 16, 4)])
def test_calls_go_round_as_many_buffers_as_there_is_memory_for(tmp_path, free, sets):
    out = tmp_path / "o.jsonl"
    line = ("bcast", "-d", "cuda", "--backend", "accdp-torch", *TINY, "-m", "4k:4k", "--json", str(out))
    result = start(2, "-c", STAND_IN.format(lines=[line], calls=1, free=free))
    assert result.returncode == 0, str(result)
    assert [row["buffer_sets"] for row in rows_of(out)] == [sets]


@pytest.mark.parametrize(
    ("words", "free", "said"),
    [
        (("--backend", "nccl"), 1 << 40, "2 ranks on 1 GPUs: expected one rank per GPU, or NCCL_MULTI_RANK_GPU_ENABLE"),
        (("-m", "64k:64k"), 1 << 16, "but 32768 are free for each of 2 ranks of a GPU: expected a smaller -m"),
        (("--backend", "mpi"), 1 << 40, "with -d cuda the MPI must take device memory: say --mpi-is-cuda-aware"),
    ],
)
def test_refusals_on_a_gpu_are_one_line(words, free, said):
    child = STAND_IN.format(lines=[("bcast", "-d", "cuda", *TINY, *words)], calls=0, free=free)
    child = "from accdp_comm.bench import torch_backends; torch_backends.why_not = lambda *name: None\n" + child
    result = start(2, "-c", child)
    assert result.returncode and said in result.stderr and result.stderr.count("\n") == 1, str(result)


def test_ranks_that_mpi_does_not_know_are_refused():
    """Two processes that torchrun would have started: MPI makes a world of one of each."""
    result = jobs.run(
        [sys.executable, *module("bcast", "--backend", "mpi")], env={"RANK": "0", "WORLD_SIZE": "2"}, timeout=60.0
    )
    assert result.returncode == 2 and "MPI sees a world of 1 where there are 2 ranks" in result.stderr, str(result)


@pytest.mark.parametrize(
    ("variables", "words", "status", "said"),
    [
        ({"WORLD_SIZE": "2"}, ("allreduce", "-m", "4:4", "--ranks", "2", "-i", "2"), 0, "Allreduce Latency Test"),
        ({"PMI_RANK": "1"}, ("allreduce", "-m", "4:4", "--ranks", "2"), 2, "this is a rank of mpiexec (MPICH family)"),
        ({"PMI_RANK": "1"}, ("nosuch",), 2, "invalid choice: 'nosuch'"),
        ({"RANK": "1"}, ("nosuch",), 2, "invalid choice: 'nosuch'"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("allreduce",), -signal.SIGTERM, "RANK=1 and WORLD_SIZE=2 are set, as by"),
        (
            {"PMI_FD": "999", "PMI_RANK": "0", "PMI_SIZE": "2"},  # of a rank's child
            ("allreduce", "--ranks", "2"),
            -signal.SIGTERM,
            "PMI_FD=999 is not open in this process",
        ),
    ],
)
def test_what_others_left_in_the_environment_is_told(variables, words, status, said, tmp_path):
    rows = tmp_path / "rows.jsonl"
    json_file = ("--json", str(rows)) if status == 0 else ()
    result = jobs.run([sys.executable, "-m", "accdp_comm", "bench", *words, *json_file], env=variables, timeout=60.0)
    assert result.returncode == status and said in result.stdout + result.stderr, str(result)
    assert "Traceback" not in result.stderr, str(result)
    assert status or {json.loads(line)["ranks"] for line in rows.read_text().splitlines()} == {2}


def test_mpi_alone_needs_no_core():
    """So that the same code measures an MPI that accdp was not built with."""
    child = (
        "import sys; sys.modules['accdp_comm._core'] = None; sys.modules['torch'] = None\n"
        "from accdp_comm.bench.command import main; sys.exit(main())"
    )
    result = start(2, "-c", child, "allreduce", "-m", "4:8", *TINY, "-c", "--backend", "mpi")
    assert result.returncode == 0 and len(omb.parse(result.stdout)[0].rows) == 2, str(result)
