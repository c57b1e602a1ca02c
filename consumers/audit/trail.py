"""AuditTrail: read every partition of a namespace in the order of its offsets, and write a row for each record.

It is no group: nothing is committed to the log, and where it stands is in the store, moved in the transaction that
inserts the rows. A record is one row, whatever is killed (design part two 18).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import BusError, TopicMissingError
from bus.payloads.payload_types import Registry, Risk
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.telemetry.logs import get_logger
from bus.topics.names import TopicName, own_topic, read_topic
from bus.transports.base import PartitionRange, Record, Transport
from bus.vocabulary.bus import AuditCheckpoint
from consumers.audit.anchor import write_anchor
from consumers.audit.metrics import AuditMetrics
from consumers.audit.rows import AuditRow, chained, commitment_of, content_of, lost_row
from consumers.audit.store import AuditHead, AuditStore, Entry, Erasure
from consumers.deadletters.letters import read_dead_letter
from producers.publisher import Publisher
from producers.sealing.options import Draft

__all__ = ["AuditTrail", "TrailSettings"]

_PAGE_RECORDS: Final = 1_000
_PAGE_BYTES: Final = 16 * 1_048_576
_LOOK_S: Final = 0.5
"""A partition at whose end the trail stands is looked at again after so long."""
_AGAIN_S: Final = 2.0
_KEEPING_S: Final = 3_600.0
_SENSITIVE: Final = ("confidential", "restricted")
_KEY_BYTES: Final = 32
_SEND_S: Final = 10.0

_log = get_logger("audit")


class TrailSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the trail works."""

    namespace: str
    holder: str
    max_message_bytes: int
    checkpoint_s: float
    anchor: str = ""
    """The file that checkpoints are appended to, too; empty: none."""
    keep_s: float
    """After so long content is erased; the rows stay. 0: never."""
    keep_sensitive_s: float = 0.0
    """The same for confidential and restricted content. 0: as `keep_s`."""


