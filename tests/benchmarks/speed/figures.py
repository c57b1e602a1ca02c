"""What one message costs in processor time: sealing, judging with and without ancestors, answering, and the embedded
log below them.

Owns these figures and the log that is none. Each is prepared once and then run again and again, so that the caller can
take turns between them.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
from speed.payloads import BYTES, Report

from bus.clock import SystemClock
from bus.errors import TopicMissingError
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.transports import open_configured
from bus.transports.base import Appended, AppendOutcome, Assignment, Features, Listener, NewRecord, Record, Transport
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.crashes.open import open_process_files
from consumers.worker.host import make_worker
from consumers.worker.worker import Worker
from producers.connection import Bus, make_publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from sealbus import App, Context, Receipt, payload

__all__ = ["COUNTED", "FIGURES", "SIZES", "Figure", "Round"]

_AGENT, _GROUP, _MEMBER = "budget@svc", "readers", "reader-1"
_POLL_S = 0.05

Round = Callable[[], AbstractAsyncContextManager[Callable[[], Any]]]
"""Prepares one repeat, which the caller times: enter it, await what it yields."""


class Figure(msgspec.Struct, frozen=True):
    """One of them; *opened* is entered once, with the payloads and a folder, and yields its rounds."""

    name: str
    title: str
    opened: Callable[[Sequence[Report], Path], AbstractAsyncContextManager[Round]]
    share: float = 1.0
    """Of the payloads so many are taken: large messages are few."""


class _Mode(enum.Enum):
    QUICK = "quick"
    THOROUGH = "thorough"


@payload("bench.call", version="1.0.0")
class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """What agents call tools with: a payload whose annotations leave much open, and ask for more than a class."""

    tool: Annotated[str, msgspec.Meta(max_length=80)]
    arguments: dict[str, Any]
    mode: _Mode
    at: datetime
    retries: Annotated[int, msgspec.Meta(ge=0)] = 0

    @classmethod
    def of(cls, number: int, report: Report) -> _Call:
        """One with the contents of *report*."""
        contents = msgspec.to_builtins(report)
        return cls(
            tool="search",
            arguments=contents,
            mode=_Mode.THOROUGH,
            at=datetime.fromtimestamp(number, UTC),
            retries=number % 3,
        )


@payload("bench.own", version="1.0.0")
class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What runs code of its author where it is read."""

    number: int

    def __post_init__(self) -> None:
        pass


class _EveryTopic(dict[str, object]):
    """Whatever is asked for is there, and nothing is listed."""

    def __contains__(self, _: object) -> bool:
        return True


class _Log:
    """A log that keeps nothing: whatever is appended is in it at once; who subscribes is given *records*, once."""

    def __init__(self) -> None:
        self.features = Features(
            name="none",
            durable=False,
            between_processes=False,
            max_record_bytes=1 << 22,
            creates_topics_at_start=False,
            own_clock=True,
        )
        self.admin = SimpleNamespace(topics=self._topics, ranges=self._ranges)
        self.records: list[Record] = []

    async def _ranges(self, topic: str) -> Any:
        raise TopicMissingError(topic)

    async def _topics(self) -> Mapping[str, object]:
        return _EveryTopic()

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        return [Appended(record.topic, 0, number, 0) for number, record in enumerate(records)]

    async def subscribe(self, group: str, topics: Sequence[str], listener: Listener, *, member: str) -> _Log:
        listener.assigned([Assignment(topic, 0, 1) for topic in topics])
        return self

    async def poll(self, *, timeout_s: float, max_records: int, max_bytes: int) -> Sequence[Record]:
        found, self.records = self.records[:max_records], self.records[max_records:]
        if not found:
            await asyncio.sleep(0)
        return found

    async def commit(self, offsets: Mapping[Assignment, int]) -> Sequence[Assignment]:
        return ()

    def pause(self, assignments: Iterable[Assignment]) -> None:
        pass

    resume = pause

    async def close(self) -> None:
        pass


def _settings(folder: Path) -> Settings:
    flags = {
        "bus.url": f"sqlite:///{folder}/log.db",
        "publish.ttl_s": "1d",
        "inbox.url": "off",
        "worker.commit_interval_s": "1h",
    }
    return load(flags=flags, env={}, file=None).settings


def _bus(log: Transport, folder: Path) -> Bus:
    return Bus(make_publisher(log, _settings(folder), _AGENT, clock=SystemClock(), metrics=Metrics()), log)


async def _publish(bus: Bus, payloads: Sequence[msgspec.Struct]) -> None:
    async for outcome in bus.publish_many(payloads):
        if not isinstance(outcome, Receipt):
            raise outcome


async def _publish_each(bus: Bus, payloads: Sequence[msgspec.Struct]) -> None:
    for each in payloads:
        await bus.publish(each)


class _Reader:
    """A worker whose handler only counts; or *answers*, with what it was given."""

    def __init__(
        self,
        log: Transport,
        folder: Path,
        *,
        kind: type[msgspec.Struct] = Report,
        answers: bool = False,
        context: bool = False,
    ) -> None:
        app = App("reader@svc", group=_GROUP)
        self.count = 0

        async def handle(report: Any) -> Any:
            self.count += 1
            return report if answers else None

        async def handle_in_context(report: Any, _: Context) -> None:
            await handle(report)

        app.on(kind)(handle_in_context if context else handle)

        settings, clock = _settings(folder), SystemClock()
        guard = CrashGuard(open_process_files(settings, _GROUP), clock)
        guard.open(settings.worker.concurrency, _MEMBER)
        self.worker: Worker = make_worker(
            app.declaration, log, settings, member=_MEMBER, clock=clock, metrics=Metrics(), guard=guard
        )

    async def read(self, wanted: int) -> None:
        """Handle *wanted* messages more, and commit."""
        end = self.count + wanted
        while self.count < end:
            await self.worker.cycle(_POLL_S)
        await self.worker.commit()


