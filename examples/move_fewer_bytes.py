"""Broadcast a model's weights in every way that bcast_compressed has, and show what went over the wire.

    mpiexec -n 2 -hosts a,b python examples/move_fewer_bytes.py            ranks on two nodes of a cluster
    ACCDP_TOPOLOGY=2x1 accdp run -n 2 examples/move_fewer_bytes.py         two "nodes" on one machine

On one node "auto" compresses nothing, because shared memory is faster than any codec: the topology only pretends.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn

import accdp_comm


def model(layers: int) -> nn.Module:
    """A transformer as PyTorch makes it, in bfloat16: 3.2 million weights per layer."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(torch.bfloat16)


def step(weights: dict[str, Tensor]) -> None:
    """As an optimiser moves weights: by about 1e-5 each, which changes few of their bits."""
    for tensor in weights.values():
        tensor += torch.randn(tensor.shape).mul_(1e-5).to(tensor.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4, help="size of the model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("accdp")
    torch.manual_seed(dist.get_rank())  # ranks begin with different weights
    weights = model(args.layers).state_dict()

    def show(name: str, result: accdp_comm.BcastResult) -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            mib = (result.logical_bytes / 2**20, result.wire_bytes / 2**20)
            print(
                f"{name:<14}{mib[0]:8.2f} MiB as {mib[1]:6.2f} MiB, {result.ratio:6.2f}x by {result.codec}", flush=True
            )

    accdp_comm.bcast_compressed(weights)  # warm up: connections, and the speed of the link
    for name, options in {
        "none": {"codec": "none"},
        "auto": {},
        "zhuff": {"codec": "zhuff"},
        "relative 0.1": {"codec": "qpk", "error_bound": accdp_comm.relative(0.1)},
    }.items():
        show(name, accdp_comm.bcast_compressed(weights, **options))

    sync = accdp_comm.WeightSync(weights, codec="zhuff")  # as a trainer feeds its rollout workers
    for version in range(1, 4):
        if dist.get_rank() == 0:
            step(weights)
        show(f"version {version}", sync.sync())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
