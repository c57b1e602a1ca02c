"""`connect`: open a log by its URL and get a `Bus` to publish on.

Owns building a publisher from settings, clock, transport and metrics, and closing these in order. Each part gets what
it needs as an argument; nothing is global.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, Unpack

import msgspec

from bus.clock import Clock, SystemClock
from bus.errors import WrongLoopError
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer, Verifier
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.logs import configure_unless_done
from bus.telemetry.metrics import Metrics
from bus.topics.names import message_topic
from bus.transports import open_configured
from bus.transports.base import Transport
from bus.trust.policy import Policy
from producers.outcomes import Receipt, Result
from producers.publisher import Publisher, check_timeout
from producers.requests.requester import Requester
from producers.sealing.options import Draft, Options, RequestOptions
from producers.sealing.sealed_record import sealed_as
from producers.sealing.sealer import make_sealer
from producers.stream import Source, publish_stream

__all__ = ["Bus", "connect", "make_publisher"]

_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class Bus:
    """An open connection of one agent, bound to the event loop that opened it."""

    def __init__(
        self,
        publisher: Publisher,
        transport: Transport,
        *,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.publisher = publisher
        self.transport = transport
        self.requests = Requester(publisher, transport, verifier=verifier, policy=policy)

    @property
    def namespace(self) -> str:
        """The namespace of everything that is published."""
        return self.publisher.sealer.origin.namespace

    async def publish(
        self, payload: msgspec.Struct, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Receipt:
        """Seal *payload* and append it durably, within *timeout_s* seconds.

        Raises PublishRejected (certainly not in the log) or PublishUnknown (may be: `resend(error.message)`).
        """
        self._check_loop()
        sealed = (
            self.publisher.sealer.seal(Draft(payload=payload, **options))
            if options
            else self.publisher.sealer.seal_plain(payload)
        )
        return await self.publisher.send(sealed, timeout_s=timeout_s)

    async def request(
        self,
        payload: msgspec.Struct,
        reply: type[_Reply],
        *,
        timeout_s: float = 60.0,
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Publish *payload* and wait for its answer, a *reply*.

        *timeout_s* is also the lifetime of the request. Raises RequestTimedOut (accepted, no answer), RequestFailed
        (the request died: `reason`), UnexpectedReply (an answer of another type), and, if no answer came,
        PublishRejected or PublishUnknown as `publish` does. A handler that returns None sends no answer.
        """
        self._check_loop()
        return await self.requests.ask(payload, reply, timeout_s=timeout_s, **options)

    @property
    def late_replies(self) -> Sequence[Message]:
        """The last answers that came after their deadline, or after another answer.

        All of them are in the reply topic too.
        """
        return tuple(self.requests.waiting.late)

    def publish_many(self, source: Source, *, timeout_s: float | None = None) -> AsyncIterator[Result]:
        """Publish every payload (or `Draft`) of *source*.

        Yields, in order, a Receipt, PublishRejected or PublishUnknown for each.
        """
        self._check_loop()
        timeout = self.publisher.settings.publish.timeout_s if timeout_s is None else timeout_s
        check_timeout(timeout)
        return publish_stream(self.publisher, source, timeout_s=timeout)

    async def resend(self, message: Message, *, timeout_s: float | None = None) -> Receipt:
        """Append the same bytes of *message* again, after PublishUnknown: receivers recognize its id."""
        self._check_loop()
        topic = message_topic(message.metadata.namespace, message.message_type)
        return await self.publisher.send(sealed_as(message, topic), timeout_s=timeout_s)

    async def close(self) -> None:
        """Finish the accepted appends, then close the log. Waiting requests end with a ClosedError."""
        self._check_loop()
        await self.requests.close()
        await self.publisher.close()
        await self.transport.close()

    def _check_loop(self) -> None:
        """Raise WrongLoopError outside the event loop that opened the bus.

        A caller waiting in another loop would never be woken.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(
                "this Bus was opened in another event loop. From another thread hand the call over: "
                "asyncio.run_coroutine_threadsafe(bus.publish(...), loop).result(); in programs without a loop use "
                "connect_sync(...)"
            )


def make_publisher(
    transport: Transport,
    settings: Settings,
    agent: str | Agent,
    *,
    clock: Clock,
    metrics: Metrics,
    signer: Signer | None = None,
) -> Publisher:
    """Build a publisher for *agent*.

    Raises PublishRejected for an illegal agent id, NameRefusedError for a namespace.
    """
    sealer = make_sealer(settings, agent, clock=clock, signer=signer)
    return Publisher(transport, settings, sealer=sealer, clock=clock, metrics=metrics)


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    agent: str | Agent,
    namespace: str | None = None,
    config: Path | None = None,
    env: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
) -> AsyncGenerator[Bus]:
    """Open the log at *url* (`sqlite:///x.db`, `memory://`) and publish as *agent*.

    *signer* signs published messages; *verifier* and *policy* judge answers to requests. Without *settings*, they are
    loaded from *config*, the environment (*env*, by default the process's) and the defaults. Raises UnreachableError,
    ConfigurationError.
    """
    if settings is None:
        given: dict[str, object] = {"bus.url": url, "bus.namespace": namespace}
        flags = {name: value for name, value in given.items() if value is not None}
        settings = load(flags=flags, env=os.environ if env is None else env, file=config).settings
    configure_unless_done("warning")
    clock = clock or SystemClock()
    transport = open_configured(settings, clock=clock)
    try:
        publisher = make_publisher(transport, settings, agent, clock=clock, metrics=metrics or Metrics(), signer=signer)
        bus = Bus(publisher, transport, verifier=verifier, policy=policy)
        try:
            yield bus
        finally:
            await bus.requests.close()
        await publisher.close()
    finally:
        await transport.close()
