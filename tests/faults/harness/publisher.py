"""A publisher as a process of its own: it may be killed at any moment, and what its journal says then is true.

Owns drawing messages from a seed, publishing them at a rate, deliberate repetitions, forgeries, sending again what is
unknown, and going on after a death with the very bytes of the journal.

    python -m harness.publisher CONFIG.json
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from harness import bugs, clocks
from harness.journal import Intent, Journal, Outcome, unfinished_in
from harness.messages import KINDS, PUBLISHER

from bus.errors import BusError
from bus.protocol import sealing
from bus.protocol.canonical import digest
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import parse_ms
from bus.settings.loading import load
from bus.topics.names import message_topic, reply_topic
from bus.transports.base import Appended, NewRecord
from producers.connection import Bus, connect
from producers.outcomes import PublishRejected, PublishUnknown
from producers.sealing.options import Outgoing
from producers.sealing.sealed_record import SealedRecord, sealed_as

__all__ = ["Config"]

_TICK_S = 0.02
_LATEST_S = 1.5


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is published. Shares are between 0 and 1; *mix* and *types* are weights."""

    url: str
    namespace: str
    journal: str
    count: int
    rate: float
    seed: int
    keys: int = 40
    types: dict[str, int] = msgspec.field(default_factory=lambda: {"fault.task": 1})
    mix: dict[str, int] = msgspec.field(default_factory=lambda: {"ok": 1})
    duplicates: float = 0.0
    most_repeats: int = 1
    forged: float = 0.0
    asking: float = 0.0
    """Share of messages with a reply address."""
    ttl_s: float = 3600.0
    timeout_s: float = 20.0
    bug: str = ""
    clock: str = ""


