"""Under mpiexec: rank 0 forks a process that uses its group and ends as Python ends; the group goes on all the same.

The argument: whose group, "communicator" or "torch".
"""

import datetime
import json
import os
import signal
import sys
from collections.abc import Callable

import numpy as np

from accdp_comm import Communicator, UsageError

LIMIT_S = 20


def communicator() -> tuple[int, Callable[[], object], object]:
    comm = Communicator(timeout_s=LIMIT_S)
    x = np.ones(3)
    for _ in range(2):  # a long message each way: the thread that moves what nobody waits for has started
        work = comm.isend(np.ones(100_000), 1 - comm.rank)
        comm.recv(np.empty(100_000), 1 - comm.rank)
        work.wait()
    return comm.rank, lambda: comm.allreduce(x), comm


def torch_group() -> tuple[int, Callable[[], object], object]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=LIMIT_S))
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).wait()  # the group's worker has started
    return dist.get_rank(), lambda: dist.all_reduce(x), None


def main() -> None:
    rank, call, kept = {"communicator": communicator, "torch": torch_group}[sys.argv[1]]()
    call()
    said = ""
    if rank == 0:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(LIMIT_S)
            try:
                call()
            except (UsageError, ValueError) as error:  # torch's callers know the latter
                os.write(writer, str(error).encode())
            del kept  # with it the group, if this was the last
            sys.exit()
        _, status = os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as file:
            said = file.read()
        assert status == 0, f"the forked process ended with status {status}"
        assert "which was forked from it after the group was formed" in said and f"pid {child}," in said, said
    call()
    os.write(1, (json.dumps({"rank": rank}) + "\n").encode())  # in one piece: the other rank writes, too


main()
