"""A rank is killed with work of its GPU under way; a step of bench/gpu_check.py.

    python bench/gpu_kill.py --out FILE.json

Two ranks on GPU 0, started here, because launchers end the other ranks as well. Rank 1 makes its stream stand still for
a minute, hands an allreduce over behind that, and is killed. Rank 0's allreduce, and what follows on its stream, then
waits for work that never comes. Written down is what becomes of rank 0:
  noticed_s  after the death, until its next call raised; it must be an error that names rank 1, within LIMIT_S
  error      its text
  ended      with which status it left in order (`exit`: destroy_process_group and the interpreter's end) or by os._exit
  ended_s    how long that took; "killed" where it had not ended by then: on a device that waits for ever the driver may
             not let a process go, which is what "Not cudaFree() ..." in docs/gpu.md is about
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 10.0
LEAVING_S = 15.0  # which includes what the package waits for readers of its memory
STILL_S = 60.0
CYCLES_PER_S = 2e9
WAYS = ("exit", "os._exit")


def rank(way: str, device: str, folder: Path) -> None:
    """What each rank does; rank 0 says in a file what became of it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("accdp")
    x = torch.ones(1 << 20, device=device)
    dist.all_reduce(x)  # sets up what the ranks share
    said = folder / "rank0.json"
    if dist.get_rank() == 1:
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda._sleep(int(STILL_S * CYCLES_PER_S))
            dist.all_reduce(x)
        (folder / "dies").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:  # the first is handed over, a later one finds that rank 1 is gone
            dist.all_reduce(x)
    except Exception as error:
        died = float((folder / "dies").read_text())
        text = f"{type(error).__name__}: {error}"
        said.write_text(json.dumps({"noticed_s": time.time() - died, "error": text.splitlines()[0]}))
    if way == "os._exit":
        os._exit(0)
    dist.destroy_process_group()


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def scene(way: str, device: str) -> dict:
    """Play it once."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, __file__, "--rank", way, "--device", device]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ranks = [
            subprocess.Popen(
                [*command, "--out", name],
                env={**os.environ, **where, "RANK": str(number), "LOCAL_RANK": str(number)},
                stdin=subprocess.DEVNULL,
            )
            for number in range(2)
        ]
        found: dict = {"way": way}
        said, dies = folder / "rank0.json", folder / "dies"
        try:
            end = time.monotonic() + 45
            while not dies.exists() and time.monotonic() < end and ranks[0].poll() is None:
                time.sleep(0.05)
            end = time.monotonic() + LIMIT_S
            while not said.exists() and time.monotonic() < end and ranks[0].poll() is None:
                time.sleep(0.05)
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ranks[0].wait(LEAVING_S)
            status = ranks[0].poll()
            found |= {"ended": "killed" if status is None else status, "ended_s": time.monotonic() - began}
            found |= json.loads(said.read_text()) if said.exists() else {"failed": "rank 0 got no error"}
        finally:
            for one in ranks:
                one.kill()
            for one in ranks:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(5)
    if "rank 1" not in found.get("error", "rank 1"):
        found["failed"] = "the error does not name rank 1"
    elif found.get("noticed_s", 0) > LIMIT_S:
        found["failed"] = f"the error came after {found['noticed_s']:.1f} s"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rank", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options.rank, options.device, options.out)
        return
    rows = []
    for way in WAYS:
        rows.append(scene(way, options.device))
        options.out.write_text(json.dumps({"rows": rows}))
    if failed := [row for row in rows if "failed" in row]:
        sys.exit(f"gpu_kill.py: {failed}")


if __name__ == "__main__":
    main()
