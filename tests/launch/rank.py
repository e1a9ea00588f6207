"""A rank without torch or MPI: ``python rank.py BEHAVIOUR [ARGUMENT ...]``; says a JSON line when under way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(behaviour: str, argument: str = "", mark: str = "", seconds: str = "0.7", label: str = "") -> None:
    rank = int(os.environ["RANK"])
    if behaviour == "stubborn":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    if behaviour == "usr1":
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(40 + rank))
    if behaviour == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(print(json.dumps({"told": number}))))
    child = subprocess.Popen(["sleep", "1000"]).pid if behaviour in ("parent", "leaving") else 0
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    said = {name: os.environ.get(name) for name in (*names, "ACCDP_TUNED_BATCH_SIZE", "ACCDP_CODEC")}
    said |= {"pid": os.getpid(), "guard": os.getppid(), "cpus": sorted(os.sched_getaffinity(0)), "child": child}
    said |= {"stdin": sys.stdin.read()} if behaviour == "stdin" else {}
    if behaviour == "saves":
        try:
            print(json.dumps(said), flush=True)
            while True:
                time.sleep(0.05)
        except KeyboardInterrupt:
            time.sleep(0.5)
            Path(argument, f"saved.{rank}").touch()
            raise
    print(json.dumps(said))
    if behaviour == "fail" and rank == int(argument):
        raise ValueError(f"rank {rank} has had enough")
    if behaviour == "fail_slowly":
        # The others notice and fail before the first has ended.
        if rank == int(argument):
            print(f"{label}Traceback (most recent call last):\n{label}the cause", file=sys.stderr)
            time.sleep(float(seconds))
        else:
            while not Path(mark).exists():  # until the launcher has shown that: what comes at once has no order
                time.sleep(0.01)
            print(f"{label}Traceback (most recent call last):\n{label}a consequence", file=sys.stderr)
        sys.exit(1)
    if behaviour == "missed":  # rank 1 leaves in order; the others wait for it, and then give up
        if rank == 1:
            guard = Path(argument).with_suffix(".guard")
            guard.write_text(str(os.getppid()))
            guard.rename(argument)
            sys.exit()
        while not Path(argument).exists() or Path("/proc", Path(argument).read_text()).exists():
            time.sleep(0.01)
        await_job()  # it has heard of that
        sys.exit("rank 1 did not come")
    if behaviour == "exit":
        sys.exit(int(argument) if rank == 1 else 0)
    if behaviour == "exit_saying":  # more than all pipes take
        sys.stderr.write(("x" * 99 + "\n") * 30_000)
        sys.exit(int(argument))
    if behaviour in ("raise_in_mpi", "exit_in_mpi"):
        in_mpi(behaviour, rank)
    if behaviour == "lines":
        for number in range(int(argument)):
            os.write(1, f"{rank} {number} ".encode())
            os.write(1, b"x" * 50 + b"\n")
            os.write(2, f"{rank} {number}\n".encode())
    if behaviour not in ("once", "stdin", "leaving", "lines"):
        signal.pause()


def await_job() -> None:
    """Wait until `accdp run`, of those above the one that was told what ranks do, has done what there was to do."""
    sys.path.append(str(Path(__file__).parent.parent))
    from when_asleep import until_asleep

    pid = os.getppid()
    while sys.argv[1].encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    until_asleep(pid)


def in_mpi(behaviour: str, rank: int) -> None:
    """Rank 1 leaves MPI in disorder, for which launchers end the job; the others miss it."""
    import numpy as np

    from accdp_comm import Communicator

    comm = Communicator()
    comm.barrier()
    if rank == 1:
        if behaviour == "exit_in_mpi":
            os._exit(7)
        raise ValueError("rank 1 has had enough")
    comm.allreduce(np.ones(4))


if __name__ == "__main__":
    main(*sys.argv[1:])
