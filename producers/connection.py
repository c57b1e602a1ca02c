"""`connect`: open a log by its URL and get a `Bus` to publish on.

Owns building a publisher from settings, clock, transport and metrics, and closing these in order. Each part gets what
it needs as an argument; nothing is global.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

from bus.clock import Clock, SystemClock
from bus.errors import ContractError, EventLoopError
from bus.opening import Opening
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import is_payload, payload_type
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer, Verifier
from bus.settings.loading import load_project
from bus.settings.schema import Settings
from bus.settings.sources import given_to
from bus.telemetry.logs import configure_unless_done
from bus.telemetry.metrics import Metrics
from bus.topics.names import message_topic
from bus.transports import open_configured
from bus.transports.base import Transport
from bus.trust.opening import open_trust
from bus.trust.policy.policy import NO_POLICY, Policy
from producers.directory.view import Directory
from producers.middleware import Publishing, PublishMiddleware, around, publish_each
from producers.outcomes import Receipt, Result
from producers.publisher import Publisher, check_timeout
from producers.requests.progress import OnProgress, make_watch
from producers.requests.requester import Requester
from producers.requests.submitted import SubmittedTask
from producers.sealing.options import Options, Outgoing, RequestOptions, outgoing_of
from producers.sealing.run_labels import CURRENT_RUN
from producers.sealing.sealed_record import sealed_as
from producers.sealing.sealer import make_sealer, sender_of
from producers.stream import StreamSource, publish_stream

if TYPE_CHECKING:
    from bus.artifacts.store import ArtifactStore

__all__ = ["Bus", "Connection", "connect", "make_publisher"]

_Reply = TypeVar("_Reply", bound=Payload)


class Bus:
    """An open connection of one agent, bound to the event loop that opened it; made by `connect`.

    async with connect("sqlite:///x.db", agent="planner@svc") as bus:
        receipt = await bus.publish(Order(sku="tea"), key="customer-3")
        quote = await bus.request(QuoteRequest(sku="tea"), Quote, timeout_s=5)
        async for outcome in bus.publish_many(Order(sku=sku) for sku in skus): ...
    """

    def __init__(
        self,
        publisher: Publisher,
        transport: Transport,
        *,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
        middleware: Sequence[PublishMiddleware] = (),
    ) -> None:
        self._middleware = middleware
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self.publisher = publisher
        self.transport = transport
        self.requests = Requester(publisher, transport, verifier=verifier, policy=policy, middleware=middleware)
        self._verifier = verifier
        self._policy = policy
        self._directory: Directory | None = None

    @property
    def directory(self) -> Directory:
        """The agents that are up, and the types they handle.

        for agent in await bus.directory.find(capability="research"):
            print(agent.agent_id)
        """
        if self._directory is None:
            self._directory = Directory(
                self.transport,
                namespace=self.namespace,
                verifier=self._verifier,
                policy=self._policy,
                clock=self.publisher.clock,
                healthy_s=self.publisher.settings.directory.healthy_s,
                max_agents=self.publisher.settings.directory.max_agents,
            )
        return self._directory

    @property
    def namespace(self) -> str:
        """The namespace of everything that is published."""
        return self.publisher.sealer.origin.namespace

    @property
    def artifacts(self) -> ArtifactStore:
        """Where large content lies: messages refer to it by a `Ref` with its hash; see `Context.artifacts`."""
        return self.publisher.artifacts

    async def publish(
        self,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        detached: bool = False,
        require_receiver: bool = False,
        **options: Unpack[Options],
    ) -> Receipt:
        """Seal *payload* and append it durably.

            receipt = await bus.publish(Order(sku="tea"), key="customer-3", ttl_s=600)

        *payload* is an instance of a class marked with `@payload`. *timeout_s* is how many seconds the log may take, by
        default the setting `publish.timeout_s` (30). The *options* are documented in
        `producers.sealing.options.Options`: to, key, ttl_s, delay_s, at, idempotency_key, priority, retry, ...

        In a handler, the handled message is the cause of messages published by a bus of the same agent, with its
        conversation, labels and authority, as with `context.send_now`. With *detached* the message begins a new
        conversation instead; with a policy, a rule must allow the action `detach`. With *require_receiver* the message
        is refused unless the agent in *to* is up and every healthy instance handles this type and version.

        Raises PublishRejected (certainly not in the log; see `pointer` and `reason`) or PublishUnknown (it may be in
        the log: `resend(error.message)`). Both are a PublishError.
        """
        self._check_loop()
        if require_receiver:
            await self.directory.require(outgoing_of(payload, options).to, payload)
        if self._middleware:
            return await self._publishing(timeout_s, detached=detached)(outgoing_of(payload, options))
        sealer = self.publisher.sealer
        if options or CURRENT_RUN.get() is not None:
            sealed = sealer.seal_here(outgoing_of(payload, options), detached=detached)
        else:
            sealed = sealer.seal_plain(payload)
        return await self.publisher.send(sealed, timeout_s=timeout_s)

    async def request(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float = 60.0,
        idle_s: float | None = None,
        on_progress: OnProgress | None = None,
        progress_types: Sequence[type[Payload]] = (),
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Publish *payload* and wait for its answer, a *reply*.

            try:
                quote = await bus.request(QuoteRequest(sku="tea"), Quote, timeout_s=5)
            except RequestError as error:
                print("no quote:", error)

        *timeout_s* is the maximum wait in seconds, and the lifetime of the request: by default 60 here, and 30 in a
        handler's `context.request`, whose own time is limited. The *options* are those of `publish` except ttl_s,
        reply_to, delay_s and at.

            def show(event: TaskEvent) -> None:
                print(event.payload)                    # StatusUpdate(message="reading", progress_pct=40, ...)

            result = await bus.request(task, TaskResult, on_progress=show, timeout_s=3600, idle_s=120)

        *on_progress* is a function or a coroutine function. It is called with each message about the request that comes
        before its answer, one after another, as `SubmittedTask.events` yields them. An error of it is logged and fails
        no request. *progress_types* are classes of such messages besides the built-in ones. *idle_s*: the request ends
        when nothing was heard of it for so many seconds, and is cancelled; by default only *timeout_s* ends it.

        Every end except an answer is a RequestError: PublishRejected and PublishUnknown as in `publish`,
        RequestTimedOut (accepted, no answer; also a TimeoutError), RequestFailed (the request was dead-lettered:
        `reason`), UnexpectedReply (an answer of another type). Raises ClosedError if the bus is closed during the wait.

        A handler that returns None sends no answer.
        """
        self._check_loop()
        watch = make_watch(on_progress, idle_s, progress_types)
        reader = CURRENT_RUN.get()
        if reader is None or reader.over:
            return await self.requests.ask(payload, reply, timeout_s=timeout_s, watch=watch, **options)
        # What another agent's bus is told is read by this run, too, although it does not ask in its name.
        is_own = reader.agent_id == self.publisher.sealer.origin.sender.id
        run = reader if is_own and reader.message.metadata.namespace == self.namespace else None
        asked: dict[str, Any] = {"run": run, "reader": reader, "watch": watch, **options}
        return await self.requests.ask(payload, reply, timeout_s=timeout_s, **asked)

    async def submit(self, payload: Payload, **options: Unpack[Options]) -> SubmittedTask[Any]:
        """Publish *payload* and return its task, which waits for the result however long that takes.

            task = await bus.submit(TaskRequest(goal="..."), to="researcher@svc", ttl_s=86_400)
            print(task.id)                                  # another process goes on: bus.task(task.id)
            async for event in task.events(): ...           # accepted, progress, held for somebody, the answer
            answer = await task.result(TaskResult)

        *ttl_s* is the time limit in seconds, by default a day. The task id is `metadata.task_id`: *task_id*, by default
        a new UUIDv7. The answer stays in this agent's reply topic for the longest lifetime of messages. In a handler
        the handled message is its cause, as in `publish`, its task is a part of the message's task, and the run has
        read everything that the task returns. Raises as `publish`.
        """
        self._check_loop()
        return await self.requests.submit(outgoing_of(payload, options))

    def task(self, task_id: str, *, request: type[Payload] | None = None) -> SubmittedTask[Any]:
        """Reopen the task *task_id*, which this agent has submitted, perhaps in another process.

            answer = await bus.task(task_id).result(TaskResult)
            quote = await bus.task(task_id, request=QuoteRequest).result(Quote)

        *request* is the class of what was submitted, by default `TaskRequest`. Its message is looked for in the log
        when something is first asked of the task, from the time in the id; a BusError says that it is not there. Raises
        ContractError for what is not a task id.
        """
        self._check_loop()
        if not isinstance(task_id, str) or not is_text_id(task_id):
            raise ContractError(f"is not a task id: {task_id!r:.80}", "task_id")
        if request is None:
            from bus.vocabulary.task import TaskRequest

            request = TaskRequest
        return self.requests.reopen(task_id, (payload_type(request),))

    @property
    def late_replies(self) -> Sequence[Message]:
        """The last answers that came after their deadline, or after another answer.

        All of them are in the reply topic too.
        """
        return tuple(self.requests.waiting.late)

    def publish_many(self, source: StreamSource, *, timeout_s: float | None = None) -> AsyncIterator[Result]:
        """Publish every payload (or `Outgoing`, a payload with options of its own) of *source*.

            async for outcome in bus.publish_many(Order(number=n) for n in range(100_000)):
                if not isinstance(outcome, Receipt):
                    print(outcome)

        *source* is an iterable or async iterable of any length, which is read as fast as the log takes it. Yields, in
        order, a Receipt, PublishRejected or PublishUnknown for each; nothing is published that is not iterated over.
        *timeout_s* is for each message, by default the setting `publish.timeout_s` (30).
        """
        self._check_loop()
        # A payload may be iterable itself: a TypedDict's has its keys, a Pydantic model its fields.
        if not isinstance(source, Iterable | AsyncIterable) or is_payload(source):
            raise TypeError(
                f"publish_many takes an iterable of payloads, such as a list or a generator, not "
                f"{type(source).__name__}; one payload is for publish"
            )
        timeout = self.publisher.settings.publish.timeout_s if timeout_s is None else timeout_s
        check_timeout(timeout)
        if self._middleware or CURRENT_RUN.get() is not None:
            return publish_each(self._publishing(timeout), source)
        return publish_stream(self.publisher, source, timeout_s=timeout)

    def _publishing(self, timeout_s: float | None, *, detached: bool = False) -> Publishing:
        """Return the publish of an Outgoing, with the middleware around it."""

        async def publish(draft: Outgoing) -> Receipt:
            return await self.publisher.send(
                self.publisher.sealer.seal_here(draft, detached=detached), timeout_s=timeout_s
            )

        return around(publish, self._middleware)

    async def resend(self, message: Message, *, timeout_s: float | None = None) -> Receipt:
        """Append the same bytes of *message* again, after PublishUnknown: receivers recognize its id.

            except PublishUnknown as error:
                receipt = await bus.resend(error.message)

        Raises as `publish`.
        """
        self._check_loop()
        if not isinstance(message, Message):
            raise TypeError(f"resend takes the `message` of a PublishUnknown, not {type(message).__name__}")
        topic = message_topic(message.metadata.namespace, message.message_type)
        return await self.publisher.send(sealed_as(message, topic), timeout_s=timeout_s)

    async def close(self) -> None:
        """Finish the accepted appends, then close the log. Waiting requests end with a ClosedError."""
        self._check_loop()
        await self.stop_reading()
        await self.publisher.close()
        await self.transport.close()

    async def stop_reading(self) -> None:
        """Follow no topic any more. Waiting requests end with a ClosedError."""
        if self._directory is not None:
            await self._directory.close()
        await self.requests.close()

    def _check_loop(self) -> None:
        """Raise EventLoopError outside the event loop that opened the bus.

        A caller waiting in another loop would never be woken.
        """
        if asyncio.get_running_loop() is not self._loop:
            if self._process != os.getpid():
                raise EventLoopError(
                    "this Bus was opened before the process was forked, and its event loop stayed in the parent: open "
                    "one in the child, `async with connect(...)`, after the fork"
                )
            raise EventLoopError(
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
    verifier: Verifier | None = None,
    policy: Policy = NO_POLICY,
) -> Publisher:
    """Build a publisher for *agent*, which asks *policy* before anything leaves.

    Raises ConfigurationError for an illegal agent, NameRefusedError for a namespace.
    """
    sealer = make_sealer(settings, agent, clock=clock, signer=signer, verifier=verifier, policy=policy)
    return Publisher(transport, settings, sealer=sealer, clock=clock, metrics=metrics)


