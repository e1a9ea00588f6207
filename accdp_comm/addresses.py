"""Addresses under which other hosts may reach this one, best first. IPv4 only: MPICH's PMI-1 client knows no other."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct

_SIOCGIFCONF = 0x8912
_IFREQ = struct.Struct("16s4x4s16x")  # name; family, port and address of a struct sockaddr_in; room for others
# Bridges and pairs of container engines usually lead nowhere from another host: tried last.
_VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "lxc")


def interface_addresses() -> list[str]:
    """Return the IPv4 addresses of all interfaces: of physical ones, then of virtual ones, loopback left out."""
    found: list[tuple[bool, str]] = []
    for entry in _IFREQ.iter_unpack(_listed()):
        name, address = entry[0].rstrip(b"\0").decode(errors="replace"), socket.inet_ntoa(entry[1])
        if not address.startswith("127."):
            found.append((name.startswith(_VIRTUAL), address))
    return [address for _, address in sorted(found, key=lambda entry: entry[0])]


def _listed() -> bytes:
    """Return a struct ifreq for each address of each interface."""
    room = 64 * _IFREQ.size
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while True:
            entries = array.array("B", bytes(room))
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iP", room, entries.buffer_info()[0]))
            length = struct.unpack("iP", answer)[0]
            if length < room:  # else there may be more
                return entries.tobytes()[:length]
            room *= 2


def resolve(name: str) -> list[str]:
    """Return the IPv4 addresses of a host name; none where it cannot be resolved."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)))
    except (OSError, UnicodeError):  # the latter of a label that DNS cannot have, as of more than 63 characters
        return []


def candidate_addresses() -> list[str]:
    """Return what a rank on another host should try, in order.

    MASTER_ADDR comes first where it names this host: whoever set it knows which network the job should use. Loopback
    comes last: ranks of one host that share no interface (or have none) still meet there.
    """
    interfaces = interface_addresses()
    wished = resolve(os.environ["MASTER_ADDR"]) if os.environ.get("MASTER_ADDR") else []
    ours = [address for address in wished if address in interfaces]
    return list(dict.fromkeys([*ours, *interfaces, "127.0.0.1"]))
