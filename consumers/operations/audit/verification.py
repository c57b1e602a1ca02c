"""Verification: whether the rows of an audit are those that were written. Decides from rows, heads and checkpoints.

The chain reveals rows that were changed, removed, inserted or moved before its last row. The head reveals rows that
were cut off at the end. Checkpoints in the log reveal a change of both rows and head.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from bus.errors import ContractError
from bus.protocol import sealing
from bus.transports.base import Record
from bus.vocabulary.bus import AuditCheckpoint
from consumers.operations.audit.rows import CHAIN_BEGIN, LOST, AuditRow, commitment_of, hash_of_row
from consumers.operations.audit.store import AuditHead, AuditRecord

__all__ = ["ChainFault", "ChainReport", "FaultKind", "compare_with_log", "verify_chain"]

FaultKind: TypeAlias = Literal[
    "changed", "removed", "inserted", "content_changed", "content_removed", "cut", "forged", "not_the_log"
]


class ChainFault(msgspec.Struct, frozen=True, kw_only=True):
    """A row, or its position, at which the audit differs from what was written."""

    kind: FaultKind
    topic: str
    partition: int
    offset: int
    text: str


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition. *proven_through* is the offset up to which a checkpoint in the log agrees."""

    topic: str
    partition: int
    rows: int
    lost: int
    erased: int
    proven_through: int | None
    faults: tuple[ChainFault, ...]


async def verify_chain(
    rows: AsyncIterator[AuditRecord],
    head: AuditHead,
    checkpoints: Mapping[int, Sequence[AuditCheckpoint]],
    later_head: Callable[[], Awaitable[AuditHead]],
) -> ChainReport:
    """Compare the rows of one partition with their hashes, with *head*, and with *checkpoints* by their row count.

    An audit that records meanwhile adds rows after *head* was read: they are compared with *later_head*, which is read
    after them.
    """
    walk = _ChainWalk(head, checkpoints)
    async for found in rows:
        walk.pass_row(found)
    return walk.ended(await later_head() if walk.has_grown else head)


class _ChainWalk:
    """One pass over the rows of a partition."""

    def __init__(self, head: AuditHead, checkpoints: Mapping[int, Sequence[AuditCheckpoint]]) -> None:
        self._head = head
        self._checkpoints = checkpoints
        self._faults: list[ChainFault] = []
        self._rows = self._lost = self._erased = 0
        self._hash, self._offset = CHAIN_BEGIN, -1
        self._proven: int | None = None

    def pass_row(self, found: AuditRecord) -> None:
        """Judge the next row."""
        row = found.row
        self._rows += 1
        self._lost += row.through - row.offset + 1 if row.kind == LOST else 0
        if hash_of_row(row, self._hash) != row.hash:
            self._say_why(row)
        self._check_content(found)
        self._hash, self._offset = row.hash, row.offset
        self._compare_checkpoint(row)
        if self._rows == self._head.rows and row.hash != self._head.hash:
            text = f"the head has another hash after {self._rows:,} rows, up to {self._head.last_offset}"
            self._fault("cut", row.offset, text)

    @property
    def has_grown(self) -> bool:
        """Whether there are more rows than the head counts."""
        return self._rows > self._head.rows

    def _say_why(self, row: AuditRow) -> None:
        # The row names the one before it, which tells a missing neighbour from a changed row.
        if row.before > self._offset:
            self._fault("removed", row.before, f"the row before {row.offset} is gone")
        elif row.before < self._offset:
            self._fault(
                "inserted", self._offset, f"row {row.offset} follows {row.before}, and this one is between them"
            )
        else:
            text = f"it is not what its hash is of, or the hash of row {row.before} was written again"
            self._fault("changed", row.offset, text)

    def _check_content(self, found: AuditRecord) -> None:
        row = found.row
        self._erased += found.is_erased
        if found.content is not None:
            if not hmac.compare_digest(commitment_of(found.content, found.key), row.commitment):
                self._fault("content_changed", row.offset, "its content is not what was recorded")
        elif row.commitment and not found.is_erased:
            self._fault("content_removed", row.offset, "its content is missing without a recorded erasure")

    def _compare_checkpoint(self, row: AuditRow) -> None:
        checkpointed = self._checkpoints.get(self._rows, ())
        if any(each.chain_hash != f"sha256:{row.hash}" for each in checkpointed):
            text = "a checkpoint in the log or the anchor differs: rows and hashes were both rewritten"
            self._fault("forged", row.offset, text)
        elif checkpointed:
            self._proven = row.offset

    def ended(self, later: AuditHead) -> ChainReport:
        """Return the result after the last row; *later* is the head that was read after it."""
        head, checkpointed = self._head, max(self._checkpoints, default=0)
        if self._rows < head.rows:
            text = f"the head counts {head.rows:,} rows up to {head.last_offset}, here are {self._rows:,}"
            self._fault("cut", head.last_offset, text)
        if self._rows > later.rows or (self._rows == later.rows != head.rows and self._hash != later.hash):
            text = f"the head counts {later.rows:,} rows up to {later.last_offset}, here are {self._rows:,}"
            self._fault("inserted", self._offset, text)
        if self._rows < checkpointed:
            self._fault("cut", self._offset + 1, f"a checkpoint counts {checkpointed:,} rows, here are {self._rows:,}")
        return ChainReport(
            topic=head.topic,
            partition=head.partition,
            rows=self._rows,
            lost=self._lost,
            erased=self._erased,
            proven_through=self._proven,
            faults=tuple(self._faults),
        )

    def _fault(self, kind: FaultKind, offset: int, text: str) -> None:
        head = self._head
        self._faults.append(ChainFault(kind=kind, topic=head.topic, partition=head.partition, offset=offset, text=text))


async def compare_with_log(
    rows: AsyncIterator[AuditRecord], records: AsyncIterator[Record], head: AuditHead
) -> list[ChainFault]:
    """Compare the rows of one partition with the *records* that the log still has of it, in order of offsets.

    A record without a row, another time of append, and another id or seal are faults. A row without a record is none:
    retention has taken it.
    """
    faults: list[ChainFault] = []

    def fault(offset: int, text: str) -> None:
        faults.append(
            ChainFault(kind="not_the_log", topic=head.topic, partition=head.partition, offset=offset, text=text)
        )

    row: AuditRecord | None = await anext(rows, None)
    async for record in records:
        if record.offset >= head.next_offset:
            break
        while row is not None and row.row.through < record.offset:
            row = await anext(rows, None)
        if row is None or row.row.offset > record.offset:
            fault(record.offset, "the log has a record here, and the audit no row")
        elif row.row.kind != LOST and (difference := _difference(row, record)):
            fault(record.offset, f"the log's record here has another {difference}")
    return faults


def _difference(found: AuditRecord, record: Record) -> str:
    if found.row.appended_ms != record.timestamp_ms:
        return "time of append"
    if found.content is None or not found.content.seal:
        return ""
    try:
        message = sealing.parse(record.value or b"")
    except ContractError:
        return "form: it is not a message"
    if message.message_id != found.content.message_id:
        return "message id"
    return "" if message.seal == found.content.seal else "seal"
