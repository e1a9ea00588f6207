"""Who waits in vain says of a rank of its node what that does instead."""

import re
import sys

import jobs
import pytest

RANK = str(jobs.TESTS / "failure" / "whereabouts_rank.py")
IDLE = r"; rank 2 has been in no collective for (1\.\d+|[2-9](\.\d+)?) s$"
LATE = r"allreduce #\d+ Timed out after 2 s \(timeout\) waiting for rank 2 \(pid \d+, host [^)]+\)"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("idle", LATE + IDLE),
        ("stopped", LATE + "; rank 2 is stopped$"),
        ("elsewhere", LATE + r"; rank 2 is in allreduce \(sum\) of 3 float32 #1 of group \S+$"),
        ("message", "recv of 12 bytes, tag 0 Timed out after .*" + IDLE),
    ],
)
def test_what_the_missing_rank_does(mode, said, tmp_path):
    result = jobs.run([*jobs.mpiexec_command(3), sys.executable, RANK, mode, str(tmp_path / "gate")], timeout=60.0)
    told = {report["rank"]: report["said"] for report in result.reports}
    assert re.search(said, told[0]), str(result)
    assert mode == "message" or told[1].partition(": ")[2] == told[0].partition(": ")[2], str(result)
