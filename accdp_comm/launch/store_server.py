"""torch's store in a process of its own, which outlives any rank."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from .. import _core, own_programs

_ADDRESS = "127.0.0.1"
_SERVE = f"""from torch.distributed import TCPStore
store = TCPStore({_ADDRESS!r}, 0, is_master=True, wait_for_workers=False)
print("port", store.port, flush=True)
sys.stdin.read()  # until who has started this ends"""


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Serve a store on this host; yields its address and port.

    Raises:
        UsageError: The store did not start, as where this Python has no torch.
    """
    # A session of its own: Ctrl-C is for the ranks, which may yet need the store.
    with subprocess.Popen(
        own_programs.python(_SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None
            name, _, port = server.stdout.readline().partition(b" ")
            if name != b"port":
                raise _core.UsageError(
                    "--keep-going: expected a Python with torch, whose store has to outlive rank 0; it did not start"
                )
            yield _ADDRESS, int(port)
        finally:
            server.kill()
