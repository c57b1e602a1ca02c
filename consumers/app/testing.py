"""App.test: Apps on a log in memory, with the same gates, and a clock that only the test moves.

Owns driving workers until nothing more can happen, playing the agents that are not there, and reading back what was
sent and what died. No sleeping, no threads, no server.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Unpack

import msgspec

from bus.clock import ManualClock
from bus.errors import BusError, ConfigurationError, ContractError, UnknownTypeError, text_of
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.settings.loading import load_project
from bus.settings.schema import Settings
from bus.telemetry.logs import configure_unless_done, get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import dead_letter_topic, group_of_agent, read_topic
from bus.transports import open_transport
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.trust.keys.generated_keys import GeneratedKeys
from bus.trust.policy.policy import AllowAll
from bus.vocabulary.task import TaskClarified
from consumers.app.failure_texts import (
    ALWAYS_OFF,
    failure_line,
    is_of_time,
    is_programming_error,
    name_clock,
    switched_off,
    time_told,
)
from consumers.deadletters.letters import DeadLetter, read_dead_letter
from consumers.delivery.context import Context
from consumers.delivery.declaration import Declaration, HandlerDeclaration, Handling
from consumers.delivery.handling.composition import NO_RESOURCES, Resources, opened_lifespans
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.base import Inbox
from consumers.delivery.inbox.open import has_inbox
from consumers.delivery.resilience.retry import Retry
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.state import APPROVAL_SAGA, unpack_approval
from consumers.processes.clarifications.state import CLARIFICATION_SAGA, questions_in, unpack_clarification
from consumers.worker.host import check_groups, make_worker, trusting
from consumers.worker.loop_watchdog import LoopWatch, find_work
from producers.connection import make_publisher
from producers.outcomes import Receipt
from producers.publisher import Publisher
from producers.requests.progress import OnProgress, make_watch
from producers.requests.requester import Requester
from producers.requests.submitted import SubmittedTask
from producers.sealing.options import Options, RequestOptions, outgoing_of

if TYPE_CHECKING:
    from bus.artifacts.store import ArtifactStore
    from consumers.worker.worker import Worker

__all__ = ["AskedBack", "TestBus", "Database", "Fake", "HeldMessage", "PlayedAgent", "run_in_memory"]

_log = get_logger("test")
_TESTER = "test@sealbus"
_PATIENCE_S = 10.0
_GLANCE_S = 0.05
_MIN_TURNS = 300
"""So often is looked before time passes: on a busy machine a glance may be over before a thread has had its turn."""
_TURNS = 1000
_LONG_S = 1e9
_HOUR_S = 3600.0
_MAX_TOLD = 20
_OURS = str(Path(__file__).parents[1])
_SENT_TO: Final = ("message", "reply", "mail")
_NAP_S = 0.001
_Payload = TypeVar("_Payload", bound=Payload)
_Reply = TypeVar("_Reply", bound=Payload)


class Fake:
    """An agent played by a test, made by `TestBus.fake`; *received* has the messages it got, oldest first."""

    def __init__(self, kind: PayloadType, answer: Any, agent_id: str | None = None) -> None:
        self.kind = kind
        self.agent_id = agent_id or f"fake-{kind.name}@{_TESTER}"
        self.received: list[Any] = []
        self.answer = answer
        """The answer from now on: a payload, a list of payloads, None, an error to raise, or a function that returns
        one of these."""

    def declaration(self) -> Declaration:
        """Return the app of this agent."""
        group = group_of_agent(self.agent_id)
        subscription = HandlerDeclaration(
            kind=self.kind,
            handler=self._handle,
            takes_context=False,
            retry=Retry(attempts=1),
            timeout_s=msgspec.UNSET,
            order="none",
            dedup="off",
        )
        return Declaration(
            agent=Agent(id=self.agent_id, type="agent"),
            group=group,
            namespace=None,
            roles=frozenset(),
            policy=AllowAll(),
            signer=None,
            verifier=None,
            subscriptions={self.kind.name: subscription},
            types=(),
        )

    async def _handle(self, payload: Any) -> Any:
        self.received.append(payload)
        answer = self.answer
        if inspect.isroutine(answer) or isinstance(answer, functools.partial):
            answer = answer(payload)
            answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
            raise answer
        return answer


class PlayedAgent:
    """An agent in whose name a test publishes and asks; made by `TestBus.as_agent`."""

    def __init__(self, bus: TestBus, publisher: Publisher, requests: Requester) -> None:
        self._bus = bus
        self.publisher = publisher
        self.requests = requests

    async def publish(self, payload: Payload, **options: Unpack[Options]) -> Receipt:
        """Publish in the name of this agent. Raises PublishRejected as the real bus does."""
        with self._bus.telling_time():
            return await self.publisher.publish(outgoing_of(payload, options))

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
        """Ask in the name of this agent and let the app work until the answer is there."""
        watch = make_watch(on_progress, idle_s, progress_types)
        asking = self.requests.ask(payload, reply, timeout_s=timeout_s, watch=watch, **options)
        return await self._bus.work_until_answered(asking, timeout_s)


class HeldMessage(NamedTuple):
    """A message that waits for an approval; *action* is the packet that is agreed to."""

    approval_id: str
    action: Mapping[str, Any]
    action_hash: str
    request: bytes
    """The sealed `approval.request`."""
    opener: bytes
    """The sealed message itself."""

    @property
    def tool(self) -> str:
        """The name of the step that waits; empty where the whole message does."""
        return str(self.action.get("within", {}).get("tool", ""))

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the step that waits, by parameter name."""
        found: Mapping[str, Any] = self.action.get("within", {}).get("arguments", {})
        return found


