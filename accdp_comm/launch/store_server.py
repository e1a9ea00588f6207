"""torch's store in a process of its own, which outlives any rank."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from .. import _core, own_programs

# It listens at all addresses of this host.
_SERVE = """from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("port", store.port, flush=True)
sys.stdin.read()  # until who has started this ends"""


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Serve a store on this host; yields its port.

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
            yield int(port)
        finally:
            server.kill()
