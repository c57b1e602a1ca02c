"""Three brokers, each behind a link that can misbehave; whoever judges reaches them past the links.

Owns starting them, their links, and mending everything between two runs. Brokers are `deploy.kafka`'s.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.proxy import Link, Mood

from deploy.kafka import cluster as clusters
from deploy.kafka.cluster import Cluster
from deploy.kafka.node import Node
from deploy.kafka.properties import Address

__all__ = ["LinkedCluster"]


class LinkedCluster(Cluster):
    """A cluster whose brokers have one more listener, which names the port of its link as its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, brokers=3, controller=True, heap_mb=384, settings={"group.min.session.timeout.ms": "1000"})
        self.links: dict[int, Link] = {}
        self._ways: dict[int, tuple[int, int]] = {}

    async def open(self) -> None:
        """Start brokers and links."""
        self._ways = {number: (_free_port(), _free_port()) for number in (1, 2, 3)}
        await asyncio.to_thread(self.start)
        for number, (behind, port) in self._ways.items():
            self.links[number] = Link(behind, port)
            await self.links[number].open()

    async def close(self) -> None:
        """Stop them."""
        for link in self.links.values():
            await link.close()
        await asyncio.to_thread(self.mend)
        await asyncio.to_thread(self.stop)

    @property
    def linked_bootstrap(self) -> str:
        """The addresses through the links."""
        return ",".join(f"127.0.0.1:{port}" for _, port in self._ways.values())

    def node(self, number: int) -> Node:
        """The broker of that id."""
        return next(node for node in self.brokers if node.id == number)

    def mend(self) -> None:
        """Every broker runs and every link is sound."""
        for node in self.nodes:
            if node.running:
                node.thaw()
            else:
                node.start()

    def calm(self) -> None:
        """Every link is sound."""
        for link in self.links.values():
            link.behave(Mood())

    def _prepare(self) -> None:
        # The listener is not the same for each broker, so it cannot be one of the cluster's settings.
        original = clusters.server_properties

        def linked(node: Address, nodes: Sequence[Address], **rest: Any) -> Mapping[str, str]:
            return self._with_link(node.id, original(node, nodes, **rest)) if node.client_port is not None else original(node, nodes, **rest)

        clusters.server_properties = linked  # type: ignore[assignment]
        try:
            super()._prepare()
        finally:
            clusters.server_properties = original

    def _with_link(self, number: int, properties: Mapping[str, str]) -> Mapping[str, str]:
        behind, port = self._ways[number]
        return dict(properties) | {
            "listeners": f"{properties['listeners']},LINK://127.0.0.1:{behind}",
            "advertised.listeners": f"{properties['advertised.listeners']},LINK://127.0.0.1:{port}",
            "listener.security.protocol.map": f"{properties['listener.security.protocol.map']},LINK:PLAINTEXT",
        }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
