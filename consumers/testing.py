"""App.test: an App on a log in memory, with the same gates, and a clock that only the test moves.

Owns driving a worker until nothing more can happen, and reading back what was sent and what died. No sleeping, no
threads, no server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from bus.clock import ManualClock
from bus.errors import ContractError, UnknownTypeError
from bus.payloads.payload_types import payload_type
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.logs import configure_unless_done
from bus.telemetry.metrics import Metrics
from bus.topics.names import dead_letter_topic, read_topic
from bus.transports import open_transport
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan
from consumers.deadletters.letters import DeadLetter, read_dead_letter
from consumers.handling.slots import HandlerSlot
from consumers.worker.process import make_worker
from producers.connection import make_publisher
from producers.outcomes import Receipt
from producers.publisher import Publisher
from producers.requests.requester import Requester
from producers.sealing.options import Draft, Options, RequestOptions

if TYPE_CHECKING:
    from consumers.declaration import Declaration
    from consumers.worker.worker import Worker

__all__ = ["AppBus", "run_in_memory"]

_TESTER = "test@sealbus"
_PATIENCE_S = 10.0
_GLANCE_S = 0.05
_TURNS = 1000
_NAP_S = 0.001
_Payload = TypeVar("_Payload", bound=msgspec.Struct)
_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class AppBus:
    """A bus with one app on it, as a test sees it."""

    def __init__(
        self, app: Declaration, transport: Transport, publisher: Publisher, worker: Worker, clock: ManualClock
    ) -> None:
        self.clock = clock
        self.transport = transport
        self.publisher = publisher
        self._app = app
        self._worker = worker
        self._requests = Requester(publisher, transport, verifier=app.verifier)
        self._driving = asyncio.Lock()
        self._sent: list[Message] = []
        self._dead: list[DeadLetter] = []

    async def publish(self, payload: msgspec.Struct, **options: Unpack[Options]) -> Receipt:
        """Publish as `test@sealbus`. Raises PublishRejected as the real bus does."""
        return await self.publisher.publish(Draft(payload=payload, **options))

    async def request(
        self,
        payload: msgspec.Struct,
        reply: type[_Reply],
        *,
        timeout_s: float = 60.0,
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Ask as `test@sealbus` and let the app work until the answer is there. Raises as `Bus.request`.

        Where nothing more can happen by itself, the clock moves to what falls due next, at most to the request's
        deadline.
        """
        deadline_s = self.clock.monotonic_s() + timeout_s
        asking = asyncio.get_running_loop().create_task(
            self._requests.ask(payload, reply, timeout_s=timeout_s, **options)
        )
        try:
            if not await self._work(_PATIENCE_S, until=asking):
                raise self._impatience()
            while not asking.done():
                due_s = self.clock.next_due_s()
                left_s = max(0.0, deadline_s - self.clock.monotonic_s())
                self.clock.advance(left_s if due_s is None else min(due_s, left_s))
                await self._work(_GLANCE_S, until=asking)
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
        await self._worker.keep_up()
        await self._collect()

    async def advance(self, seconds: float) -> None:
        """Move the clock by *seconds*, settling at each retry, timeout and expiry that falls due on the way."""
        await self._work(_GLANCE_S)
        target_s = self.clock.monotonic_s() + seconds
        while (due_s := self.clock.next_due_s()) is not None and self.clock.monotonic_s() + due_s <= target_s:
            self.clock.advance(due_s)
            # A handler that hangs must not keep the clock from reaching its timeout.
            await self._work(_GLANCE_S)
        self.clock.advance(target_s - self.clock.monotonic_s())
        await self.settle()

    def sent(self, cls: type[_Payload]) -> list[_Payload]:
        """Return the payloads of *cls* that the app has sent, in the order of the log; as of the last `settle`."""
        return [opened for _, opened in self._opened(cls) if isinstance(opened, cls)]

    def messages(self, cls: type[msgspec.Struct]) -> list[Message]:
        """Return the sealed messages whose payloads `sent` returns."""
        return [message for message, opened in self._opened(cls) if isinstance(opened, cls)]

    @property
    def late_replies(self) -> Sequence[Message]:
        """The last answers to `request` that came after their deadline, or after another answer."""
        return tuple(self._requests.waiting.late)

    async def close(self) -> None:
        """Close the test's publisher and requester."""
        await self._requests.close()
        await self.publisher.close()

    @property
    def dead(self) -> list[DeadLetter]:
        """Every dead letter, oldest first; as of the last `settle`."""
        return list(self._dead)

    async def _work(self, patience_s: float, until: asyncio.Future[Any] | None = None) -> bool:
        """Fetch and run until nothing is left, or *until* is done.

        Returns False when nothing was fetched, finished or postponed for *patience_s* real seconds, and a handler still
        runs.
        """
        loop, worker = asyncio.get_running_loop(), self._worker
        async with self._driving:
            moved_s, turns, before = loop.time(), 0, worker.progress
            while until is None or not until.done():
                if await worker.cycle(0) or before != worker.progress:
                    moved_s, turns, before = loop.time(), 0, worker.progress
                elif await self._is_still():
                    break
                elif loop.time() - moved_s > patience_s:
                    return False
                turns += 1
                await asyncio.sleep(0 if turns < _TURNS else _NAP_S)
            return True

    async def _is_still(self) -> bool:
        """Return whether nothing can happen before time passes.

        No handler runs but those that wait for answers, and every answer was read.
        """
        slots, requests = self._worker.slots, (self._requests, self._worker.requests)
        waiting = self._worker.requests.waiting.causes()
        if not all(_waits(slot, waiting) for slot in slots.running()):
            return False
        lanes = self._worker.lanes
        if (
            lanes.away
            or lanes.settling
            or ((lanes.ready or lanes.back) and not slots.full)
            or any(asked.waiting.moving for asked in requests)
        ):
            return False
        return all([await asked.caught_up() for asked in requests]) and not any(
            asked.waiting.moving for asked in requests
        )

    def _impatience(self) -> TimeoutError:
        waiting = sorted({slot.delivery.label for slot in self._worker.slots.running() if slot.delivery})
        return TimeoutError(
            f"handlers of {', '.join(waiting)} are still running after {_PATIENCE_S:.0f} s; they wait for something "
            "outside"
        )

    async def _collect(self) -> None:
        # Every type, also one that only `send` or `send_now` named.
        names = {topic: read_topic(topic) for topic in await self.transport.admin.topics()}
        records = await self._read(topic for topic, name in names.items() if name and name.kind == "message")
        self._sent = [message for record in records if (message := self._own(record)) is not None]
        self._dead = [
            read_dead_letter(record)
            for record in await self._read(topic for topic in names if topic.endswith(dead_letter_topic("")))
        ]

    def _own(self, record: Record) -> Message | None:
        try:
            message = sealing.parse(record.value)
        except ContractError:
            return None
        return message if message.metadata.sender.id == self._app.agent_id else None

    def _opened(self, cls: type[msgspec.Struct]) -> Iterator[tuple[Message, msgspec.Struct]]:
        kinds = {kind.name: kind for kind in self._app.registry}
        with suppress(UnknownTypeError):
            kinds[payload_type(cls).name] = payload_type(cls)
        for message in self._sent:
            kind = kinds.get(message.message_type)
            with suppress(ContractError):
                if kind is not None:
                    yield message, kind.open(message)

    async def _read(self, topics: Iterable[str]) -> list[Record]:
        """Return the records of *topics* in the order in which they were appended."""
        records = [record for topic in topics async for record in scan(self.transport, topic)]
        return sorted(records, key=lambda record: (record.timestamp_ms, record.topic, record.partition, record.offset))


