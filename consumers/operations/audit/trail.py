"""AuditTrail: read every partition of a namespace in the order of its offsets, and write a row for each record.

It is not a consumer group: it commits no offsets to the log. Its position is in the store, and moves in the transaction
that inserts the rows, so a record has one row even after a crash (design part two 18).
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
from bus.errors import BusError, ClosedError, InboxError, TopicMissingError, UnstorableError, text_of
from bus.payloads.payload_types import Registry, RiskClass
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.telemetry.logs import get_logger
from bus.topics.names import TopicName, own_topic, read_topic
from bus.transports.base import PartitionRange, Record, Transport
from bus.vocabulary.bus import AuditCheckpoint
from consumers.deadletters.letters import read_dead_letter
from consumers.operations.audit.anchor import write_anchor
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.audit.rows import (
    UNSTORABLE,
    AuditContent,
    AuditRow,
    chained,
    commitment_of,
    content_of,
    lost_row,
    unstorable_content,
)
from consumers.operations.audit.store import AuditHead, AuditStore, Entry, Erasure
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest

__all__ = ["AuditTrail", "TrailSettings"]

_PAGE_RECORDS: Final = 1_000
_PAGE_BYTES: Final = 16 * 1_048_576
_LOOK_S: Final = 0.5
"""A partition at whose end the trail stands is looked at again after so long."""
_INDEX_LOOK_S: Final = 10.0
"""How often rows are looked for that older code has written beside this one, without the index."""
_AGAIN_S: Final = 2.0
_MAX_PAUSE_S: Final = 60.0
_MAX_IN_A_ROW: Final = 3
"""Partitions that the store fails one after the other, after which it is the store itself."""
_MAX_TEXT: Final = 500
_LATEST_MS: Final = (1 << 62) - 1
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
    """A file that gets the checkpoints, too; empty: none."""
    keep_s: float
    """After so long content is erased; the rows stay. 0: never."""
    keep_sensitive_s: float = 0.0
    """The same for confidential and restricted content. 0: as `keep_s`."""


class _Standstill(msgspec.Struct, frozen=True):
    """Why a partition stands, and when it is tried again."""

    error: BusError
    pause_s: float
    again_s: float


class _Draft(msgspec.Struct, frozen=True):
    """A row before its position in the chain is known, with its *record*; None for a row of lost offsets."""

    row: AuditRow
    content: AuditContent | None
    key: bytes
    record: Record | None


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
        self._anchored_rows: dict[tuple[str, int], int] = {}
        """By partition, how many rows its last checkpoint counted."""
        self._failing: dict[tuple[str, int], _Standstill] = {}
        """Partitions that could not be read or written, -1 for a topic of which nothing is known: when to try again."""
        self.rows = 0
        """Rows that this process has written."""
        self.behind = 0
        """Records that the last round found and has not read."""

    async def run(
        self, *, until_caught_up: bool = False, on_progress: Callable[[int, int], object] = lambda *_: None
    ) -> None:
        """Follow the log until cancelled, or to its present end. *on_progress* is called with rows written and records
        left.

        A fault of one partition does not stop the others. A fault that remains at the present end is raised then.
        """
        checkpoint_s, keeping_s, indexed_s = self._clock.monotonic_s(), -math.inf, -math.inf
        try:
            while True:
                self._metrics.begin_round(self._clock.monotonic_s())
                try:
                    count = await self._round(on_progress)
                    if self._clock.monotonic_s() >= indexed_s:
                        done = await self._store.index_step()
                        count += done
                        # Only a database of older code has more to do than a look now and then.
                        indexed_s = self._clock.monotonic_s() + (0.0 if done else _INDEX_LOOK_S)
                    if self._clock.monotonic_s() - keeping_s >= _KEEPING_S:
                        await self.forget_old()
                        keeping_s = self._clock.monotonic_s()
                except BusError as error:
                    self._metrics.up.set(0)
                    self._metrics.error = str(error)
                    _log.warning("audit.waits", error=str(error))
                    if until_caught_up:
                        raise
                    await self._clock.sleep(_AGAIN_S)
                    continue
                now_s = self._clock.monotonic_s()
                if until_caught_up and not count:
                    for fault in self._failing.values():
                        raise fault.error
                    return
                if now_s - checkpoint_s >= self._settings.checkpoint_s:
                    checkpoint_s = now_s
                    await self._checkpoint_soon()
                if not count:
                    await self._clock.sleep(_LOOK_S)
        finally:
            await asyncio.shield(self._leave())

    async def _checkpoint_soon(self) -> None:
        try:
            await self.checkpoint()
        except BusError as error:
            self._metrics.checkpoints_up.set(0)
            _log.warning("audit.checkpoint_waits", error=str(error))
        else:
            self._metrics.checkpoints_up.set(1)

    async def _leave(self) -> None:
        try:
            await self.checkpoint()
            await self._store.release(self._settings.holder)
        except BusError as error:
            _log.warning("audit.left_late", error=str(error))

    async def _round(self, on_progress: Callable[[int, int], object]) -> int:
        """Read a page of every partition that is not another's; return how many records were read.

        Raises BusError where the store or the whole log cannot be used.
        """
        heads, now_ms = await self._store.heads(), await self._store.now_ms()
        ranges = await self._ranges()
        behind = {location: max(0, retained.end - _next(heads, location)) for location, retained in ranges.items()}
        self.behind = sum(behind.values())
        count, in_a_row = 0, 0
        # What failed before comes last: it may take its time.
        for location in sorted(ranges, key=lambda location: (location in self._failing, location)):
            head = heads.get(location, AuditHead(topic=location[0], partition=location[1]))
            if head.holder not in ("", self._settings.holder) and head.lease_ms > now_ms:
                self._failing.pop(location, None)
                continue
            if not self._is_to_be_tried(location):
                continue
            try:
                read = await self._advance(head, ranges[location])
            except ClosedError:
                raise
            except BusError as error:
                self._fails(location, error)
                in_a_row += isinstance(error, InboxError)
                if in_a_row >= _MAX_IN_A_ROW:
                    raise
                continue
            self._failing.pop(location, None)
            in_a_row = 0
            count += read
            behind[location] -= min(read, behind[location])
            self.behind = sum(behind.values())
            if read:
                on_progress(self.rows, self.behind)
        self._metrics.knows(behind, self._failing.keys())
        return count

    def _is_to_be_tried(self, location: tuple[str, int]) -> bool:
        fault = self._failing.get(location)
        return fault is None or self._clock.monotonic_s() >= fault.again_s

    def _fails(self, location: tuple[str, int], error: BusError) -> None:
        known = self._failing.get(location)
        pause_s = _AGAIN_S if known is None else min(_MAX_PAUSE_S, known.pause_s * 2)
        self._failing[location] = _Standstill(error, pause_s, self._clock.monotonic_s() + pause_s)
        _log.warning(
            "audit.partition_waits",
            topic=location[0],
            partition=location[1],
            again_in_s=pause_s,
            error=str(error)[:_MAX_TEXT],
        )

    async def _ranges(self) -> dict[tuple[str, int], PartitionRange]:
        found: dict[tuple[str, int], PartitionRange] = {}
        failed: BusError | None = None
        for topic in sorted(await self._transport.admin.topics()):
            name = read_topic(topic)
            # Heartbeats say that somebody lives, every ten seconds: nobody decides anything by an old one.
            if name is None or name.namespace != self._settings.namespace or topic.endswith("._heartbeats"):
                continue
            if not self._is_to_be_tried((topic, -1)):
                continue
            try:
                ranges = await self._transport.admin.ranges(topic)
            except TopicMissingError:
                continue
            except ClosedError:
                raise
            except BusError as error:
                self._fails((topic, -1), failed := error)
                continue
            self._failing.pop((topic, -1), None)
            found |= {(topic, partition): retained for partition, retained in ranges.items()}
        if failed is not None and not found:
            raise failed
        return found

    async def _advance(self, head: AuditHead, retained: PartitionRange) -> int:
        drafts: list[_Draft] = []
        offset = head.next_offset
        if retained.start > offset:
            lost = lost_row(head.topic, head.partition, offset, retained.start - 1, head.last_offset)
            drafts.append(_Draft(lost, None, b"", None))
            offset = retained.start
        records: Sequence[Record] = ()
        if offset < retained.end:
            records = await self._transport.read(
                head.topic, head.partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
            )
        if not records and not drafts:
            return 0
        name = read_topic(head.topic)
        assert name is not None  # noqa: S101 - `_ranges` has read it
        for record in records:
            drafts.append(self._draft(record, name))
            offset = record.offset + 1
        if await self._write(head, drafts, offset) is None:
            return 0  # another writer was first
        return len(records)

    async def _write(self, head: AuditHead, drafts: Sequence[_Draft], next_offset: int) -> AuditHead | None:
        """Append *drafts* after *head*; return None if another writer was first.

        A record that the store refuses is isolated by halving its page, and its bytes are stored in base64.
        """
        entries, before = [], (head.hash, head.last_offset)
        for draft in drafts:
            row = chained(msgspec.structs.replace(draft.row, before=before[1]), before[0])
            before = row.hash, row.offset
            entries.append(Entry(row, draft.content, draft.key))
        try:
            moved = await self._store.append(head, entries, next_offset, self._settings.holder)
        except UnstorableError as error:
            if len(drafts) == 1:
                only = drafts[0]
                if only.record is None or only.row.verdict == UNSTORABLE:
                    raise
                return await self._write(head, [self._unstorable(only, only.record, str(error))], next_offset)
            middle = len(drafts) // 2
            half = await self._write(head, drafts[:middle], drafts[middle - 1].row.through + 1)
            return None if half is None else await self._write(half, drafts[middle:], next_offset)
        if moved is not None:
            self.rows += len(entries)
            self._metrics.wrote(entries)
        return moved

    def _draft(self, record: Record, name: TopicName) -> _Draft:
        empty = _Draft(_row_of(record, name), None, self._randomness(_KEY_BYTES), record)
        try:
            verdict, reason, message = self._judged(record, name)
            letter = read_dead_letter(record) if name.kind == "dlq" else None
            content = content_of(record, message, letter, name)
            row = msgspec.structs.replace(
                empty.row,
                message_type=_type_of(message, name),
                verdict=verdict,
                reason=letter.reason[:64] if letter is not None else reason,
                commitment=commitment_of(content, empty.key),
            )
        except Exception as error:  # noqa: BLE001 - a record that nobody foresaw must not stop its partition
            return self._unstorable(empty, record, f"{type(error).__name__}: {text_of(error)}")
        return msgspec.structs.replace(empty, row=row, content=content)

    def _unstorable(self, draft: _Draft, record: Record, why: str) -> _Draft:
        """Return the replacement for *draft*, with characters and numbers that every store accepts."""
        _log.warning(
            "audit.unstorable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            detail=ascii(why)[:_MAX_TEXT],
        )
        content = unstorable_content(record, draft.content, why)
        row = msgspec.structs.replace(
            draft.row,
            appended_ms=max(0, min(record.timestamp_ms, _LATEST_MS)),
            verdict=UNSTORABLE,
            reason="",
            commitment=commitment_of(content, draft.key),
        )
        return msgspec.structs.replace(draft, row=row, content=content)

    def _judged(self, record: Record, name: TopicName) -> tuple[str, str, Message | None]:
        """Return the verdict of the gates on the stored bytes, independent of reader and time."""
        if name.kind == "own" and record.topic != own_topic(name.namespace, "_directory"):
            return "entry", "", None
        expected = name.message_type if name.kind == "message" else msgspec.UNSET
        case = gates.Case(record=record, expected_type=expected, append_ms=record.timestamp_ms)
        match gates.judge(case, self._checks, stage="before_inbox"):
            case gates.Passed(message=message) | gates.NotAddressed(message=message):
                return "holds", "", message
            case gates.Failed(error=error, message=found):
                return "refused", error.reason, found

    def _risk(self, message: Message) -> RiskClass:
        kind = self._registry.get(message.message_type)
        return "low" if kind is None else kind.risk

    async def checkpoint(self) -> None:
        """Append what has been written to the anchor, and signed to `_audit`: proofs outside of the store."""
        if self._publisher is None and not self._settings.anchor:
            return
        own = own_topic(self._settings.namespace, "_audit")
        for (topic, partition), head in (await self._store.heads()).items():
            if topic == own or not head.rows or self._anchored_rows.get((topic, partition)) == head.rows:
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
                sealed = self._publisher.sealer.seal(Outgoing(payload, key=payload.partition), SealRequest(topic=own))
                await self._publisher.send(sealed, timeout_s=_SEND_S)
            self._anchored_rows[topic, partition] = head.rows

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


def _row_of(record: Record, name: TopicName) -> AuditRow:
    """Return the row of *record*, as far as its position determines it."""
    return AuditRow(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        through=record.offset,
        before=-1,
        kind=name.kind,
        message_type=_type_of(None, name),
        appended_ms=record.timestamp_ms,
        verdict="",
        reason="",
        commitment="",
    )


def _next(heads: Mapping[tuple[str, int], AuditHead], location: tuple[str, int]) -> int:
    return heads[location].next_offset if location in heads else 0


def _type_of(message: Message | None, name: TopicName) -> str:
    """Return a type only if it has the form of one: untrusted text must stay erasable."""
    if message is not None:
        return message.message_type
    return name.message_type if name.kind in ("message", "dlq") else ""
