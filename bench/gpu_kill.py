"""A rank is killed with work of its GPU under way; a step of bench/gpu_check.py.

    python bench/gpu_kill.py --out FILE.json

Two ranks on GPU 0, started here, because launchers end the other ranks as well, and without MPS, whose server and other
clients a killed one may take along. Rank 1 makes its stream stand still for a minute, hands an allreduce over behind
that, and is killed. Rank 0 hands over its part, and then sends on the same stream: the host waits for the device there,
for work that never comes. What becomes of it, once for each way of leaving (`exit`: destroy_process_group and the end
of the interpreter; `os._exit`):
  noticed_s  after the death, until a call raised; it must be an error that names rank 1, within LIMIT_S
  error      its text; `in` which call it was; `device_path`: which way data went
  ended      with which status it ended; "killed" where it had not within LEAVING_S: on a device that waits for ever the
             driver may not let a process go, which is what docs/gpu.md says of cudaFree()
  ended_s    how long that took
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTING_S = 30.0
LIMIT_S = 10.0
LEAVING_S = 15.0  # which includes what the package waits for readers of its memory
STILL_S = 60.0
CYCLES_PER_S = 2e9
BEFORE_DEATH_S = 1.0  # in which rank 1 hands its work over
WAYS = ("exit", "os._exit")


def write(path: Path, text: str) -> None:
    """Whole, for who waits for the file."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def rank(way: str, device: str, folder: Path) -> None:
    """What each rank does; rank 0 says in a file what became of it."""
    import torch
    import torch.distributed as dist

    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # says where it hung when its limit ends it
    dist.init_process_group("accdp")
    x = torch.ones(1 << 20, device=device)
    dist.all_reduce(x)  # sets up what the ranks share
    if device != "cpu":
        torch.cuda.synchronize()
    dist.barrier()
    if dist.get_rank() == 1:
        write(folder / "dies", str(time.time() + BEFORE_DEATH_S))
        signal.setitimer(signal.ITIMER_REAL, BEFORE_DEATH_S)  # whose signal ends it, whatever it waits for
        if device != "cpu":
            torch.cuda._sleep(int(STILL_S * CYCLES_PER_S))
            dist.all_reduce(x)
        signal.pause()
    found = {"device_path": getattr(dist.group.WORLD._get_backend(torch.device(device)), "device_path", "")}
    try:
        found["in"] = "all_reduce"
        dist.all_reduce(x)
        found["in"] = "send"
        dist.send(x, 1)
    except Exception as error:
        died = float((folder / "dies").read_text())
        text = f"{type(error).__name__}: {error}"
        found |= {"noticed_s": time.time() - died, "error": text.splitlines()[0]}
        write(folder / "rank0.json", json.dumps(found))
    if way == "os._exit":
        os._exit(0)
    dist.destroy_process_group()


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def await_file(path: Path, until: float, process: subprocess.Popen) -> bool:
    """Wait until the file is there, the process has ended or the time has come."""
    while not path.exists() and time.time() < until and process.poll() is None:
        time.sleep(0.02)
    return path.exists()


def scene(way: str, device: str) -> dict:
    """Play it once."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, __file__, "--rank", way, "--device", device]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        where["CUDA_MPS_PIPE_DIRECTORY"] = str(folder / "no-mps")
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
            has_begun = await_file(dies, time.time() + STARTING_S, ranks[0])
            was_told = has_begun and await_file(said, float(dies.read_text()) + LIMIT_S, ranks[0])
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ranks[0].wait(LEAVING_S)
            status = ranks[0].poll()
            found |= {"ended": "killed" if status is None else status, "ended_s": time.monotonic() - began}
            found |= json.loads(said.read_text()) if was_told else {}
        finally:
            for one in ranks:
                one.kill()
            for one in ranks:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(5)
    if not has_begun:
        found["failed"] = f"the ranks did not come so far within {STARTING_S:g} s"
    elif not was_told:
        found["failed"] = f"rank 0 got no error within {LIMIT_S:g} s"
    elif "rank 1" not in found["error"]:
        found["failed"] = "the error does not name rank 1"
    elif found["ended"] not in (0, "killed"):
        found["failed"] = f"rank 0 ended with {found['ended']}"
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
