"""What the tests of compressed broadcasts in torch groups share."""

import torch
import torch.distributed as dist
from compress_data import (
    array_of,
    codec_rows,
)
from data import MOVED_DTYPES

import accdp_comm

ROWS = {row["name"]: row for row in codec_rows()}
# By torch's and by our own names; what torch has not got is left out.
DTYPES = [name for name in MOVED_DTYPES if not name.startswith("float8")]


def calls_of(op: str) -> int:
    """How many of an operation this process has done since the last reset."""
    return {row["op"]: row["calls"] for row in accdp_comm.stats()}.get(op, 0)


def tensor_of(words, name: str) -> torch.Tensor:
    made = array_of(words, name)
    return made if isinstance(made, torch.Tensor) else torch.from_numpy(made)


def same_everywhere(*tensors: torch.Tensor, group=None) -> None:
    """All ranks have the same bits, the root too."""
    for tensor in tensors:
        mine = tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, mine.clone(), group=group)
        for other in everyone:
            assert torch.equal(other, everyone[0])
