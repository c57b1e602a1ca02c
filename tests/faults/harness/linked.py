"""Three brokers, each behind a link that can misbehave; whoever judges reaches them past the links.

Owns starting them, their links to clients, and mending everything between two runs. Brokers are `deploy.kafka`'s, the
links among them `mesh`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.mesh import Mesh
from harness.proxy import Link, Mood

from deploy.kafka import cluster as clusters
from deploy.kafka.cluster import Cluster
from deploy.kafka.node import Node
from deploy.kafka.properties import Address, server_properties

__all__ = ["LinkedCluster"]

_BROKERS = (1, 2, 3)
_CONTROLLER = 100
_SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    # Cuts of followers last no longer than Kafka's 30 s: a leader would only wait, and never know that it has lost
    # them.
    "replica.lag.time.max.ms": "5000",
}


class LinkedCluster(Cluster):
    """A cluster whose brokers have one more listener, which names the port of its link as its own, and links among
    themselves."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, brokers=len(_BROKERS), controller=True, heap_mb=384, settings=_SETTINGS)
        self.links: dict[int, Link] = {}
        self.mesh = Mesh(_BROKERS, _CONTROLLER)

    async def open(self) -> None:
        """Start links and brokers: the brokers need theirs to find each other."""
        for number in _BROKERS:
            # The ports behind are kept from clients, whose connections would sit on them while a broker is away.
            self.links[number] = link = Link(self._ports.take())
            await link.open()
        await self.mesh.open(self._ports.take)
        await asyncio.to_thread(self.start)

    async def close(self) -> None:
        """Stop them."""
        self.calm()
        for link in self.links.values():
            await link.close()
        await asyncio.to_thread(self.mend)
        await asyncio.to_thread(self.stop)
        await self.mesh.close()

    @property
    def linked_bootstrap(self) -> str:
        """The addresses through the links."""
        return ",".join(f"127.0.0.1:{link.port}" for link in self.links.values())

    def node(self, number: int) -> Node:
        """The broker of that id."""
        return next(node for node in self.brokers if node.id == number)

    def mend(self) -> None:
        """Every broker runs."""
        for node in self.nodes:
            if node.running:
                node.thaw()
            else:
                node.start()

    def calm(self) -> None:
        """Every link is sound."""
        for link in self.links.values():
            link.behave(Mood())
        self.mesh.calm()

    def _prepare(self) -> None:
        # Listeners are not the same for each node, so they cannot be among the cluster's settings.
        def linked(node: Address, nodes: Sequence[Address], **rest: Any) -> Mapping[str, str]:
            properties = self.mesh.told(node.id, server_properties(node, nodes, **rest))
            return self._with_link(node.id, properties) if node.client_port is not None else properties

        with patch.object(clusters, "server_properties", linked):
            super()._prepare()

    def _with_link(self, number: int, properties: Mapping[str, str]) -> Mapping[str, str]:
        link = self.links[number]
        return dict(properties) | {
            "listeners": f"{properties['listeners']},LINK://127.0.0.1:{link.target}",
            "advertised.listeners": f"{properties['advertised.listeners']},LINK://127.0.0.1:{link.port}",
            "listener.security.protocol.map": f"{properties['listener.security.protocol.map']},LINK:PLAINTEXT",
        }
