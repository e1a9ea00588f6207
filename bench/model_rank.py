"""One rank of a job of bench/model.py --check: what allreduce takes here, and alpha and beta as measured here."""

from __future__ import annotations

import json
import sys
from time import perf_counter

import numpy as np

from accdp_comm import Communicator
from accdp_comm.bench.statistics import spread
from accdp_comm.plan import MACHINE_FIELDS

_LEAST, _MOST = 5, 40  # samples of a size
_SIZE_SECONDS = 1.5
_CALLS = 8  # in a sample, up to 1 MiB


def slowest(comm: Communicator, seconds: float) -> float:
    return float(comm.allreduce(np.array([seconds]), "max")[0])


def sample(comm: Communicator, data: np.ndarray, calls: int) -> float:
    """Seconds of a call, of several one after the other."""
    comm.barrier()
    began = perf_counter()
    for _ in range(calls):
        comm.allreduce(data)
    return slowest(comm, (perf_counter() - began) / calls)


def main(sizes: str, out: str) -> None:
    with Communicator() as comm:
        for _ in range(2):  # connections are made on the way
            comm.allreduce(np.zeros(1 << 18, np.float32))
        machine = comm.measure()
        rows = []
        for nbytes in map(int, sizes.split(",")):
            data = np.zeros(nbytes // 4, np.float32)
            calls = _CALLS if nbytes <= 1 << 20 else 1
            once = min(sample(comm, data, calls) for _ in range(3)) * calls
            seconds = [sample(comm, data, calls) for _ in range(int(np.clip(_SIZE_SECONDS / once, _LEAST, _MOST)))]
            found, times = comm.plan("allreduce", data), spread(seconds)
            rows.append(
                {
                    "bytes": nbytes,
                    "samples": len(seconds),
                    "calls": calls,
                    "measured_s": times["median_s"],
                    "p10_s": times["p10_s"],
                    "p90_s": times["p90_s"],
                    "plan_s": found.seconds,
                    "algorithm": found.algorithm,
                    "lanes": found.chosen.lanes,
                    "meets_at_hub": comm._core.shape.meets_at_hub,
                    "machine_measured": {name: getattr(machine, name) for name in MACHINE_FIELDS},
                }
            )
        if comm.rank == 0:
            with open(out, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
