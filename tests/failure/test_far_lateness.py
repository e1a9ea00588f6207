"""A rank that comes late to ranks of other nodes learns at once that they gave up, who said so, and in which call."""

import sys

import jobs
import pytest

LIMIT_S = 1.0

# The last rank comes when all others have given up, which files tell it; they stay until it has said what it met.
LATE = """
import datetime, json, pathlib, sys, time
import accdp_comm, numpy as np
folder, operation, limit_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
comm = accdp_comm.Communicator()
comm.barrier()
comm._core.timeout_s = limit_s  # only now: ranks may take long to start

def await_files(names):
    while not all((folder / name).exists() for name in names):
        time.sleep(0.01)

late, others = comm.size - 1, [f"rank{rank}" for rank in range(comm.size - 1)]
if comm.rank == late:
    await_files(others)
began, said = time.monotonic(), "nothing"
try:
    comm.barrier() if operation == "barrier" else comm.allreduce(np.ones(int(operation)))
except accdp_comm.PeerTimeout as error:
    said = str(error)
seconds = time.monotonic() - began
print(json.dumps({"rank": comm.rank, "seconds": seconds, "said": said}))
(folder / f"rank{comm.rank}").touch()
await_files([f"rank{late}"])
"""


# The same on a part of a communicator, and on a torch group, of torchrun's ranks: nobody minds their deaths.
PART = LATE.replace("comm.barrier()\n", "comm = comm.split(0)\ncomm.barrier()\n", 1)
GROUP = LATE.replace(
    "comm = accdp_comm.Communicator()",
    """import torch, torch.distributed as dist
dist.init_process_group("accdp")
whole = dist.distributed_c10d._get_default_group()
class comm:
    rank, size, barrier = dist.get_rank(), dist.get_world_size(), dist.barrier
    def allreduce(array): dist.all_reduce(torch.from_numpy(array))""",
).replace("accdp_comm.PeerTimeout", "dist.DistBackendError")
GROUP = GROUP.replace("comm._core.timeout_s = limit_s", "whole.set_timeout(datetime.timedelta(seconds=limit_s))")


@pytest.mark.parametrize(
    ("topology", "operation", "call"),
    [("2x1", "barrier", "barrier #2"), ("2x1", "3", "allreduce #2"), ("3x1", "500000", "allreduce #2")],
)
def test_late_rank_of_another_node(tmp_path, topology, operation, call):
    size = int(topology[0])
    command = [*jobs.mpiexec_command(size), sys.executable, "-c", LATE, str(tmp_path), operation, f"{LIMIT_S:g}"]
    check(command, size, topology, call)


@pytest.mark.parametrize(
    ("script", "topology", "operation", "call"),
    [
        (LATE, "2x1", "3", "allreduce #2"),
        (PART, "3x1", "barrier", "barrier #2"),
        (GROUP, "3x1", "500000", "allreduce #2"),
    ],
    ids=["communicator", "part", "group"],
)
def test_late_rank_where_nobody_minds_deaths(tmp_path, script, topology, operation, call):
    if jobs.is_open_mpi(jobs.find_mpiexec()):
        pytest.skip("several nodes under torchrun need an MPI of the MPICH family")
    size = int(topology[0])
    (tmp_path / "late.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--master-port={jobs.free_port()}"]
    arguments = [str(tmp_path), operation, f"{LIMIT_S:g}"]
    check([*torchrun, f"--nproc-per-node={size}", str(tmp_path / "late.py"), *arguments], size, topology, call)


def check(command: list[str], size: int, topology: str, call: str) -> None:
    """Run it; the last rank must have said the same as the others, and who told it."""
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology}, timeout=60.0)
    reports = {report["rank"]: report for report in result.reports}
    assert sorted(reports) == list(range(size)), str(result)
    late = reports.pop(size - 1)
    for report in reports.values():
        assert f"{call} Timed out after {LIMIT_S:g} s (timeout) waiting for rank" in report["said"], str(result)
    assert f"{call} Timed out after {LIMIT_S:g} s (timeout) waiting for rank" in late["said"], str(result)
    assert any(f", says rank {rank} (pid" in late["said"] for rank in reports), str(result)
    waited = max(report["seconds"] for report in reports.values())  # who began later hears it of the others
    assert LIMIT_S - 0.1 < waited < LIMIT_S + jobs.SOON_S, str(result)