class Publishing:
    """One process's work."""

    def __init__(self, config: Config, bus: Bus) -> None:
        self._config = config
        self._bus = bus
        self._unfinished, self._known = unfinished_in(Path(config.journal))
        self._journal = Journal(Path(config.journal))
        self._made: dict[str, tuple[Intent, asyncio.Event]] = {}
        self._pending: list[Intent | Outcome] = []
        self._written = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def run(self) -> None:
        """Publish everything that the journal does not know yet; returns when every outcome is known or given up."""
        flusher = asyncio.create_task(self._flush())
        try:
            for intent in self._unfinished:
                self._spawn(self._again(intent))
            await self._publish_all()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            flusher.cancel()
            self._journal.write(self._pending)
            self._journal.close()

    def stop(self) -> None:
        """Publish nothing new."""
        self._stopping = True

    async def _publish_all(self) -> None:
        started_s, sent = time.monotonic(), 0
        for number in range(self._config.count):
            if number in self._known:
                continue
            # Drawn for each number by itself, so that a publisher that comes back draws the same.
            chance = random.Random(f"{self._config.seed}/{number}")
            while sent > (time.monotonic() - started_s) * self._config.rate:  # noqa: ASYNC110 - it waits for time
                await asyncio.sleep(_TICK_S)
            if self._stopping:
                return
            sent += 1
            draft = self._drawn(number, chance)
            if chance.random() < self._config.forged:
                self._spawn(self._forge(draft, number))
                continue
            self._spawn(self._one(draft))
            if chance.random() < self._config.duplicates:
                for _ in range(chance.randint(1, self._config.most_repeats)):
                    self._spawn(
                        self._repeat(
                            draft,
                            chance,
                            chance.choice([0.0, chance.uniform(0.0, _LATEST_S)]),
                            anew=chance.random() < 0.5,
                        )
                    )

    def _drawn(self, number: int, chance: random.Random) -> Outgoing:
        config = self._config
        kind = KINDS[chance.choices(list(config.types), list(config.types.values()))[0]]
        behaviour = chance.choices(list(config.mix), list(config.mix.values()))[0]
        return Outgoing(
            payload=kind(number=number, behaviour=behaviour),
            key=f"k{chance.randrange(config.keys)}",
            idempotency_key=f"{config.seed}-{number}",
            ttl_s=0.05 if behaviour == "late" else config.ttl_s,
            message_id=_fresh_id(),
            reply_to=reply_topic(config.namespace, PUBLISHER) if chance.random() < config.asking else None,
        )

    async def _one(self, draft: Outgoing) -> None:
        sealed = self._bus.publisher.sealer.seal(draft)
        await self._noted(_intent_of(sealed.message))
        await self._send(sealed)

    async def _repeat(self, draft: Outgoing, chance: random.Random, delay_s: float, *, anew: bool) -> None:
        """The same content under the same key once more: the very bytes, or under another id."""
        await asyncio.sleep(delay_s)
        if anew:
            # Half of them in another lane, so that two workers can have the same key at once.
            lane = draft.key if chance.random() < 0.5 else f"{draft.key}-again"
            await self._one(msgspec.structs.replace(draft, message_id=_fresh_id(), key=lane))
            return
        known, durable = self._made[draft.message_id or ""]
        # The first one may still be waiting for the disk; a copy that overtakes its own intent would be a message of
        # nobody's after a death.
        await durable.wait()
        await self._send(self._sealed(known))

    async def _forge(self, draft: Outgoing, number: int) -> None:
        """Bytes altered after sealing, put into the log past the publisher."""
        sealed = self._bus.publisher.sealer.seal(draft)
        record = sealed.record
        altered = (record.value or b"").replace(b'"number":%d' % number, b'"number":%d' % (number + 1_000_000), 1)
        await self._noted(
            msgspec.structs.replace(
                _intent_of(sealed.message), value=altered.decode(), content=digest(altered), forged=True
            )
        )
        (outcome,) = await self._bus.transport.append(
            [NewRecord(record.topic, record.key, altered, record.headers)], timeout_s=self._config.timeout_s
        )
        if isinstance(outcome, Appended):
            self._told(draft.message_id or "", "accepted", outcome)
        else:
            self._told(draft.message_id or "", "unknown", text=str(outcome))

    async def _again(self, intent: Intent) -> None:
        if not intent.forged:
            await self._send(self._sealed(intent))

    async def _send(self, sealed: SealedRecord) -> None:
        """Send until it is known what became of it, always the same bytes."""
        for _ in range(20):
            try:
                receipt = await self._bus.publisher.send(sealed, timeout_s=self._config.timeout_s)
            except PublishRejected as error:
                self._told(sealed.message_id, "rejected", text=str(error))
                return
            except PublishUnknown as error:
                self._told(sealed.message_id, "unknown", text=str(error))
                if self._stopping:
                    return
                await asyncio.sleep(0.5)
            else:
                self._told(sealed.message_id, "accepted", receipt)
                return

    def _sealed(self, intent: Intent) -> SealedRecord:
        return sealed_as(
            sealing.parse(intent.value.encode()), message_topic(self._config.namespace, intent.message_type)
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, intent: Intent) -> None:
        """Returns when *intent* is durable."""
        durable = self._written
        self._made[intent.message_id] = (intent, durable)
        self._pending.append(intent)
        await durable.wait()

    def _told(self, message_id: str, outcome: str, place: Any = None, text: str = "") -> None:
        found = {} if place is None else {"topic": place.topic, "partition": place.partition, "offset": place.offset}
        self._pending.append(
            Outcome(message_id=message_id, outcome=outcome, text=text[:300], at_ms=clocks.true_ms(), **found)
        )

    async def _flush(self) -> None:
        """Write what has come together, many lines with one wait for the disk."""
        while True:
            await asyncio.sleep(_TICK_S / 2)
            if self._pending:
                pending, self._pending = self._pending, []
                written, self._written = self._written, asyncio.Event()
                self._journal.write(pending)
                written.set()


def _intent_of(message: sealing.Message) -> Intent:
    data = msgspec.json.decode(message.data)
    return Intent(
        message_id=message.message_id,
        message_type=message.message_type,
        idempotency_key=message.routing.idempotency_key or "",
        lane=message.key.decode(),
        number=data["number"],
        behaviour=data["behaviour"],
        value=message.value.decode(),
        content=digest(message.value),
        expires_ms=parse_ms(message.routing.expires_at) or 0,
        at_ms=clocks.true_ms(),
        reply_to=message.routing.reply_to or "",
    )


def _fresh_id() -> str:
    return uuid7(round(time.time() * 1000), os.urandom(10))


async def _main(config: Config) -> None:
    clocks.bend(config.clock)
    bugs.build_in(config.bug)
    settings = load(
        flags={"bus.url": config.url, "bus.namespace": config.namespace}, env=os.environ, file=None
    ).settings
    while True:
        try:
            async with connect(settings=settings, agent=PUBLISHER) as bus:
                publishing = Publishing(config, bus)
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, publishing.stop)
                await publishing.run()
        except BusError as error:
            if not getattr(error, "retriable", False):
                raise
            print(f"publisher: {error}", file=sys.stderr)
            await asyncio.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)))
