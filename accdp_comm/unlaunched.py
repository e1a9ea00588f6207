"""What ranks that no MPI launcher started have in its place: a PMI-1 service, which rank 0 starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from . import _core, addresses, pmi1


class Service:
    """The PMI-1 service, in a process of its own, which ends when all ranks have.

    Args:
        nodes: Node index of each rank.
        on_one_host: Whether nobody else has to reach it.
        timeout_s: How long a rank may wait in MPI_Init for the others.
    """

    def __init__(self, nodes: Sequence[int], on_one_host: bool, timeout_s: float):
        found = ["127.0.0.1"] if on_one_host else addresses.candidate_addresses()
        # By file and isolated, so that it starts in milliseconds and depends on nothing this process has changed.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", pmi1.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"nodes": list(nodes), "bind": "127.0.0.1" if on_one_host else "", "timeout_s": timeout_s}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise _core.Error("the PMI-1 service could not be started; its own message stands above")
        self.card: dict[str, Any] = {"addresses": found, **json.loads(answer)}  # what ranks must know to reach it

    def give_up(self) -> None:
        """Let it end although ranks have not come."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def reach(card: dict[str, Any], host: str) -> tuple[str, str]:
    """Return the service's address as seen from here, the first that leads there, and this host's as seen from there.

    Args:
        card: Of the service.
        host: Where it is; for the message.
    Raises:
        Error: None of its addresses leads there.
    """
    for address in card["addresses"]:
        if own := pmi1.reached_from(address, card["port"], card["token"]):
            return str(address), own
    raise _core.Error(
        f"no route to the PMI-1 service of rank 0 on {host} at {', '.join(card['addresses'])}, "
        f"port {card['port']}: set MASTER_ADDR to an address of {host} that all nodes reach"
    )