class Connection(Opening[Bus]):
    """The result of `connect`: `async with` opens the log and gives the `Bus`."""

    # Type checkers find these mistakes by themselves, if they see nothing here.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise TypeError("connect(...) is not awaited: write `async with connect(...) as bus:`")

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(Bus, name):
                raise AttributeError(
                    f"the log is not open, so there is no {name!r} yet: write `async with connect(...) as bus:` and "
                    f"use `bus.{name}`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def connect(
    url: str | None = None,
    *,
    agent: str | Agent,
    namespace: str | None = None,
    config: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
    middleware: Sequence[PublishMiddleware] = (),
) -> Connection:
    """Open the log at *url* as *agent*, and get a `Bus` to publish on.

        async with connect("sqlite:///x.db", agent="planner@svc") as bus:
            receipt = await bus.publish(Order(sku="tea"))

    *url* is sqlite:///relative.db, sqlite:////absolute.db, memory:// or kafka://host:port,host:port; by default the
    setting `bus.url`. *agent* is the id of who publishes. *namespace* is where topics and messages belong, by default
    the setting `bus.namespace` (agents).

    The other settings come from the environment (*env*, by default the process's), the TOML file *config*, by default
    the project's `sealbus.toml` (in the current folder or above it), and the defaults; or all of them from *settings*.
    *metrics* counts into a Prometheus registry of the program: `Metrics(registry)`. *signer* signs what is published;
    *verifier* and *policy* judge answers to requests, and the policy what is published; by default they are those of
    the settings `trust` and `policy`.

    *middleware* is put around `publish`, each message of `publish_many`, and the publish in a `request`, outermost
    first: functions that take the next publish and return one. A `request` sets its lifetime and reply address after
    them. They do not see `resend`, which sends bytes again, the outbox, and what handlers publish: an App's middleware
    sees what a handler queues and returns, and nothing sees its `send_now` and `request`.

        def in_task(following: Publishing) -> Publishing:
            async def publish(draft: Outgoing) -> Receipt:
                return await following(msgspec.structs.replace(draft, task_id=current_task.get()))

            return publish

    Programs without an event loop use `connect_sync`. Raises ConfigurationError, and UnreachableError on entering.
    """
    sender = sender_of(agent)

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Bus]:
        chosen = settings
        if chosen is None:
            flags = given_to("connect", url=url, namespace=namespace)
            file = None if config is None else Path(config)
            chosen = load_project(flags=flags, env=os.environ if env is None else env, file=file).settings
        configure_unless_done("warning")
        time = clock or SystemClock()
        trust = open_trust(chosen, sender.id or "", clock=time, signer=signer, verifier=verifier, policy=policy)
        transport = open_configured(chosen, clock=time)
        try:
            publisher = make_publisher(
                transport,
                chosen,
                sender,
                clock=time,
                metrics=metrics or Metrics(),
                signer=trust.signer,
                verifier=trust.verifier,
                policy=trust.policy,
            )
            bus = Bus(publisher, transport, verifier=trust.verifier, policy=trust.policy, middleware=tuple(middleware))
            try:
                yield bus
            finally:
                await bus.stop_reading()
            await publisher.close()
        finally:
            await transport.close()

    return Connection(
        opening(),
        "connect(...) needs `async with connect(...) as bus:`; in programs without an event loop write "
        "`with connect_sync(...) as bus:`",
    )
