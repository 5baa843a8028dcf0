"""The addresses under which the page is served, and from which clients come."""

import contextlib
import ipaddress
import socket

# What stands for all addresses of this machine, and an address elsewhere, which is one for documentation.
_ALL_ADDRESSES = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}


def is_local(server: str) -> bool:
    """Return whether only this machine can reach a server on that address, or be a client of that address."""
    if server == "localhost":
        return True
    try:
        return ipaddress.ip_address(server).is_loopback
    except ValueError:
        return False


def network_of(client: str) -> str:
    """Return what one machine commonly has: an address, or a network of 2^64 addresses of version 6."""
    try:
        version = ipaddress.ip_address(client).version
    except ValueError:
        return client
    return str(ipaddress.ip_network(f"{client}/64", strict=False)) if version == 6 else client


def own_names(server: str) -> frozenset[str]:
    if is_local(server):
        return frozenset()
    name = socket.gethostname().lower()
    return frozenset({server.lower(), name, f"{name.partition('.')[0]}.local"})


def page_addresses(server: str, port: int) -> tuple[str, str]:
    """Return the page's address for this machine, and the one for others; "" for one that nobody can open."""
    if server not in _ALL_ADDRESSES:
        address = _address(server, port)
        return address, "" if is_local(server) else address
    return _address("localhost", port), _address(_outward_address(server), port)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _outward_address(server: str) -> str:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):  # no network
        probe.connect((_ALL_ADDRESSES[server], 9))
        return probe.getsockname()[0]
    return socket.gethostname()
