"""Rank 0 stays for a while after the others have left the group, as one that writes a checkpoint does."""

import json
import time

import torch
import torch.distributed as dist

STAYS_S = 8.0  # longer than accdp waits for others where no launcher would end them


def main() -> None:
    dist.init_process_group("accdp")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    if rank == 0:
        time.sleep(STAYS_S)
    print(json.dumps({"rank": rank}))


if __name__ == "__main__":
    main()
