"""bench/gpu_overlap.py on host memory: it sees gradients that travel during backward, and those that do not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Argument: "late" for sums that come when backward has ended, as they would in the order of its stream.
RANK = """
import json, sys, threading
import torch, torch.distributed as dist
import gpu_overlap
from accdp_comm import Communicator

class Late:
    def __init__(self, x, **_):
        self.future = torch.futures.Future()
        threading.Timer(2 * gpu_overlap.HOLD_S, self.future.set_result, [[x]]).start()
    def get_future(self):
        return self.future
    def wait(self):
        return self.future.done()

said = []
with Communicator(timeout_s=60) as comm:
    dist.init_process_group("accdp")
    in_time = dist.all_reduce
    if sys.argv[1] == "late":
        dist.all_reduce = Late
    found = gpu_overlap.check(comm, lambda holds, what: holds or said.append(what), "cpu")
    dist.all_reduce = in_time
    found |= gpu_overlap.measure(comm, "cpu")
    dist.destroy_process_group()
if comm.rank == 0:
    print(json.dumps(found | {"said": said}))
"""


@pytest.mark.parametrize("how", ["at once", "late"])
def test_overlap(tmp_path, how):
    rank = tmp_path / "rank.py"
    rank.write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\n{RANK}")
    command = [sys.executable, "-m", "accdp_comm", "run", "-n", "2", "--label", "never", str(rank), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["during_backward"] is (how == "at once")
    assert (found["spare_s"] > 0) is (how == "at once") and found["stood_still_s"] > 0.2
    assert len(found["said"]) == (how == "late")
    assert all("ms after backward had ended" in line for line in found["said"])
    assert min(found[name] for name in ("step_alone_s", "allreduces_s", "together_s")) > 0 and "hidden" in found
