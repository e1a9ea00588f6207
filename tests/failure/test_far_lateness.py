"""A rank that comes late to ranks of other nodes learns at once that they gave up, who said so, and in which call."""

import sys

import jobs
import pytest

LIMIT_S = 1.0

# The last rank comes when all others have given up, which files tell it; they stay until it has said what it met.
LATE = """
import pathlib, sys, time
import accdp_comm, numpy as np
folder, operation = pathlib.Path(sys.argv[1]), sys.argv[2]
comm = accdp_comm.Communicator()
comm.barrier()

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
print(f'{{"rank": {comm.rank}, "seconds": {seconds:.3f}, "said": "{said}"}}\\n', end="", flush=True)  # one write
(folder / f"rank{comm.rank}").touch()
await_files([f"rank{late}"])
"""


@pytest.mark.parametrize(
    ("topology", "operation", "call"),
    [("2x1", "barrier", "barrier #2"), ("2x1", "3", "allreduce #2"), ("3x1", "500000", "allreduce #2")],
)
def test_late_rank_of_another_node(tmp_path, topology, operation, call):
    size = int(topology[0])
    command = [*jobs.mpiexec_command(size), sys.executable, "-c", LATE, str(tmp_path), operation]
    result = jobs.run(command, env={"ACCDP_TOPOLOGY": topology, "ACCDP_TIMEOUT_S": f"{LIMIT_S:g}"}, timeout=60.0)
    reports = {report["rank"]: report for report in result.reports}
    assert sorted(reports) == list(range(size)), str(result)
    late = reports.pop(size - 1)
    for report in reports.values():
        assert f"{call} Timed out after {LIMIT_S:g} s (timeout) waiting for rank" in report["said"], str(result)
        assert LIMIT_S - 0.1 < report["seconds"] < LIMIT_S + 2, str(result)
    assert f"{call} Timed out after {LIMIT_S:g} s (timeout) waiting for rank" in late["said"], str(result)
    assert any(f", says rank {rank} (pid" in late["said"] for rank in reports), str(result)
    assert late["seconds"] < 0.5, str(result)
