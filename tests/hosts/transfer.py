"""One plain TCP stream, to measure a link: ``transfer.py receive PORT`` or ``transfer.py send ADDRESS PORT BYTES``.

The receiver prints bytes per second from the first to the last byte.
"""

import socket
import sys
import time

_BLOCK_BYTES = 1 << 16
_PATIENCE_S = 20.0


def receive(port: str) -> None:
    with socket.create_server(("", int(port))) as server:
        server.settimeout(_PATIENCE_S)
        print("listening")
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_PATIENCE_S)
        first = len(connection.recv(_BLOCK_BYTES))
        began, received = time.monotonic(), 0
        while block := connection.recv(_BLOCK_BYTES):
            received += len(block)
        print(received / (time.monotonic() - began), first + received)


def send(address: str, port: str, count: str) -> None:
    with socket.create_connection((address, int(port)), timeout=_PATIENCE_S) as connection:
        connection.sendall(bytes(int(count)))


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](*sys.argv[2:])
