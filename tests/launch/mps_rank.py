"""A rank that uses its GPU as a CUDA program would: ``python mps_rank.py BEHAVIOUR``; says one JSON line when it does.

BEHAVIOUR: work (until told), once (attach, then end), stubborn (ignores SIGTERM), outside (on the GPU, but not through
MPS), survivor (minds no error of its GPU), fail (rank 1 raises once it is attached), slow (takes 2 s to leave),
deaf (ignores SIGTERM, ends when its work was ended), plain (as work, but by SIGTERM it ends at once).
"""

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path


def load_cuda() -> mmap.mmap:
    """Have the driver's library in memory, or a file of its name."""
    path = Path(os.environ["STAND_IN_GPUS"], "libcuda.so.1")
    with path.open("ab") as file:  # others may have it in memory
        file.write(b"x")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def attach() -> tuple[socket.socket, str]:
    """Become a client; return the connection, and how much of the GPU the daemon leaves its clients, in percent."""
    daemon = socket.socket(socket.AF_UNIX)
    daemon.connect(f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control")
    daemon.sendall(f"client {os.getpid()}".encode())
    answer = daemon.recv(1000)
    if not answer.startswith(b"attached"):
        raise RuntimeError(f"CUDA error: {answer.decode()}")
    return daemon, answer.decode().split()[1]


def come_together(mark: Path) -> None:
    """Use the GPU from the same moment on as all ranks: who looks at the GPU sees all of them or none."""
    waiting, come = mark.parent.parent.with_name("waiting"), mark.parent.parent.with_name("come")
    for folder, name in ((waiting, mark.name), (come, os.environ["RANK"])):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    while not mark.exists():
        if os.environ["RANK"] == "0" and len(list(come.iterdir())) == int(os.environ["WORLD_SIZE"]):
            mark.parent.parent.mkdir()
            waiting.rename(mark.parent)
        time.sleep(0.01)


def main(behaviour: str) -> None:
    stopping, told = os.pipe()
    if behaviour != "plain":
        signal.signal(signal.SIGTERM, lambda *_: behaviour in ("stubborn", "deaf") or os.write(told, b"x"))
    _library = load_cuda()
    mark = Path(os.environ["STAND_IN_GPUS"], "on", os.environ["CUDA_VISIBLE_DEVICES"], str(os.getpid()))
    daemon, percentage = None, None
    if behaviour == "outside":
        come_together(mark)
    else:
        with contextlib.suppress(*([RuntimeError, OSError] if behaviour == "survivor" else [])):
            daemon, percentage = attach()
        mark.parent.mkdir(parents=True, exist_ok=True)  # as a client it is on the GPU
        mark.touch()
    names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "ACCDP_RANKS_PER_GPU", "OMP_NUM_THREADS")
    mps = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    said = {"pid": os.getpid(), "daemon_leaves": percentage, **{name: os.environ.get(name) for name in (*names, *mps)}}
    try:
        print(json.dumps(said))  # and from then on Ctrl-C may come
        if behaviour == "fail" and os.environ["RANK"] == "1":
            journal = Path(os.environ["STAND_IN_JOURNAL"])
            while journal.read_text().count("\nclient ") < int(os.environ["WORLD_SIZE"]):
                time.sleep(0.01)
            raise ValueError("rank 1 has had enough")
        if behaviour in ("work", "stubborn", "fail", "outside", "survivor", "slow", "deaf", "plain"):
            # Kernels run until somebody says stop: SIGTERM, or MPS by terminate_client.
            ready = select.select([stopping, *([daemon] if daemon else [])], [], [])[0]
            if behaviour == "stubborn" and daemon in ready:
                signal.pause()  # its work on the GPU is gone, the process is not
            if behaviour == "slow":
                time.sleep(2)
    finally:
        if daemon:
            daemon.sendall(b"bye")
        mark.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1])
