"""Health of whatever process of sealbus runs in this container: exit code 0 or 1. `python healthcheck.py [PID]`.

It asks every port on which the process (by default the container's first) and its children listen: `/healthz/live`, and
where there is none `/metrics`. A process that serves nothing is healthy as long as it runs.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main"]

_PROC = Path("/proc")
_LISTENS = "0A"
_EVERY = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - only compared
_TIMEOUT_S = 3.0


def main() -> int:
    """Return the exit code, and print what is wrong."""
    pid = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    if not (_PROC / str(pid)).exists():
        sys.stdout.write(f"process {pid} has ended\n")
        return 1
    sockets = {inode for each in _family(pid) for inode in _sockets_of(each)}
    faults = [fault for host, port in sorted(set(_listening(sockets))) if (fault := _fault(host, port))]
    sys.stdout.write("\n".join(faults) or "healthy")
    return 1 if faults else 0


def _fault(host: str, port: int) -> str:
    """Return what is wrong at *port*, or "". What listens for this container alone may speak another protocol."""
    is_open = host in _EVERY or not ipaddress.ip_address(host).is_loopback
    reached = _EVERY.get(host, host)
    try:
        status, text = _get(reached, port, "/healthz/live")
        if status == http.client.NOT_FOUND:
            status, text = _get(reached, port, "/metrics")
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}" if is_open else ""
    return "" if status == http.client.OK else f"port {port} says {status}: {text[:2000]}"


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(65_536).decode("utf-8", "replace")
    finally:
        connection.close()


def _family(pid: int) -> set[int]:
    """Return *pid* and all that descend from it."""
    parents = {int(entry.name): parent for entry in _PROC.glob("[0-9]*") if (parent := _parent(entry)) is not None}
    found, size = {pid}, 0
    while size < len(found):
        size = len(found)
        found |= {each for each, parent in parents.items() if parent in found}
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The name of a program, in brackets, may hold anything.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None


def _sockets_of(pid: int) -> Iterator[str]:
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            target = os.readlink(entry)  # noqa: PTH115 - no path
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _listening(sockets: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the addresses at which those *sockets* listen."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            address, _, port = words[1].partition(":")
            if words[3] == _LISTENS and words[9] in sockets:
                yield _plain(address), int(port, 16)


def _plain(address: str) -> str:
    """Return an *address* of /proc/net, words of 32 bits as this processor has them, as people write it."""
    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


if __name__ == "__main__":
    sys.exit(main())
