"""An application with a database of its own, on SQLite or PostgreSQL, that puts messages into its outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from bus.clock import Clock, SystemClock
from bus.payloads.payload_types import payload
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended, AppendOutcome, Features, NewRecord, TopicSpec
from producers.connection import make_publisher
from producers.outbox import Outbox, Relay
from producers.outbox.open import open_rows
from producers.outbox.rows import Backlog

__all__ = ["FakeLog", "OrderPlaced", "Shop"]


@payload("order.placed", version="1.0.0")
class OrderPlaced(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    note: str = ""


class FakeAdmin:
    async def topics(self) -> Mapping[str, TopicSpec]:
        return {}


class FakeLog:
    """Keeps what it takes, and answers as it is told to."""

    features = Features(
        name="fake", durable=True, between_processes=False, max_record_bytes=1 << 30, creates_topics_at_start=False
    )
    admin = FakeAdmin()

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.answer: Callable[[NewRecord], AppendOutcome | None] = lambda _: None

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        return [self._append(record) for record in records]

    def _append(self, record: NewRecord) -> AppendOutcome:
        outcome = self.answer(record)
        if outcome is None:
            self.records.append(record)
        return outcome or Appended(record.topic, 0, len(self.records), 0)

    def numbers(self) -> list[int]:
        """Which orders it has, in the order they came."""
        return [number_of(record) for record in self.records]


def number_of(record: NewRecord) -> int:
    number: int = msgspec.json.decode(record.value or b"")["data"]["number"]
    return number


class Shop:
    """The database behind *url*."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outbox = Outbox("shop@svc", env={})
        self._relays: list[Relay] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection of the application's own, with its transaction open."""
        if self.url.startswith("sqlite:"):
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
            return
        connection = await asyncpg.connect(self.url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    async def create(self) -> None:
        async with self.transaction() as connection:
            made = self.outbox.create(connection)
            if made is not None:
                await made

    async def add(self, connection: Any, number: int, **options: Any) -> str:
        added = self.outbox.add(connection, OrderPlaced(number=number), **options)
        return added if isinstance(added, str) else await added

    async def place(self, *numbers: int, **options: Any) -> list[str]:
        """Orders, in one transaction that is committed; their message ids."""
        async with self.transaction() as connection:
            return [await self.add(connection, number, **options) for number in numbers]

    def relay(self, log: FakeLog, *, clock: Clock | None = None, **options: Any) -> Relay:
        settings = load(flags={}, env={}, file=None).settings
        publisher = make_publisher(log, settings, "outbox@svc", clock=clock or SystemClock(), metrics=Metrics())
        self._relays.append(Relay(self.url, publisher, **options))
        return self._relays[-1]

    async def backlog(self) -> list[Backlog]:
        rows = open_rows(self.url, clock=SystemClock())
        try:
            return list(await rows.backlog())
        finally:
            await rows.close()

    async def close(self) -> None:
        for relay in self._relays:
            await relay.close()
