"""Addresses under which other hosts may reach this one, best first. IPv4 only: MPICH's PMI-1 client knows no other."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915
# Bridges and pairs of container engines usually lead nowhere from another host: tried last.
_VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "lxc")


def interface_addresses() -> list[str]:
    """Return the primary IPv4 address of every interface: physical ones, then virtual ones, loopback left out."""
    found: list[tuple[bool, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append((name.startswith(_VIRTUAL), address))
    return [address for _, address in sorted(found, key=lambda entry: entry[0])]


def resolve(name: str) -> list[str]:
    """Return the IPv4 addresses of a host name; none where it cannot be resolved."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)))
    except (OSError, UnicodeError):  # the latter of a label that DNS cannot have, as of more than 63 characters
        return []


def source_towards(address: str) -> str:
    """Return which of this host's addresses it uses towards another; that one itself where nothing leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 1))  # sends nothing
        except OSError:
            return address
        return str(probe.getsockname()[0])


def candidate_addresses() -> list[str]:
    """Return what a rank on another host should try, in order.

    MASTER_ADDR comes first where it names this host: whoever set it knows which network the job should use. Loopback
    comes last: ranks of one host that share no interface (or have none) still meet there.
    """
    interfaces = interface_addresses()
    wished = resolve(os.environ["MASTER_ADDR"]) if os.environ.get("MASTER_ADDR") else []
    ours = [address for address in wished if address in interfaces]
    return list(dict.fromkeys([*ours, *interfaces, "127.0.0.1"]))
