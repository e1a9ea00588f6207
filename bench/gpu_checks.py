"""What the ranks of the GPU check share: checks that all of them go through together, inputs, and times."""

from __future__ import annotations

import contextlib
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from accdp_comm import Communicator

Expect = Callable[[bool, str], None]  # Checks.expect


def said_of(error: Exception) -> str:
    """The first line of an error, and the place in these files or elsewhere that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{f'{type(error).__name__}: {error}'.splitlines()[0]} ({Path(place.filename).name}:{place.lineno})"


class Checks:
    """Checks that all ranks go through together; what fails is written down, and all go on to the next.

    A comparison that fails on one rank raises nothing, because the others wait for that rank in the next collective.
    After each check the ranks meet in a barrier. Those that all raised the same go on from there. Where some still wait
    inside the check, their call is not the barrier, or its deadline is the earlier one: either way they raise, too.
    """

    def __init__(self, comm: Communicator, log: Path):
        self._comm, self._log, self._name = comm, log, ""
        self.failures: list[str] = []

    @contextlib.contextmanager
    def one(self, name: str) -> Iterator[None]:
        """One check. Raises where the ranks cannot meet any more, which ends the job."""
        self._name = name
        try:
            yield
        except Exception as error:
            self.expect(False, said_of(error))
        self._comm.barrier()

    def expect(self, holds: bool, what: str) -> None:
        """Write down what was asked if it does not hold."""
        if not holds:
            self.failures.append(f"rank {self._comm.rank}: {self._name}: {what}")
            with self._log.open("a") as log:  # one for all ranks of this machine: a line is one write
                log.write(f"{self.failures[-1]}\n")


def inputs(rank: int, count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Small integers, so that sums are exact in every type; made on the device, by work on the current stream."""
    return ((torch.arange(count, device=device) * 7 + rank) % 13).to(dtype)


def seconds(run, comm: Communicator, device: str, repeats: int) -> float:
    """Median of the slowest rank's time of one call, the device's work included."""
    slowest = torch.empty(1, dtype=torch.float64)
    times = []
    for turn in range(repeats + 3):
        comm.barrier()
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        slowest[0] = time.perf_counter() - start
        comm.allreduce(slowest, "max")
        if turn >= 3:
            times.append(float(slowest[0]))
    return statistics.median(times)
