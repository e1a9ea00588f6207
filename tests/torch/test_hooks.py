"""The communication hook that averages gradients compressed between nodes."""

import sys
from pathlib import Path

import jobs
import pytest
import torch
import torch.distributed as dist

from accdp_comm import UsageError, relative
from accdp_comm.hooks import compressed_allreduce

CHILD = str(Path(__file__).with_name("hooks_child.py"))


@pytest.mark.parametrize("topology", ["2x1", "2x2"])
def test_between_declared_nodes(topology):
    ranks = 2 if topology == "2x1" else 4
    result = jobs.run(
        [*jobs.mpiexec_command(ranks), sys.executable, CHILD], env={"ACCDP_TOPOLOGY": topology}, timeout=100
    )
    assert result.returncode == 0 and len(result.reports) == ranks, str(result)


class Bucket:
    """What the hook asks of DDP's buckets."""

    def __init__(self, *parameters):
        self._parameters = parameters

    def parameters(self):
        return list(self._parameters)

    def buffer(self):
        return torch.zeros(sum(parameter.numel() for parameter in self._parameters))


@pytest.mark.on_ranks(1)
def test_what_was_left_out_follows_its_parameter_into_other_buckets(rank, size):
    """DDP sorts parameters into other buckets after the first step; and what no bucket has any more is not kept."""
    hook = compressed_allreduce(relative(0.1))
    one, two, three = torch.zeros(2), torch.zeros(3), torch.zeros(1)
    first = hook._residual_of(Bucket(one, two), [2, 3])
    first.copy_(torch.arange(5.0))
    hook._residual_of(Bucket(three), [1]).fill_(9)
    moved = hook._residual_of(Bucket(two, three), [3, 1])
    assert moved.tolist() == [2, 3, 4, 9]
    assert hook._residual_of(Bucket(one), [2]).tolist() == [0, 1]
    assert hook._residual_of(Bucket(two, three), [3, 1]) is moved
    assert len(hook._buckets) == 2


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
