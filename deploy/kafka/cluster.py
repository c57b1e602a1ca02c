"""A real Kafka on this machine, for development and tests.

Owns the shape of a cluster, its folder, and its start and stop. Does not own a single node's life
(`deploy.kafka.node`), settings (`deploy.kafka.properties`) or certificates (`deploy.kafka.certificates`). Nothing it
starts outlives this process.

    with Cluster(folder, brokers=3) as cluster:
        connect(cluster.bootstrap)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from deploy.kafka import certificates, clients, jars, readiness, storage
from deploy.kafka.archive import with_archive
from deploy.kafka.errors import KafkaFailedError
from deploy.kafka.machine import machine
from deploy.kafka.node import Node
from deploy.kafka.ports import Ports
from deploy.kafka.processes import Processes
from deploy.kafka.properties import Address, Login, Security, render, server_properties

__all__ = ["Cluster"]

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 10.0
_CONTROLLER_ID = 100
_NONE: Mapping[str, str] = MappingProxyType({})


class Cluster:
    """One, or several brokers, combined with the controllers or beside one; in KRaft mode, on loopback only."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        controller: bool = False,
        secured: bool = False,
        settings: Mapping[str, str] = _NONE,
        heap_mb: int = 512,
        port: int | None = None,
    ) -> None:
        """Describe a cluster that lives in *folder*; nothing happens before start().

        With *controller*, a node of its own is the quorum, so that brokers can die without it. *settings* win over the
        defaults. The first broker listens on *port*, the next on the next ones; without it free ports are chosen, and
        kept over restarts.
        """
        self.folder = folder.absolute()
        self.secured = secured
        self.certificates = certificates.Certificates(self.folder / "certificates")
        self.nodes: list[Node] = []
        self._brokers, self._controller = brokers, controller
        self._settings, self._heap_mb, self._port = dict(settings), heap_mb, port
        self._security: Security | None = None
        self._processes = Processes()
        self._ports = Ports(jars.cache_folder() / "ports")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def brokers(self) -> list[Node]:
        """The nodes that take clients."""
        return [node for node in self.nodes if node.is_broker]

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers, as clients take them."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.brokers)

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Prepare the folder if it is new, start all nodes, and wait until each of them knows all brokers."""
        try:
            if not self.nodes:
                self._prepare()
            for node in self.nodes:
                self._ports.keep(*node.address.ports)
                node.start(wait=False)
            self._wait_ready(timeout_s)
        except BaseException:
            self.stop(timeout_s=0.0)
            raise

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop all nodes in good order; SIGKILL for those that take longer. The folder stays."""
        deadline_s = time.monotonic() + timeout_s
        # A controller of its own goes last: brokers take their leave of it.
        for group in (
            [node for node in self.nodes if not node.is_controller],
            [node for node in self.nodes if node.is_controller],
        ):
            for node in group:
                node.terminate()
            readiness.wait_until(partial(self._all_ended, group), deadline_s - time.monotonic())
            for node in group:
                node.kill()
        self._processes.close()
        self._ports.release()

    @property
    def certificate_bootstrap(self) -> str:
        """The addresses where clients of a secured cluster show a certificate instead of a password."""
        return ",".join(f"127.0.0.1:{node.address.certificate_port}" for node in self.brokers)

    def client_settings(self, login: Login = clients.ADMIN) -> dict[str, str]:
        """What a confluent_kafka client needs beside its own settings; as the administrator unless *login* says
        otherwise."""
        return clients.client_settings(self.bootstrap, self._security, login)

    def _prepare(self) -> None:
        java = with_archive(machine(self._heap_mb), jars.home())
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_shape()
        addresses = self._addresses()
        self._security = clients.secured_by(certificates.make(self.certificates.folder)) if self.secured else None
        nodes: list[Node] = []
        for address in addresses:
            home = self.folder / f"node-{address.id}"
            home.mkdir(exist_ok=True)
            properties = server_properties(
                address, addresses, data=home / storage.DATA, security=self._security, settings=self._settings
            )
            (home / storage.PROPERTIES).write_text(render(properties), "utf-8")
            command = java.server(home / storage.PROPERTIES)
            nodes.append(Node(address, home, command=command, processes=self._processes, wait_ready=self._wait_node))
        storage.format_nodes(
            [(node.id, node.folder) for node in nodes],
            java,
            self._processes,
            (clients.ADMIN, clients.USER) if self.secured else (),
        )
        self.nodes = nodes

    def _check_shape(self) -> None:
        shape = f"brokers={self._brokers} controller={self._controller} secured={self.secured}\n"
        path = self.folder / "shape"
        if path.exists() and path.read_text("utf-8") != shape:
            raise KafkaFailedError(
                f"{self.folder} holds a cluster with {path.read_text('utf-8').strip()}, not {shape.strip()}; take "
                "another folder"
            )
        path.write_text(shape, "utf-8")

    def _addresses(self) -> list[Address]:
        def client_port(index: int) -> int:
            if self._port is None:
                return self._ports.take()
            if not self._ports.keep(self._port + index):
                raise KafkaFailedError(
                    f"port {self._port + index} is in use; choose another, or end what listens there"
                )
            return self._port + index

        nodes = [
            Address(
                id=index + 1,
                client_port=client_port(index),
                controller_port=None if self._controller else self._ports.take(),
                certificate_port=self._ports.take() if self.secured else None,
            )
            for index in range(self._brokers)
        ]
        if self._controller:
            nodes.append(Address(id=_CONTROLLER_ID, client_port=None, controller_port=self._ports.take()))
        return nodes

    def _all_ended(self, nodes: Sequence[Node]) -> bool:
        voters = [node for node in self.nodes if node.is_controller]
        if sum(node.running for node in voters) <= len(voters) // 2:
            # What is left of a quorum waits five seconds for votes that cannot come; its broker has closed its files
            # before.
            for node in nodes:
                if node.running and node.broker_has_ended():
                    node.kill()
        return not any(node.running for node in nodes)

    def _wait_ready(self, timeout_s: float) -> None:
        waiting = set(self.brokers)

        def all_ready() -> bool:
            for node in self.nodes:
                node.require_running()
            for node in list(waiting):
                if len(readiness.brokers_known(node.port, self.client_settings())) >= self._brokers:
                    waiting.discard(node)
            return not waiting

        if not readiness.wait_until(all_ready, timeout_s):
            late = sorted(waiting, key=lambda node: node.id)
            raise KafkaFailedError(f"{late} not ready after {timeout_s:g} s; {late[0].last_words()}")

    def _wait_node(self, node: Node) -> None:
        def ready() -> bool:
            node.require_running()
            return not node.is_broker or node.id in readiness.brokers_known(node.port, self.client_settings())

        if not readiness.wait_until(ready, _START_TIMEOUT_S):
            raise KafkaFailedError(f"{node} not ready after {_START_TIMEOUT_S:g} s; {node.last_words()}")
