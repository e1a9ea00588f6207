"""What runs in the processes of ranks.py: the nursery, which forks ranks, and the ranks.

Started as a program: ``rank_process.py FD``, where FD is a socket that carries JSON. Asked by one message with a file
descriptor (the rank's link) it forks a rank and says ``{"born": pid}``, and ``{"ended": pid, ...}`` when one has ended.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

_link: Connection | None = None
_modules: dict[str, ModuleType] = {}
_group: tuple | None = None


def say(**facts: Any) -> None:
    """Tell the driver something at once; it arrives even if this rank dies right after."""
    assert _link is not None, "only ranks can say something"
    _link.send(facts)


def join(rank: int, size: int, store: str, timeout_s: float = 30.0, **options: Any) -> None:
    """Make the default group of ``size`` ranks that know the same file."""
    import torch.distributed as dist

    dist.init_process_group(
        "accdp",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
        **options,
    )


def nursery(control: socket.socket) -> dict[str, Any] | None:
    """Fork ranks until the driver hangs up. Returns None then, and in a rank what was ordered for it."""
    import pytest  # noqa: F401  (test files import it; here it is imported once for all ranks)
    import torch.distributed  # noqa: F401

    import accdp_comm.backend  # noqa: F401

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"importing started threads: {threads}; forking would be unsafe"
    gc.collect()
    gc.freeze()  # what is here stays: ranks need not look through it, nor copy its pages, to end
    # Deaths are reported by the loop below, never in the middle of something else: a signal only wakes it.
    wake, alarm = socket.socketpair()
    wake.setblocking(False)
    alarm.setblocking(False)
    signal.set_wakeup_fd(alarm.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    living: set[int] = set()
    control.send(b'{"ready": true}')
    while True:
        ready = wait([control, wake])
        if wake in ready:
            wake.recv(1000)
            _bury(living, control)
        if control not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, 100_000, 1)
        if not message:
            break
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (control, wake, alarm):
                end.close()
            return {"link": fds[0], **json.loads(message)}
        os.close(fds[0])
        living.add(pid)
        control.send(json.dumps({"born": pid}).encode())
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def _bury(living: set[int], control: socket.socket) -> None:
    for pid in list(living):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            living.discard(pid)
            facts = {"ended": pid, "status": os.waitstatus_to_exitcode(status), "at": time.monotonic()}
            control.send(json.dumps(facts).encode())


def serve(link: int, env: dict[str, str], output: str) -> None:
    """Be a rank: run tasks until the driver hangs up, then end as any program does."""
    global _link
    os.environ.update(env)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    faulthandler.enable(all_threads=True)
    _link = Connection(link)
    while True:
        try:
            task = _link.recv()
        except EOFError:
            break
        if task.get("last"):
            # Not caught here: an error ends this rank as it would end a script.
            _function(task)(**task["arguments"])
            _link.send({"outcome": {"error": None, "at": time.monotonic()}})
            return
        _link.send({"outcome": _run(task)})
    _leave()


def _run(task: dict[str, Any]) -> dict[str, Any]:
    error = None
    try:
        _enter(*task["group"])
        _function(task)(**task["arguments"])
    except BaseException as raised:
        error = "".join(traceback.TracebackException.from_exception(raised, capture_locals=True, limit=-6).format())
        at = time.monotonic()
        _leave()  # the others must not wait for this rank
    else:
        at = time.monotonic()
    return {"error": error, "at": at}


def _enter(rank: int, size: int, store: str) -> None:
    global _group
    if _group != (rank, size, store):
        _leave()
        join(rank, size, store)
        _group = (rank, size, store)


def _leave() -> None:
    global _group
    import torch.distributed as dist

    _group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def _function(task: dict[str, Any]) -> Any:
    path = task["file"]
    if path not in _modules:
        folder, name = os.path.split(path)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # what is defined there can be pickled
        spec.loader.exec_module(module)
        _modules[path] = module
    return getattr(_modules[path], task["function"])


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    order = nursery(control)
    if order is not None:
        serve(**order)


if __name__ == "__main__":
    # Test files import this module by its name and must get this one.
    sys.modules["rank_process"] = sys.modules["__main__"]
    main()