@asynccontextmanager
async def _seal(
    reports: Sequence[Report], folder: Path, *, calls: bool = False, one_by_one: bool = False
) -> AsyncIterator[Round]:
    bus = _bus(_Log(), folder)
    payloads = [_Call.of(number, report) for number, report in enumerate(reports)] if calls else reports

    @asynccontextmanager
    async def repeat() -> AsyncIterator[Callable[[], Any]]:
        yield lambda: _publish_each(bus, payloads) if one_by_one else _publish(bus, payloads)

    yield repeat
    await bus.close()


def _sealed(bus: Bus, reports: Sequence[msgspec.Struct], ancestors: int) -> Sequence[NewRecord]:
    cause = None
    for _ in range(ancestors):
        cause = bus.publisher.sealer.seal(Outgoing(reports[0]), SealRequest(cause=cause)).message
    return [bus.publisher.sealer.seal(Outgoing(report), SealRequest(cause=cause)).record for report in reports]


@asynccontextmanager
async def _judge(
    reports: Sequence[Report],
    folder: Path,
    *,
    ancestors: int = 0,
    answers: bool = False,
    own_code: bool = False,
    context: bool = False,
) -> AsyncIterator[Round]:
    log = _Log()
    payloads = [_Own(number=number) for number in range(len(reports))] if own_code else reports
    sealed = _sealed(_bus(log, folder), payloads, ancestors)
    topic, at_ms = sealed[0].topic, SystemClock().now_ms()
    kind = type(payloads[0])
    reader = _Reader(log, folder, kind=kind, answers=answers, context=context)
    await reader.worker.start(create_topics=False)

    @asynccontextmanager
    async def repeat() -> AsyncIterator[Callable[[], Any]]:
        log.records = [
            Record(topic, 0, reader.count + number, at_ms, record.key, record.value, record.headers)
            for number, record in enumerate(sealed)
        ]
        yield lambda: reader.read(len(reports))

    yield repeat
    await reader.worker.stop(1.0)


def _grown(report: Report, size: int) -> Report:
    """*report* with as many more sources as make it about *size* bytes."""
    missing = size - BYTES
    each = len(msgspec.json.encode(report.sources[0]))
    return msgspec.structs.replace(report, sources=report.sources * (1 + missing // (each * len(report.sources))))


def _judge_large(reports: Sequence[Report], folder: Path, *, size: int) -> AbstractAsyncContextManager[Round]:
    return _judge([_grown(report, size) for report in reports], folder)


@asynccontextmanager
async def _embedded_publish(reports: Sequence[Report], folder: Path) -> AsyncIterator[Round]:
    bus = _bus(open_configured(_settings(folder)), folder)

    @asynccontextmanager
    async def repeat() -> AsyncIterator[Callable[[], Any]]:
        yield lambda: _publish(bus, reports)

    yield repeat
    await bus.close()


@asynccontextmanager
async def _embedded_consume(reports: Sequence[Report], folder: Path) -> AsyncIterator[Round]:
    bus = _bus(open_configured(_settings(folder)), folder)
    log = open_configured(_settings(folder))
    reader = _Reader(log, folder)
    await reader.worker.start(create_topics=True)

    @asynccontextmanager
    async def repeat() -> AsyncIterator[Callable[[], Any]]:
        await _publish(bus, reports)
        yield lambda: reader.read(len(reports))

    yield repeat
    await reader.worker.stop(1.0)
    await log.close()
    await bus.close()


FIGURES = (
    Figure("seal", "publish_many of 1 KB payloads, no log", _seal),
    Figure("seal-open", "the same for dict[str, Any], an enum, a time and constraints", partial(_seal, calls=True)),
    Figure("judge", "worker: judging and dispatching a record, no log", _judge),
    Figure("judge-caused", "the same for a record with three ancestors", partial(_judge, ancestors=3)),
    Figure("answer", "the same and answering it", partial(_judge, answers=True)),
    Figure("embedded-publish", "publish_many on the embedded log", _embedded_publish),
    Figure("embedded-consume", "worker on the embedded log", _embedded_consume),
    *(
        Figure(
            name, f"worker: judging and dispatching a record of {size:,} bytes", partial(_judge_large, size=size), share
        )
        for name, size, share in (("judge-3k", 3_000, 0.3), ("judge-16k", 16_000, 0.06), ("judge-100k", 100_000, 0.02))
    ),
)
COUNTED = (
    Figure("publish-one", "publish, one by one, no log", partial(_seal, one_by_one=True)),
    Figure("judge-context", "worker: a handler that takes its context", partial(_judge, context=True)),
    Figure("judge-own-code", "worker: a type with a __post_init__", partial(_judge, own_code=True)),
)
"""Further paths that many programs take; only their calls are held."""
SIZES: Mapping[str, int] = {"judge-3k": 3_000, "judge-16k": 16_000, "judge-100k": 100_000}
"""The bytes of data of the figures with large payloads."""