@asynccontextmanager
async def run_in_memory(app: Declaration, settings: Settings | None) -> AsyncGenerator[AppBus]:
    """Yield an `AppBus` for *app* on `memory://`."""
    configure_unless_done("error")
    if settings is None:
        flags: dict[str, object] = {} if app.namespace is None else {"bus.namespace": app.namespace}
        settings = load(flags=flags, env={}, file=None).settings
    # What lies beside the log is in memory as well.
    settings = msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, url="memory://"))
    clock = ManualClock()
    metrics = Metrics()
    # The test's clock may leap by hours: this member is alone, and must keep its partitions.
    transport = open_transport("memory://", clock=clock, session_timeout_s=1e9, heartbeat_s=3600)
    try:
        worker = make_worker(app, transport, settings, member="test", clock=clock, metrics=metrics)
        await worker.start(create_topics=True)
        publisher = make_publisher(transport, settings, _TESTER, clock=clock, metrics=metrics)
        bus = AppBus(app, transport, publisher, worker, clock)
        try:
            await bus.settle()
            yield bus
        finally:
            # Also when the test has failed: its handlers would keep the event loop from ending.
            await _stop(worker, clock)
            await bus.close()
    finally:
        await transport.close()


async def _stop(worker: Worker, clock: ManualClock) -> None:
    """Stop *worker* while time passes: some of what it does then waits for the clock."""
    stopping = asyncio.get_running_loop().create_task(worker.stop(0))
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
