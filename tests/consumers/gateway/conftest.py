"""A gateway on a real socket, its worker and the agents it asks, on one embedded log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.vocabulary.known import known_types
from consumers.gateway.credentials import Credential, Credentials, FixedCredentials, make_token
from consumers.gateway.gateway import Gateway
from consumers.gateway.serving import directory_of, gateway_declaration, make_gateway, served_gateway
from consumers.worker.embedded import running
from sealbus import App

ENDS = ("completed", "failed", "rejected", "cancelled")


class Place:
    """A gateway and its credentials, and clients of it."""

    def __init__(self, url: str, gateway: Gateway, source: FixedCredentials, bus: Any) -> None:
        self.url = url
        self.gateway = gateway
        self.bus = bus
        self._source = source
        self.tokens: dict[str, str] = {}

    def add(self, name: str = "ci", **given: Any) -> str:
        """Add a credential, and return its token."""
        token, known = make_token()
        fields: dict[str, Any] = {"agent": f"{name}@acme", "to": ("**",), "rate": 10_000.0, "burst": 10_000}
        made = Credential(name=name, tokens=(known,), **(fields | given))
        self._source.replace([each for each in self._source.current().all if each.name != name] + [made])
        self.tokens[name] = token
        return token

    def remove(self, name: str) -> None:
        """Remove a credential."""
        self._source.replace([each for each in self._source.current().all if each.name != name])

    @asynccontextmanager
    async def client(self, name: str = "ci", **given: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client with the token of *name*."""
        if name not in self.tokens:
            self.add(name, **given)
        headers = {"Authorization": f"Bearer {self.tokens[name]}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=60) as client:
            yield client

    async def ended(self, client: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
        """Wait for the end of a task."""
        async with asyncio.timeout(60):
            shown: dict[str, Any] = {"generation": 0, "status": ""}
            while shown["status"] not in ENDS:
                answer = await client.get(f"/tasks/{task_id}", params={"after": shown["generation"], "wait": 20})
                assert answer.status_code == 200, answer.text
                shown = answer.json()
        return shown


Opened = Callable[..., AbstractAsyncContextManager[Place]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens a gateway beside the agents that are passed."""

    @asynccontextmanager
    async def open_place(
        *apps: App, origins: Sequence[str] = (), known: Sequence[App] | None = None, **settings: Any
    ) -> AsyncIterator[Place]:
        flags = {"bus.url": f"sqlite:///{tmp_path}/log.db", **settings}
        chosen = load(flags=flags, env={}, file=None).settings
        source = FixedCredentials(Credentials())
        types = known_types([app.registry for app in (apps if known is None else known)])
        gateway = make_gateway(chosen, source, types, SystemClock())
        declared = [gateway_declaration(gateway), *(app.declaration for app in apps)]
        async with (
            running(declared, None, config=None, settings=chosen, metrics=None, on_failure=None) as bus,
            directory_of(gateway, bus),
            served_gateway(gateway, host="127.0.0.1", port=0, origins=origins) as url,
        ):
            yield Place(url, gateway, source, bus)

    return open_place