class AuditTrail:
    """The reader and writer of one process; several share the partitions of a namespace."""

    def __init__(
        self,
        transport: Transport,
        store: AuditStore,
        settings: TrailSettings,
        *,
        registry: Registry,
        verifier: Verifier | None,
        publisher: Publisher | None,
        clock: Clock,
        metrics: AuditMetrics | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._transport = transport
        self._store = store
        self._settings = settings
        self._registry = registry
        self._publisher = publisher
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics or AuditMetrics()
        self._checks = gates.Checks(
            max_message_bytes=settings.max_message_bytes,
            namespace=settings.namespace,
            # Of an unknown type nothing is known, so its signature is not demanded.
            risk_of=None if verifier is None else self._risk,
            verifier=verifier,
            kind_of=lambda message: registry.get(message.message_type),
        )
        self._told: dict[tuple[str, int], int] = {}
        """By partition, how many rows its last checkpoint counted."""
        self.rows = 0
        """Rows that this process has written."""
        self.behind = 0
        """Records that the last round found and has not read."""

    async def run(self, *, until_caught_up: bool = False, told: Callable[[int, int], object] = lambda *_: None) -> None:
        """Follow the log until cancelled, or to its present end; *told* hears of rows written and records behind."""
        checkpoint_s, keeping_s = self._clock.monotonic_s(), -math.inf
        try:
            while True:
                try:
                    count = await self._round(told)
                    if self._clock.monotonic_s() - keeping_s >= _KEEPING_S:
                        await self.forget_old()
                        keeping_s = self._clock.monotonic_s()
                except BusError as error:
                    self._metrics.up.set(0)
                    _log.warning("audit.waits", error=str(error))
                    if until_caught_up:
                        raise
                    await self._clock.sleep(_AGAIN_S)
                    continue
                self._metrics.up.set(1)
                self._metrics.behind.set(max(0, self.behind))
                now_s = self._clock.monotonic_s()
                if until_caught_up and not count:
                    return
                if now_s - checkpoint_s >= self._settings.checkpoint_s:
                    checkpoint_s = now_s
                    await self.checkpoint()
                if not count:
                    await self._clock.sleep(_LOOK_S)
        finally:
            await asyncio.shield(self._leave())

    async def _leave(self) -> None:
        try:
            await self.checkpoint()
            await self._store.release(self._settings.holder)
        except BusError as error:
            _log.warning("audit.left_late", error=str(error))

    async def _round(self, told: Callable[[int, int], object]) -> int:
        """Read a page of every partition that is not another's; return how many records were read."""
        heads, now_ms = await self._store.heads(), await self._store.now_ms()
        ranges = await self._ranges()
        self.behind = sum(max(0, kept.end - _next(heads, place)) for place, kept in ranges.items())
        count = 0
        for (topic, partition), kept in sorted(ranges.items()):
            head = heads.get((topic, partition), AuditHead(topic=topic, partition=partition))
            if head.holder not in ("", self._settings.holder) and head.lease_ms > now_ms:
                continue
            read = await self._advance(head, kept)
            count += read
            self.behind -= read
            if read:
                told(self.rows, max(0, self.behind))
        return count

    async def _ranges(self) -> dict[tuple[str, int], PartitionRange]:
        found: dict[tuple[str, int], PartitionRange] = {}
        for topic in sorted(await self._transport.admin.topics()):
            name = read_topic(topic)
            # Heartbeats say that somebody lives, every ten seconds: nobody decides anything by an old one.
            if name is None or name.namespace != self._settings.namespace or topic.endswith("._heartbeats"):
                continue
            try:
                ranges = await self._transport.admin.ranges(topic)
            except TopicMissingError:
                continue
            found |= {(topic, partition): kept for partition, kept in ranges.items()}
        return found

    async def _advance(self, head: AuditHead, kept: PartitionRange) -> int:
        entries: list[Entry] = []
        offset, before = head.next_offset, (head.hash, head.last_offset)
        if kept.start > offset:
            lost = chained(lost_row(head.topic, head.partition, offset, kept.start - 1, before[1]), before[0])
            entries.append(Entry(lost, None, b""))
            offset, before = kept.start, (lost.hash, lost.offset)
        records: Sequence[Record] = ()
        if offset < kept.end:
            records = await self._transport.read(
                head.topic, head.partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
            )
        if not records and not entries:
            return 0
        name = read_topic(head.topic)
        assert name is not None  # noqa: S101 - `_ranges` has read it
        for record in records:
            entry = self._entry(record, name, *before)
            before = entry.row.hash, entry.row.offset
            entries.append(entry)
            offset = record.offset + 1
        if await self._store.append(head, entries, offset, self._settings.holder) is None:
            return 0  # another writer was first
        self.rows += len(entries)
        self._metrics.wrote(entries)
        return len(records)

    def _entry(self, record: Record, name: TopicName, hash_before: str, offset_before: int) -> Entry:
        verdict, reason, message = self._judged(record, name)
        letter = read_dead_letter(record) if name.kind == "dlq" else None
        content = content_of(record, message, letter, name)
        key = self._randomness(_KEY_BYTES)
        row = AuditRow(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            through=record.offset,
            before=offset_before,
            kind=name.kind,
            message_type=_type_of(message, name),
            appended_ms=record.timestamp_ms,
            verdict=verdict,
            reason=letter.reason[:64] if letter is not None else reason,
            commitment=commitment_of(content, key),
        )
        return Entry(chained(row, hash_before), content, key)

    def _judged(self, record: Record, name: TopicName) -> tuple[str, str, Message | None]:
        """Return what the gates say of the bytes that lie there, whoever handles them, and when."""
        if name.kind == "own" and record.topic != own_topic(name.namespace, "_directory"):
            return "entry", "", None
        expected = name.message_type if name.kind == "message" else msgspec.UNSET
        case = gates.Case(record=record, expected_type=expected, append_ms=record.timestamp_ms)
        match gates.judge(case, self._checks, stage="before_inbox"):
            case gates.Passed(message=message) | gates.NotAddressed(message=message):
                return "holds", "", message
            case gates.Failed(error=error, message=found):
                return "refused", error.reason, found

    def _risk(self, message: Message) -> Risk:
        kind = self._registry.get(message.message_type)
        return "low" if kind is None else kind.risk

    async def checkpoint(self) -> None:
        """Append what has been written to the anchor, and signed to `_audit`: proofs outside of the store."""
        if self._publisher is None and not self._settings.anchor:
            return
        own = own_topic(self._settings.namespace, "_audit")
        for (topic, partition), head in (await self._store.heads()).items():
            if topic == own or not head.rows or self._told.get((topic, partition)) == head.rows:
                continue
            payload = AuditCheckpoint(
                partition=f"{topic}/{partition}",
                rows=head.rows,
                chain_hash=f"sha256:{head.hash}",
                through=max(0, head.next_offset - 1),
            )
            if self._settings.anchor:
                await asyncio.to_thread(write_anchor, self._settings.anchor, payload)
            if self._publisher is not None:
                sealed = self._publisher.sealer.seal(Draft(payload=payload, key=payload.partition), topic=own)
                await self._publisher.send(sealed, timeout_s=_SEND_S)
            self._told[topic, partition] = head.rows

    async def forget_old(self) -> int:
        """Erase the content of rows that are older than `keep_s`, or `keep_sensitive_s`; return of how many."""
        now_ms, count = await self._store.now_ms(), 0
        for name, keep_s, what in (
            ("keep_s", self._settings.keep_s, Erasure()),
            ("keep_sensitive_s", self._settings.keep_sensitive_s, Erasure(classifications=_SENSITIVE)),
        ):
            if keep_s:
                before_ms = now_ms - int(keep_s * 1000)
                count += await self._store.erase(what, who="retention", why=f"audit.{name}", before_ms=before_ms)
        return count


def _next(heads: Mapping[tuple[str, int], AuditHead], place: tuple[str, int]) -> int:
    return heads[place].next_offset if place in heads else 0


def _type_of(message: Message | None, name: TopicName) -> str:
    """Return a type only where it is of the form of one: the text of a stranger stays erasable."""
    if message is not None:
        return message.message_type
    return name.message_type if name.kind in ("message", "dlq") else ""
