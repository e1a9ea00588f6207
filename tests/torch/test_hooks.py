"""The communication hook that averages gradients compressed between nodes."""

import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist

from accdp_comm import UsageError
from accdp_comm.hooks import compressed_allreduce

CHILD = str(Path(__file__).with_name("hooks_child.py"))


@pytest.mark.parametrize("topology", ["2x1", "2x2"])
def test_between_declared_nodes(topology):
    ranks = 2 if topology == "2x1" else 4
    result = jobs.run(
        [*jobs.mpiexec_command(ranks), sys.executable, CHILD], env={"ACCDP_TOPOLOGY": topology}, timeout=100
    )
    assert result.returncode == 0 and len(result.reports) == ranks, str(result)


@pytest.mark.on_ranks(2)
def test_wrong_hooks(rank, size):
    with pytest.raises(UsageError, match="codec=best"):
        compressed_allreduce(codec="best")
    with pytest.raises(UsageError, match="error_bound: expected a finite number > 0"):
        compressed_allreduce(-1.0)
    with pytest.raises(UsageError, match="codec=qpk: expected an error_bound, because it is lossy"):
        compressed_allreduce(codec="qpk")  # here, not in the first backward pass
    with pytest.raises(UsageError, match="group is a str: expected a torch process group or a Communicator"):
        compressed_allreduce(group="world")
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(UsageError, match="its backend is gloo, expected accdp"):
        compressed_allreduce(group=gloo)
