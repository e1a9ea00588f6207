"""torch's store in a process of its own, which outlives any rank."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from .. import _core, own_programs

ADDRESS = "127.0.0.1"
_SERVE = f"""from torch.distributed import TCPStore
store = TCPStore({ADDRESS!r}, 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()  # until who has started this ends"""


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Serve a store on this host; yields its address and port.

    Raises:
        UsageError: This Python has no torch.
    """
    # A session of its own: Ctrl-C is for the ranks, which may yet need the store.
    server = subprocess.Popen(
        own_programs.python(_SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        port = server.stdout.readline()
        if not port:
            raise _core.UsageError("--keep-going: torch's store, which has to outlive rank 0, could not be started")
        yield ADDRESS, int(port)
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()