class AskedBack(NamedTuple):
    """A question of a run to its requester (`context.clarify`) that has no answer yet."""

    questions: Sequence[str]
    options: Sequence[str]
    question: bytes
    """The sealed `task.clarification`."""
    opener: bytes
    """The sealed message whose run asks."""


class Database:
    """The database of an app's inbox, where `context.transaction()` writes: to make tables, and to look."""

    def __init__(self, inbox: Inbox | None) -> None:
        self._inbox = inbox

    async def execute(self, statement: str, *arguments: Any) -> None:
        """Run *statement*, with `$1` for the first of *arguments*, in a transaction of its own."""
        await self.fetch(statement, *arguments)

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run *statement* and return its rows."""
        from consumers.delivery.inbox.sqlite import SqliteInbox

        if not isinstance(self._inbox, SqliteInbox):
            found = "no inbox" if self._inbox is None else type(self._inbox).__name__
            raise ConfigurationError(
                f"this app has {found} in this test, and bus.database needs an inbox on SQLite: for PostgreSQL use a "
                "connection of your own"
            )
        return await self._inbox.query(statement, arguments)


class TestBus:
    """A bus with the apps of a test on it, made by `app.test()`.

        async with app.test() as bus:
            await bus.publish(Order(sku="tea"))
            await bus.settle()
            bus.assert_all_handled()
            assert bus.sent(Confirmation) == [Confirmation(sku="tea")]

    It plays agents that are not there, moves the clock, and shows what was sent and what is dead-lettered.
    """

    __test__ = False  # for pytest: no class of tests

    def __init__(
        self,
        apps: Sequence[Declaration],
        *,
        transport: Transport,
        workers: Sequence[Worker],
        clock: ManualClock,
        failures: Mapping[str, Exception],
        start: Callable[[Declaration], Awaitable[object]],
        play: Callable[[str], tuple[Publisher, Requester]],
        off: tuple[str, ...] = (),
    ) -> None:
        self.off = (*off, *ALWAYS_OFF)
        """What a worker in production has and this test has not, one line for each."""
        self.clock = clock
        self.transport = transport
        self._play = play
        self._played: dict[str, PlayedAgent] = {}
        self.publisher, self.requests = play(_TESTER)
        self._apps = apps
        self.workers = workers
        """The workers of the apps, then those of the agents that the test plays: *start* adds them."""
        self._failures = failures
        self._start = start
        self._fakes: list[Fake] = []
        """Agents to be played that have not started yet."""
        self._driving = asyncio.Lock()
        self._agents = {app.agent_id for app in apps}
        self._sent: list[tuple[Record, Message]] = []
        self._dead: list[tuple[Record, DeadLetter]] = []
        self._offsets: dict[str, dict[int, int]] = {}
        """By topic and partition, the offset behind what was collected."""

    def as_agent(self, agent_id: str) -> PlayedAgent:
        """Return *agent_id* as an agent that the test plays, with a key of its own where the apps want signatures.

        await bus.as_agent("planner@svc").publish(Deploy(service="shop"))
        """
        played = self._played.get(agent_id)
        if played is None:
            played = self._played[agent_id] = PlayedAgent(self, *self._play(agent_id))
        return played

    def fake(self, request: type[Payload], *, returns: Any = None, agent: str | None = None) -> Fake:
        """Play the agent that handles *request*, from now on.

            prices = bus.fake(QuoteRequest, returns=Quote(cents=100))
            await bus.publish(Order(...))
            await bus.settle()
            assert prices.received == [QuoteRequest(...)]

        *returns*: a payload, a list of them, None, an error to raise, or a function of what came that returns one of
        these. *agent*: the id of the agent that is played, which matters to a policy; by default one of the test.
        """
        kind = payload_type(request)
        for app in self._apps:
            if kind.name in app.subscriptions:
                raise ConfigurationError(
                    f"{app.agent_id} handles {kind.name} itself: a test cannot play another agent for it"
                )
        fake = Fake(kind, returns, agent)
        self._fakes.append(fake)
        return fake

    @property
    def database(self) -> Database:
        """The database of the first app's inbox."""
        return Database(self.workers[0].inbox)

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store of the test, in a folder that goes with the process."""
        return self.as_agent(_TESTER).publisher.artifacts

    async def held(self) -> list[HeldMessage]:
        """Return the messages that wait for an approval, oldest first.

        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        """
        found = []
        for worker in self.workers:
            if worker.steps is not None:
                for process in await worker.steps.store.processes(saga=APPROVAL_SAGA, status="open"):
                    state = unpack_approval(process)
                    if state.phase == "open":
                        found.append(
                            HeldMessage(
                                state.approval_id, state.action, state.action_hash, state.request, process.opener
                            )
                        )
        return found[::-1]

    async def approve(self, held: HeldMessage, *, by: str, conditions: Sequence[str] = ()) -> None:
        """Approve the message *held* as the agent *by*."""
        await self._decide(held, by, "approve", conditions=tuple(conditions))

    async def reject(self, held: HeldMessage, *, by: str, reason: str = "no") -> None:
        """Reject the message *held* as the agent *by*."""
        await self._decide(held, by, "reject", reason=reason)

    async def _decide(self, held: HeldMessage, by: str, decision: DecisionVerb, **members: Any) -> None:
        request, publisher = sealing.parse(held.request), self.as_agent(by).publisher
        payload = decision_about(request, decision, by=by, **members)
        await publisher.send(seal_decision(publisher.sealer, payload, request))

    async def asked(self) -> list[AskedBack]:
        """Return the questions that handlers have asked their requesters and that wait for an answer, oldest first.

        (asked,) = await bus.asked()
        await bus.answer(asked, ["dev"])
        await bus.settle()
        """
        found = []
        for worker in self.workers:
            if worker.steps is not None:
                for process in await worker.steps.store.processes(saga=CLARIFICATION_SAGA, status="open"):
                    state = unpack_clarification(process)
                    said = questions_in(state)
                    found.append(AskedBack(said.questions, said.options, state.question, process.opener))
        return found[::-1]

    async def answer(
        self,
        asked: AskedBack,
        answers: Sequence[str],
        *,
        inputs: Mapping[str, Any] = MappingProxyType({}),
        by: str | None = None,
    ) -> None:
        """Answer what was *asked* as its requester, or as the agent *by*."""
        requester = by or sealing.parse(asked.opener).metadata.sender.id or ""
        payload = TaskClarified(answers=tuple(answers), inputs=dict(inputs))
        await self.as_agent(requester).requests.answer(sealing.parse(asked.question), payload)

    def assert_all_handled(self) -> None:
        """Raise an AssertionError that names every dead letter, caused by the error of the first handler.

        A handler that failed by a programming error, such as a TypeError, fails the test as well while its message
        waits for another attempt.
        """
        if not self._dead:
            self._raise_mistakes()
            return
        lines = [f"  {letter!r}{self._failure_told(letter)}" for letter in self.dead_letters[:_MAX_TOLD]]
        if is_of_time(self.dead_letters):
            lines.append(f"  {time_told(self.clock)}")
        count = "a dead letter" if len(self._dead) == 1 else f"{len(self._dead)} dead letters"
        ids = (letter.message.message_id for letter in self.dead_letters if letter.message is not None)
        cause = next((self._failures[name] for name in ids if name in self._failures), None)
        raise AssertionError("\n".join([f"{count}:", *lines])) from cause

    def _failure_told(self, letter: DeadLetter) -> str:
        error = None if letter.message is None else self._failures.get(letter.message.message_id)
        return "" if error is None else f"\n    {failure_line(error)}"

    def _raise_mistakes(self) -> None:
        mistakes = [error for error in self._failures.values() if is_programming_error(error)]
        if mistakes:
            lines = "\n".join(f"  {failure_line(error)}" for error in mistakes[:_MAX_TOLD])
            raise AssertionError(
                f"a handler failed, and its message waits for another attempt:\n{lines}"
            ) from mistakes[0]

    async def publish(self, payload: Payload, **options: Unpack[Options]) -> Receipt:
        """Publish as `test@sealbus`. Raises PublishRejected as the real bus does."""
        with self.telling_time():
            return await self.publisher.publish(outgoing_of(payload, options))

    @contextmanager
    def telling_time(self) -> Iterator[None]:
        """Let errors about times say what time it is in the test."""
        try:
            yield
        except BusError as error:
            name_clock(error, self.clock)
            raise

    async def submit(self, payload: Payload, **options: Unpack[Options]) -> SubmittedTask[Any]:
        """Submit *payload* as `test@sealbus`, as `Bus.submit` does. Its requester takes progress, and can be asked."""
        with self.telling_time():
            return await self.requests.submit(outgoing_of(payload, options))

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
        """Send a request as `test@sealbus` and run the app until it has answered. Takes and raises what `Bus.request`
        does.

        When the app is idle, the clock advances to the next timer, at most to the request's deadline.
        """
        watch = make_watch(on_progress, idle_s, progress_types)
        requested = self.requests.ask(payload, reply, timeout_s=timeout_s, watch=watch, **options)
        return await self.work_until_answered(requested, timeout_s)

    async def work_until_answered(self, requested: Coroutine[Any, Any, _Reply], timeout_s: float) -> _Reply:
        """Run the app until *requested* is done; advance the clock when the app is idle."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        asking = asyncio.get_running_loop().create_task(requested)
        try:
            if not await self._work(_PATIENCE_S, until=asking):
                raise self._impatience()
            while not asking.done():
                due_s = await self._next_due_s()
                left_s = max(0.0, deadline_s - self.clock.monotonic_s())
                self.clock.advance(left_s if due_s is None else min(due_s, left_s))
                await self._work(_GLANCE_S, until=asking)
            with self.telling_time():
                return await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            await self._collect()

    async def settle(self) -> None:
        """Let the app work until nothing more can happen without time passing.

        Raises TimeoutError when a handler still waits for something real after ten real seconds; `advance` moves past
        its timeout instead.
        """
        if not await self._work(_PATIENCE_S):
            raise self._impatience()
        for worker in self.workers:
            await worker.keep_up()
        await self._collect()

    async def advance(self, seconds: float) -> None:
        """Move the clock by *seconds*, settling at each retry, timeout and expiry that falls due on the way."""
        await self._work(_GLANCE_S)
        target_s = self.clock.monotonic_s() + seconds
        while (due_s := await self._next_due_s()) is not None and self.clock.monotonic_s() + due_s <= target_s:
            self.clock.advance(due_s)
            # A handler that hangs must not keep the clock from reaching its timeout.
            await self._work(_GLANCE_S)
        self.clock.advance(target_s - self.clock.monotonic_s())
        await self.settle()

    def sent(self, cls: type[_Payload]) -> list[_Payload]:
        """Return the payloads of *cls* that the apps have sent, answers too, oldest first; as of the last `settle`."""
        return [opened for _, opened in self._opened(cls) if isinstance(opened, cls)]

    def messages(self, cls: type[Payload]) -> list[Message]:
        """Return the sealed messages whose payloads `sent` returns."""
        return [message for message, opened in self._opened(cls) if isinstance(opened, cls)]

    @property
    def late_replies(self) -> Sequence[Message]:
        """The last answers to `request` that came after their deadline, or after another answer."""
        return tuple(self.requests.waiting.late)

    async def close(self) -> None:
        """Close the test's publisher and requester."""
        played = [(agent.requests, agent.publisher) for agent in self._played.values()]
        for requests, publisher in [(self.requests, self.publisher), *played]:
            await requests.close()
            await publisher.close()

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Every dead letter, oldest first; as of the last `settle`."""
        return [letter for _, letter in self._dead]

    async def _work(self, patience_s: float, until: asyncio.Future[Any] | None = None) -> bool:
        """Fetch and run until nothing is left, or *until* is done.

        Returns False when nothing was fetched, finished or postponed for *patience_s* real seconds, and a handler still
        runs.
        """
        loop = asyncio.get_running_loop()
        async with self._driving:
            await self._start_fakes()
            moved_s, turns, before = loop.time(), 0, self._progress()
            while until is None or not until.done():
                for worker in self.workers:
                    if await worker.cancels.read_on():
                        worker.cancels.stop_running(worker.slots)
                fetched = [await worker.cycle(0) for worker in self.workers]
                if any(fetched) or before != self._progress():
                    moved_s, turns, before = loop.time(), 0, self._progress()
                elif await self._is_still() and not await self._nudge():
                    break
                elif loop.time() - moved_s > patience_s and turns >= _MIN_TURNS:
                    return False
                turns += 1
                await asyncio.sleep(0 if turns < _TURNS else _NAP_S)
            return True

    async def _nudge(self) -> bool:
        """Make waits that are due now fall due; return whether there were any."""
        return any([await worker.sweeper.sweep() for worker in self.workers if worker.sweeper is not None])

    async def _next_due_s(self) -> float | None:
        """Return the seconds until the next timer of the clock or wait of a process."""
        due_s = [self.clock.next_due_s()]
        due_s += [await worker.sweeper.next_due_s() for worker in self.workers if worker.sweeper is not None]
        return min((each for each in due_s if each is not None), default=None)

    async def _start_fakes(self) -> None:
        while self._fakes:
            await self._start(self._fakes.pop(0).declaration())

    def _progress(self) -> list[tuple[int, int, int]]:
        return [worker.progress for worker in self.workers]

    async def _is_still(self) -> bool:
        """Return whether nothing can happen before time passes.

        No handler runs but those that wait for answers, and every answer was read.
        """
        played = (agent.requests for agent in self._played.values())
        requests = (self.requests, *played, *(worker.requests for worker in self.workers))
        for worker in self.workers:
            waiting, lanes = worker.requests.waiting.causes(), worker.lanes
            if not all(_waits(slot, waiting) for slot in worker.slots.running()):
                return False
            if (
                lanes.awaiting_claim
                or lanes.settling
                or ((lanes.ready or lanes.answered_lanes) and not worker.slots.full)
            ):
                return False
        if any(requested.waiting.moving for requested in requests):
            return False
        return all([await requested.caught_up() for requested in requests]) and not any(
            requested.waiting.moving for requested in requests
        )

    def _impatience(self) -> TimeoutError:
        running = [slot for worker in self.workers for slot in worker.slots.running()]
        waiting = sorted({slot.delivery.label for slot in running if slot.delivery})
        return TimeoutError(
            f"handlers of {', '.join(waiting)} are still running after {_PATIENCE_S:.0f} s; they wait for something "
            f"outside, or for time: {time_told(self.clock)}"
        )

    async def _collect(self) -> None:
        """Read what has come since the last time: a long test settles often."""
        names = {topic: read_topic(topic) for topic in await self.transport.admin.topics()}
        # Every type, also one that only `send` or `send_now` named.
        sent = await self._news(topic for topic, name in names.items() if name and name.kind in _SENT_TO)
        dead = await self._news(topic for topic in names if topic.endswith(dead_letter_topic("")))
        self._sent += [(record, message) for record in sent if (message := self._own(record)) is not None]
        self._dead += [(record, read_dead_letter(record)) for record in dead]
        for collected in (self._sent, self._dead):
            collected.sort(key=_in_time)

    def _own(self, record: Record) -> Message | None:
        try:
            message = sealing.parse(record.value)
        except ContractError:
            return None
        return message if message.metadata.sender.id in self._agents else None

    def _opened(self, cls: type[Any]) -> Iterator[tuple[Message, object]]:
        kinds = {kind.name: kind for app in self._apps for kind in app.registry}
        with suppress(UnknownTypeError):
            kinds[payload_type(cls).name] = payload_type(cls)
        for _, message in self._sent:
            kind = kinds.get(message.message_type)
            with suppress(ContractError):
                if kind is not None:
                    yield message, kind.open(message)

    async def _news(self, topics: Iterable[str]) -> list[Record]:
        """Return the records of *topics* that were not read before."""
        records = []
        for topic in topics:
            offsets = self._offsets.setdefault(topic, {})
            async for record in scan_topic(self.transport, topic, offsets):
                offsets[record.partition] = record.offset + 1
                records.append(record)
        return records


def _in_time(collected: tuple[Record, object]) -> tuple[int, str, int, int]:
    """Order what was collected as it was appended."""
    record = collected[0]
    return record.timestamp_ms, record.topic, record.partition, record.offset


@asynccontextmanager
async def run_in_memory(
    apps: Sequence[Declaration], settings: Settings | None, provide: Resources, *, keys: bool | None = None
) -> AsyncGenerator[TestBus]:
    """Yield a `TestBus` for *apps* on `memory://`; *provide* replaces lifespans by values.

    *keys*: whether every agent of the test has a key of its own; None: where a type of high risk or a policy needs it.
    """
    configure_unless_done("warning")
    check_groups(apps)
    has_keys = False
    if settings is None:
        settings, has_keys = _project_settings(apps[0].namespace)
    # What lies beside the log is in memory as well. A lease is renewed several times in its length: every renewal would
    # be a stop on the way of `advance`, and nobody else is there to take a claim over.
    settings = msgspec.structs.replace(
        settings,
        bus=msgspec.structs.replace(settings.bus, url="memory://"),
        inbox=msgspec.structs.replace(settings.inbox, lease_s=_LONG_S),
    )
    failures: dict[str, Exception] = {}
    clock, metrics = ManualClock(), Metrics()
    # The test's clock may leap by hours: these members are alone, and must keep their partitions.
    transport = open_transport(
        "memory://", clock=clock, session_timeout_s=_LONG_S, heartbeat_s=_HOUR_S, retention_interval_s=_HOUR_S
    )
    workers: list[Worker] = []
    apps = [trusting(app, settings, clock) for app in apps]
    wants_keys = keys if keys is not None else _need_keys(apps) or (has_keys and not _have_keys(apps))
    generated = GeneratedKeys(clock.now_ms, b"app.test") if wants_keys else None
    if generated is not None:
        apps = [_with_keys(app, generated) for app in apps]

    def play(agent_id: str) -> tuple[Publisher, Requester]:
        signer = None if generated is None else generated.signer(agent_id)
        verifier, policy = apps[0].verifier, apps[0].policy
        publisher = make_publisher(
            transport, settings, agent_id, clock=clock, metrics=metrics, signer=signer, verifier=verifier, policy=policy
        )
        return publisher, Requester(publisher, transport, verifier=verifier, policy=policy)

    async def start(app: Declaration, resources: Resources = NO_RESOURCES) -> None:
        if generated is not None and app.verifier is None:
            app = _with_keys(app, generated)
        worker = make_worker(
            app, transport, settings, member=f"test-{len(workers)}", clock=clock, metrics=metrics, resources=resources
        )
        await worker.start(create_topics=True)
        workers.append(worker)

    off = switched_off(apps, settings, has_inbox=[has_inbox(app, settings) for app in apps])
    _tell_once(off)
    bus = TestBus(
        apps, transport=transport, workers=workers, clock=clock, failures=failures, start=start, play=play, off=off
    )
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(LoopWatch(lambda task: find_work((worker.slots.work_of for worker in workers), task)))
            try:
                for app in apps:
                    resources = await stack.enter_async_context(opened_lifespans(app, provide))
                    await start(_watched(app, failures), resources)
                await bus.settle()
                yield bus
            finally:
                # Also when the test has failed: its handlers would keep the event loop from ending.
                await _stop(workers, clock)
                await bus.close()
    finally:
        await transport.close()


_INSIDE: Final = MappingProxyType(
    {
        "bus.url": "memory://",
        "kafka.security_protocol": "plaintext",
        "deadletter.details": True,
    }
)
"""In place of settings that name what is not there where tests run."""


def _project_settings(namespace: str | None) -> tuple[Settings, bool]:
    """Return the settings of the project, policy included, without anything outside, and whether they name keys.

    Raises ConfigurationError.
    """
    settings = load_project(flags={**_INSIDE, "bus.namespace": namespace}, env=os.environ).settings
    has_keys = bool(settings.trust.keys)
    # The files of a deployment are not there where tests run: generated keys stand for them.
    settings = msgspec.structs.replace(settings, trust=msgspec.structs.replace(settings.trust, keys="", key_file=""))
    if settings.inbox.url == "off":
        return settings, has_keys
    return msgspec.structs.replace(settings, inbox=msgspec.structs.replace(settings.inbox, url="auto")), has_keys


_told: set[str] = set()


def _tell_once(off: Iterable[str]) -> None:
    """Log what is off, each line once in a process: tests open hundreds of buses."""
    for line in off:
        if line not in _told:
            _told.add(line)
            _log.warning("app_test.off", detail=f"app.test(): {line}")


def _have_keys(apps: Sequence[Declaration]) -> bool:
    return any(app.verifier is not None or app.signer is not None for app in apps)


def _need_keys(apps: Sequence[Declaration]) -> bool:
    """Return whether a test of *apps* needs keys, and the apps have none."""
    if _have_keys(apps):
        return False
    kinds = [*(kind for app in apps for kind in app.registry), *(kind for app in apps for kind in app.published)]
    asks = any(each.asks for app in apps for each in app.subscriptions.values())
    return asks or any(kind.risk == "high" for kind in kinds) or any(hasattr(app.policy, "rules") for app in apps)


def _with_keys(app: Declaration, keys: GeneratedKeys) -> Declaration:
    return msgspec.structs.replace(app, signer=app.signer or keys.signer(app.agent_id), verifier=app.verifier or keys)


def _watched(app: Declaration, failures: dict[str, Exception]) -> Declaration:
    """Return *app* with handlers whose errors are stored in *failures*, by message id, for `assert_all_handled`."""

    def watch(following: Handling) -> Handling:
        async def handler(payload: Any, context: Context) -> Any:
            try:
                result = await following(payload, context)
            except Exception as error:
                failures[context.message.message_id] = _copied_error(error)
                raise
            failures.pop(context.message.message_id, None)
            return result

        return handler

    subscriptions = {
        name: msgspec.structs.replace(subscription, middleware=(watch, *subscription.middleware))
        for name, subscription in app.subscriptions.items()
    }
    return msgspec.structs.replace(app, subscriptions=MappingProxyType(subscriptions))


def _copied_error(error: Exception) -> Exception:
    """Return a copy of *error* that ends where the test's own code does: the worker's frames would keep the message.

    From Python 3.12 on the frame of a coroutine keeps its callers all the same.
    """
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - a constructor with other arguments than it stores
        copied = RuntimeError(f"{type(error).__name__}: {text_of(error)}")
    copied.__cause__, copied.__suppress_context__ = error.__cause__, True
    return copied.with_traceback(_own_part(error))


def _own_part(error: Exception) -> TracebackType | None:
    """Return the traceback of *error* from the test's own code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


async def _stop(workers: Sequence[Worker], clock: ManualClock) -> None:
    """Stop *workers* while time passes, because some of their work waits for the clock."""
    stopping = asyncio.ensure_future(asyncio.gather(*(worker.stop(0) for worker in workers)))
    while not stopping.done():
        await asyncio.wait([stopping], timeout=_GLANCE_S)
        clock.advance(1.0)
    await stopping


def _waits(slot: HandlerSlot, waiting: Set[str]) -> bool:
    """Return whether *slot* waits for time to pass.

    It waits for an answer, as the messages *waiting* do, or to repeat an append.
    """
    delivery = slot.delivery
    if delivery is None or (delivery.partition.patient and not slot.in_handler):
        return True
    return delivery.message is not None and delivery.message.message_id in waiting
