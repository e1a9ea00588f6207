"""Train a small CNN on handwritten digits while ranks die, and go on without them.

    python examples/outlive.py                              4 ranks; rank 1 is killed at step 60, rank 3 at step 120
    python examples/outlive.py --ranks 3 --kill 0@10 2@20

Ranks are plain processes here, as no launcher may end those that live. They meet through a file; where rank 0 serves
torch's store (MASTER_ADDR), none can go on without it. The global batch is the same for any number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile

import common
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from train_digits import evaluate, load, network

import accdp_comm


def train(rank: int, store: str, args: argparse.Namespace) -> None:
    """One rank, from beginning to end, or until it is killed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("accdp", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    images, digits, test_images, test_digits = load()
    order = torch.randperm(args.steps * args.batch_size, generator=torch.Generator().manual_seed(0)) % len(images)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    replica, step = None, 0
    while step < args.steps:
        try:
            if replica is None:
                # Some ranks may have done a step that others have not: all take rank 0's, and its weights.
                step = common.from_rank_0(lambda step=step: step)
                replica = DistributedDataParallel(model)
            if (rank, step) in args.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = order[step * args.batch_size :][: args.batch_size][dist.get_rank() :: dist.get_world_size()]
            optimizer.zero_grad()
            F.cross_entropy(replica(images[mine]), digits[mine]).backward()
        except dist.DistBackendError as error:
            replica = None  # it has the old group, and hooks at the parameters
            accdp_comm.shrink()
            if dist.get_rank() == 0:
                print(f"{error}\n{dist.get_world_size()} ranks go on with step {step}", flush=True)
            continue
        optimizer.step()
        step += 1
    accuracy, _ = evaluate(model, test_images, test_digits)
    if dist.get_rank() == 0:
        print(json.dumps({"began": args.ranks, "left": dist.get_world_size(), "test_accuracy": accuracy}))
    replica = None
    dist.destroy_process_group()


def death(text: str) -> tuple[int, int]:
    rank, _, step = text.partition("@")
    return int(rank), int(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=common.positive, default=4)
    parser.add_argument("--steps", type=common.positive, default=250)
    parser.add_argument("--batch-size", type=common.positive, default=64, help="of all ranks together")
    parser.add_argument("--kill", type=death, nargs="*", default=[(1, 60), (3, 120)], metavar="RANK@STEP")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.Process(target=train, args=(rank, f"{folder}/store", args)) for rank in range(args.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    killed = {rank for rank, _ in args.kill}
    failed = [rank for rank, process in enumerate(ranks) if rank not in killed and process.exitcode != 0]
    if failed:
        raise SystemExit(f"outlive.py: ranks {failed} failed")


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
