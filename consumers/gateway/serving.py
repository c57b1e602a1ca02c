"""Serve the gateway: its worker of the group `doors`, its socket and its server. The extra is imported only here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bus.clock import Clock, SystemClock
from bus.errors import BusError, ConfigurationError
from bus.payloads.payload_types import Registry
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.trust.opening import open_trust
from consumers.delivery.declaration import Declaration
from consumers.delivery.inbox.open import inbox_url
from consumers.gateway.agents import GATEWAY_AGENT, AgentSealers
from consumers.gateway.app import GatewayApp
from consumers.gateway.gateway import CredentialSource, Gateway
from consumers.gateway.metrics import GatewayMetrics
from consumers.gateway.rounds import Rounds
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.store import ProcessStore
from consumers.processes.tasks.following import TaskFollower
from consumers.processes.tasks.service import TaskService
from consumers.processes.tasks.snapshot import TaskLimits
from consumers.web.extras import need_extra
from consumers.web.listening import open_socket, room_for_connections, shown_address
from producers.connection import Bus
from producers.directory.presence import AgentEntry
from producers.publisher import Publisher

__all__ = ["directory_of", "gateway_declaration", "make_gateway", "served_gateway"]

_log = get_logger("gateway")

_GRACE_S: Final = 3
_PURGE_S: Final = 600.0
_MAX_CONNECTIONS: Final = 4_096


def make_gateway(
    settings: Settings,
    source: CredentialSource,
    types: Registry,
    clock: Clock,
    *,
    metrics: GatewayMetrics | None = None,
) -> Gateway:
    """Return the gateway of *settings*. Raises ConfigurationError for keys and policies that cannot be used."""
    if inbox_url(settings) is None:
        raise ConfigurationError(
            "tasks are rows in the inbox's database, and there is none: set inbox.url to postgresql://..., as for the "
            "workers"
        )
    trust = open_trust(settings, GATEWAY_AGENT, clock=clock)
    return Gateway(settings, source, AgentSealers(settings, trust, clock), types=types, clock=clock, metrics=metrics)


def gateway_declaration(gateway: Gateway) -> Declaration:
    """Return what the worker of the gateway declares: a mailbox for whatever is said about tasks."""
    settings = gateway.settings

    def tasks(store: ProcessStore, *, group: ProcessGroup, publisher: Publisher, clock: Clock) -> TaskService:
        service = TaskService(
            store,
            group=group,
            publisher=publisher,
            clock=clock,
            limits=TaskLimits(artifact_bytes=settings.tasks.artifact_bytes),
            keep_ms=round(settings.tasks.keep_s * 1000),
            sealer_of=gateway.sealers.of,
            changed=gateway.told,
            unconfirmed=gateway.metrics.unconfirmed.inc,
        )
        gateway.attach(service, TaskFollower(service.rows, clock))
        return service

    return GatewayApp(gateway.types, tasks=tasks).declaration


class _Directory:
    """The agents of the namespace, as the view of *bus* knows them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def find(self) -> Sequence[AgentEntry]:
        """Return all of them."""
        return await self._bus.directory.find(healthy=None)

    async def get(self, agent_id: str) -> AgentEntry | None:
        """Return one of them; None where it is unknown."""
        return await self._bus.directory.get(agent_id)


@asynccontextmanager
async def directory_of(gateway: Gateway, bus: Bus) -> AsyncGenerator[None]:
    """Let *gateway* know the agents that *bus* sees, where the directory is in use."""
    if gateway.settings.directory.enabled:
        gateway.directory = _Directory(bus)
    try:
        yield
    finally:
        gateway.directory = None


@asynccontextmanager
async def served_gateway(
    gateway: Gateway,
    *,
    host: str,
    port: int,
    names: Collection[str] = (),
    origins: Collection[str] = (),
    routes: Sequence[Any] = (),
    lifespans: Sequence[Any] = (),
) -> AsyncGenerator[str]:
    """Serve *gateway* beside the body, and yield its URL. Its worker must be at work. Raises ConfigurationError."""
    need_extra("gateway", "litestar", "uvicorn", "wsproto")
    import uvicorn

    from consumers.gateway.site import make_gateway_site
    from consumers.web.connection import connection_class

    sock = open_socket(host, port, "the gateway", backlog=1_024)
    bound = sock.getsockname()[1]
    known = {f"{name}:{bound}" for name in ("127.0.0.1", "localhost", "[::1]")} | {name.lower() for name in names}
    site = make_gateway_site(
        gateway,
        hosts=lambda: known,
        origins=frozenset(origins),
        clock=SystemClock(),
        routes=routes,
        lifespans=lifespans,
    )
    config = uvicorn.Config(
        site,
        log_config=None,
        # Its warnings are of what a client sends: the metrics count those.
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=gateway.settings.gateway.header_bytes + 4_096,
        http=connection_class(max_connections=room_for_connections(_MAX_CONNECTIONS), count=gateway.metrics.refused),
        ws="wsproto",
        lifespan="on",
    )
    server = uvicorn.Server(config)
    # Its own handlers of signals are not installed: Ctrl-C ends it as it ends every verb.
    serving = asyncio.ensure_future(server._serve([sock]))  # noqa: SLF001
    working = [
        asyncio.ensure_future(gateway.follower.run()),
        asyncio.ensure_future(_purge(gateway)),
        asyncio.ensure_future(Rounds(gateway).run()),
    ]
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        if serving.done():
            serving.result()
            raise ConfigurationError("the gateway's server has ended at its start: see its log")
        yield shown_address(sock)
    finally:
        # A stream ends by itself and its client asks another replica: the server would cut it after its grace.
        gateway.follower.close()
        server.should_exit = True
        for task in working:
            task.cancel()
        await asyncio.wait([serving, *working])
        await gateway.tasks.close()


async def _purge(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(_PURGE_S)
        try:
            await gateway.tasks.rows.purge()
            await gateway.tasks.rows.forget_seen(SystemClock().now_ms())
        except BusError as error:
            _log.warning("gateway.not_purged", error=str(error))
