"""Listening: the socket of a server, and which hosts only this machine reaches."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from bus.errors import ConfigurationError

__all__ = ["is_loopback", "open_socket", "room_for_connections", "shown_address"]

_OTHER_FILES: Final = 256
"""What a process has open beside its connections: the log, the database, brokers."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_socket(host: str, port: int, what: str, *, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on *host* and *port* for *what*. Raises ConfigurationError."""
    # The protocol is named: asyncio turns Nagle's delay off only where it is, and an answer takes 40 ms less.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigurationError(f"{what} cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


def room_for_connections(wanted: int) -> int:
    """Raise this process's limit of open files for *wanted* connections where that is allowed; return how many fit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - _OTHER_FILES))


def shown_address(sock: socket.socket) -> str:
    """Return the URL under which *sock* is reached, without a path."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
