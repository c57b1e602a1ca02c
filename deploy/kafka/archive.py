"""The start-up archive: Kafka's classes as the Java machine has them in memory, kept in a file of this user.

Owns making it, by one practice run of a node per machine and Java. With it a node starts in well under half the time.
It is a convenience: Java checks for itself that an archive fits and goes on without it otherwise, so a failed practice
run is no error here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from deploy.kafka import certificates, clients, jars, readiness, storage
from deploy.kafka.errors import KafkaError
from deploy.kafka.machine import Machine
from deploy.kafka.node import Node
from deploy.kafka.ports import Ports
from deploy.kafka.processes import Processes
from deploy.kafka.properties import Address, Security, render, server_properties

__all__ = ["with_archive"]

_OLDEST_JAVA = 25  # before it an archive takes several runs to make
_START_TIMEOUT_S = 60.0
_WRITE_TIMEOUT_S = 120.0


def with_archive(machine: Machine, folder: Path) -> Machine:
    """The same machine starting from its archive in *folder*, which is made first if there is none."""
    if machine.java.major < _OLDEST_JAVA:
        return machine
    # Java refuses an archive when a jar is newer than it was: then another is made.
    newest = max(Path(jar).stat().st_mtime_ns for jar in machine.class_path.split(os.pathsep))
    identity = f"{machine.java.path} {machine.java.version} {machine.class_path} {newest}"
    archive = folder / f"start-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"
    if not archive.exists():
        with contextlib.suppress(KafkaError, OSError):
            _make(machine, archive)
    return replace(machine, archive=archive) if archive.exists() else machine


def _make(machine: Machine, archive: Path) -> None:
    # Says what takes these seconds.
    print("Preparing a faster start of Kafka, once", file=sys.stderr, flush=True)  # noqa: T201
    processes, ports = Processes(), Ports(jars.cache_folder() / "ports")
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".practice-", ignore_cleanup_errors=True) as scratch:
        home, made = Path(scratch), Path(scratch) / archive.name
        # Secured, for that takes more classes: the archive serves both kinds.
        security = clients.secured_by(certificates.make(home))
        address = Address(id=1, client_port=ports.take(), controller_port=ports.take(), certificate_port=ports.take())
        properties = server_properties(address, [address], data=home / storage.DATA, security=security, settings={})
        (home / storage.PROPERTIES).write_text(render(properties), "utf-8")
        command = machine.server(home / storage.PROPERTIES, record=made)
        node = Node(address, home, command=command, processes=processes, wait_ready=partial(_wait, security))
        try:
            storage.format_nodes([(node.id, home)], machine, processes, (clients.ADMIN, clients.USER))
            node.start()
            node.stop(_WRITE_TIMEOUT_S)
            made.replace(archive)
        finally:
            node.kill()
            processes.close()
            ports.release()


def _wait(security: Security, node: Node) -> None:
    def ready() -> bool:
        node.require_running()
        return bool(readiness.brokers_known(node.port, clients.client_settings("", security)))

    readiness.wait_until(ready, _START_TIMEOUT_S)
