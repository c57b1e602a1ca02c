"""A process as a cluster or systemd would run it: its user, its folders, its environment, and nothing else.

Owns the root that it sees: the machine's programs, read-only, and mounts of its own in a mount namespace that ends with
it. No container runtime is needed, only root and `unshare`, `mount`, `chroot`, `setpriv`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

__all__ = ["PATH", "ROOT", "Mounted", "Started", "eventually", "get", "refuse_or_skip", "relayed", "sample", "start"]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("bus", "config", "consumers", "producers", "sealbus")
SOURCE = "/opt/sealbus"
FROM_SOURCES = (sys.executable, "-B", "-m", "consumers.cli")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HIDDEN = {"home", "opt", "proc", "root", "run", "tmp"}
_PATIENCE_S = 90.0


class Mounted(NamedTuple):
    """*source* (None: an empty folder in memory) at *target* in the process's root."""

    target: str
    source: Path | None
    is_read_only: bool = True
    mode: int = 0o755


class Started(NamedTuple):
    """A process, and where its output is."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def require_running(self) -> None:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.said()[-4000:]}"

    def end(self, within_s: float) -> int:
        """Send SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)


def refuse_or_skip() -> None:
    """Skip where processes cannot be given users and roots of their own; in CI that is a failure."""
    tools = [name for name in ("unshare", "mount", "chroot", "setpriv") if shutil.which(name) is None]
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    may = os.geteuid() == 0 and not tools and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    if may:
        return
    why = f"needs root and mount namespaces ({', '.join(tools) or 'privileged'})"
    if os.environ.get("SEALBUS_REQUIRE_ROOT") == "1":
        pytest.fail(why)
    pytest.skip(why)


def start(
    arguments: Sequence[str],
    *,
    user: int,
    group: int,
    groups: Sequence[int],
    environment: Mapping[str, str],
    mounts: Sequence[Mounted],
    log: Path,
    cwd: str = "/",
    stdin: bytes = b"",
    command: Sequence[str] = FROM_SOURCES,
) -> Started:
    """Start *command*, by default `sealbus` of the checkout, with *arguments* as that user in a root of its own.

    Nothing of this environment goes in.
    """
    script = "\n".join(["set -e", *_root(mounts)])
    dropped = [
        "chroot",
        "$ROOT",
        "setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
        "env",
        "-i",
        "-C",
        cwd,
        *(f"{name}={value}" for name, value in _environment(environment, command).items()),
        *command,
        *arguments,
    ]
    words = " ".join('"$ROOT"' if word == "$ROOT" else shlex.quote(word) for word in dropped)
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{script}\nexec {words}"], stdin=subprocess.PIPE, stdout=out, stderr=out
        )
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    return Started(process, log)


def _environment(wanted: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    found = {"PATH": PATH, **wanted}
    if command is FROM_SOURCES:
        found["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{wanted.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    return found


def _root(mounts: Sequence[Mounted]) -> Iterator[str]:
    """Shell lines that build the root at $ROOT, which is only there in this mount namespace."""
    yield "ROOT=/mnt; mount -t tmpfs -o mode=0755 tmpfs $ROOT"
    for entry in sorted(Path("/").iterdir()):
        if entry.name in _HIDDEN or entry == Path("/mnt"):
            continue
        if entry.is_symlink():
            yield f"ln -s {entry.readlink()} $ROOT/{entry.name}"
        elif entry.is_dir():
            yield f"mkdir $ROOT/{entry.name}; mount --rbind /{entry.name} $ROOT/{entry.name}"
    yield f"mkdir -p $ROOT/proc $ROOT/run $ROOT/tmp $ROOT{SOURCE}; mount -t proc proc $ROOT/proc"
    for name in SOURCES:
        yield f"mkdir $ROOT{SOURCE}/{name}; mount --bind {shlex.quote(str(ROOT / name))} $ROOT{SOURCE}/{name}"
    yield from map(_mounting, mounts)
    # Python itself may lie below what is hidden.
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        if Path(prefix).parts[1] in _HIDDEN:
            yield f"mkdir -p $ROOT{prefix}; mount --bind {prefix} $ROOT{prefix}"
    yield "mount -o remount,bind,ro $ROOT"


def _mounting(mounted: Mounted) -> str:
    target = f"$ROOT{shlex.quote(mounted.target)}"
    if mounted.source is None:
        return f"mkdir -p {target}; mount -t tmpfs -o mode={mounted.mode:04o} tmpfs {target}"
    source = shlex.quote(str(mounted.source))
    made = f"mkdir -p {target}" if mounted.source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
    read_only = f"; mount -o remount,bind,ro {target}" if mounted.is_read_only else ""
    return f"{made}; mount --bind {source} {target}{read_only}"


def get(port: int, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str]:
    """Status and body; 0 where nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def sample(text: str, name: str) -> float:
    """The sum of the samples of *name* in what a scrape gives."""
    found = [line for line in text.splitlines() if re.match(rf"{name}(\{{| )", line)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def eventually(holds: Callable[[], object], processes: Sequence[Started] = (), within_s: float = _PATIENCE_S) -> None:
    """Return when *holds*; an end of one of *processes* is a failure at once."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        for each in processes:
            each.require_running()
        said = "\n".join(each.said()[-3000:] for each in processes)
        assert time.monotonic() < deadline_s, f"waited too long\n{said}"
        time.sleep(0.1)


@contextmanager
def relayed(path: Path) -> Iterator[int]:
    """The port at which the socket of the file system at *path* is reached, as a server is in a cluster."""
    listener = socket.create_server(("127.0.0.1", 0))

    open_sockets: list[socket.socket] = [listener]

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            open_sockets.extend((client, server))
            server.connect(str(path))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_carry, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for each in open_sockets:
            each.close()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while text := source.recv(65_536):
            target.sendall(text)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
