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

from accdp_comm import Communicator, UsageError, waitall

LIMIT_S = 20


class OfCommunicator:
    """What ranks do, rank 0 while it has works under way that rank 1 answers later."""

    def __init__(self) -> None:
        self.comm = Communicator(timeout_s=LIMIT_S)
        self.rank = self.comm.rank
        for _ in range(2):  # a long message each way: the thread that moves what nobody waits for has started
            work = self.comm.isend(np.ones(100_000), 1 - self.rank)
            self.comm.recv(np.empty(100_000), 1 - self.rank)
            work.wait()

    def call(self) -> None:
        self.comm.allreduce(np.ones(3))

    def begin(self) -> list:
        return [self.comm.irecv(np.empty(3), 1), self.comm.isend(np.ones(100_000), 1)]

    def misuses(self, works: list) -> list[Callable[[], object]]:
        return [self.call, lambda: waitall(works), *(way for w in works for way in (w.wait, w.test, w.is_completed))]

    def release(self) -> None:
        self.comm.send(np.ones(1), 1, tag=1)

    def answer(self) -> None:
        self.comm.recv(np.empty(1), 0, tag=1)
        self.comm.send(np.ones(3), 0)
        self.comm.recv(np.empty(100_000), 0)


class OfTorch:
    """The same of torch's default group."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("accdp", timeout=datetime.timedelta(seconds=LIMIT_S))
        self.torch, self.dist, self.rank = torch, dist, dist.get_rank()

    def call(self) -> None:
        self.dist.all_reduce(self.torch.ones(3))

    def begin(self) -> list:
        return [self.dist.irecv(self.torch.empty(3), 1), self.dist.all_reduce(self.torch.ones(3), async_op=True)]

    def misuses(self, works: list) -> list[Callable[[], object]]:
        later = [lambda: self.dist.all_reduce(self.torch.ones(3), async_op=True)]
        return [self.call, *later, *(way for w in works for way in (w.wait, w.is_completed, w.get_future))]

    def release(self) -> None:
        self.dist.send(self.torch.ones(1), 1, tag=1)

    def answer(self) -> None:
        self.dist.recv(self.torch.empty(1), 0, tag=1)
        self.dist.send(self.torch.ones(3), 0)
        self.call()


def misuse(ways: list[Callable[[], object]]) -> list[str]:
    """What each way is told."""
    said = []
    for way in ways:
        try:
            said.append(f"nothing, but {way()}")
        except (UsageError, ValueError) as error:  # torch's callers know the latter
            said.append(str(error))
    return said


def main() -> None:
    group = {"communicator": OfCommunicator, "torch": OfTorch}[sys.argv[1]]()
    group.call()
    if group.rank == 0:
        works = group.begin()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(LIMIT_S)
            os.write(writer, json.dumps(misuse(group.misuses(works))).encode())
            del works, group  # and with it the communicator
            sys.exit()
        _, status = os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as file:
            assert status == 0, f"the forked process ended with status {status}: {file.read()}"
            said = json.load(file)
        assert len(said) >= 8, said
        for text in said:
            assert f"from pid {child}, which was forked from it" in text, text
        group.release()
        for work in works:
            work.wait()
    else:
        group.answer()
    group.call()
    print(json.dumps({"rank": group.rank}))


main()
