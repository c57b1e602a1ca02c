"""Conversation memory: what an agent has heard and answered in a conversation, one row for each party.

Owns the row: at most 64 KiB of JSON, with the least trusted level and the highest classification that ever went in. It
is read as a step, so that a run which begins again sees the same, and written in the transaction of the result. It
belongs to the agent, the conversation and the sender: who only knows the id of a conversation reads nothing of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from bus.errors import ContractError
from bus.payloads.kept_values import plain_of
from bus.protocol import canonical
from bus.trust.effective_labels import EffectiveLabels, joined
from consumers.delivery.inbox.base import Inbox, Transaction

__all__ = ["MAX_MEMORY_BYTES", "ConversationMemory", "MemoryItem", "MemoryRow", "fitting"]

MAX_MEMORY_BYTES: Final = 65_536
_SCHEMA_LOCK: Final = 0x5EA1B050
_TABLE: Final = """CREATE TABLE IF NOT EXISTS sealbus_memory (
    id text PRIMARY KEY, data text NOT NULL, level text NOT NULL, classification text NOT NULL)"""
_READ: Final = "SELECT data, level, classification FROM sealbus_memory WHERE id = $1"
_WRITE: Final = """
INSERT INTO sealbus_memory (id, data, level, classification) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET data = excluded.data, level = excluded.level, classification = excluded.classification"""
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext($1))"


class MemoryItem(msgspec.Struct, frozen=True):
    """One thing that was said: the message of the requester, or the answer."""

    role: Literal["user", "assistant"]
    content: Any
    """Text, or another JSON value."""


class ConversationMemory:
    """What was said so far, and what this run adds to it.

        memory = await context.conversation()
        answer = await ask_model([*memory.items, question])
        memory.add("user", question)
        memory.add("assistant", answer)

    What is added is kept only if the run succeeds, together with its result.
    """

    def __init__(self, items: Sequence[MemoryItem], row: MemoryRow) -> None:
        self.items: tuple[MemoryItem, ...] = tuple(items)
        """What earlier messages of this sender in this conversation have left, oldest first."""
        self.added: list[MemoryItem] = []
        self._row = row

    def add(self, role: Literal["user", "assistant"], content: Any) -> None:
        """Keep *content* for later messages of the conversation. Raises ContractError for what has no JSON form."""
        if role not in ("user", "assistant"):
            raise ContractError(f"{role!r} is none of user, assistant", "role")
        self.added.append(MemoryItem(role, plain_of(content)))

    async def write(self, transaction: Transaction, labels: EffectiveLabels) -> None:
        """Write what was added in *transaction*, with the *labels* of the run."""
        if self.added:
            await self._row.write(transaction, self.added, labels)


class MemoryRow:
    """The row of one agent, conversation and party in the database of *inbox*."""

    def __init__(self, inbox: Inbox, named: Mapping[str, str]) -> None:
        self._inbox = inbox
        self._id = hashlib.sha256(canonical.encode(dict(named))).hexdigest()

    async def read(self) -> tuple[list[MemoryItem], EffectiveLabels | None]:
        """Return what is remembered, and with which labels; None without a row. Raises InboxError."""
        transaction = await self._inbox.begin()
        try:
            await self._prepare(transaction)
            found = await self._found(transaction)
            await transaction.commit()
        finally:
            await transaction.rollback()
        return found

    async def write(self, transaction: Transaction, added: Sequence[MemoryItem], labels: EffectiveLabels) -> None:
        """Append *added* to what is there by now: runs of one conversation may end side by side."""
        await self._prepare(transaction)
        before, known = await self._found(transaction)
        level = labels if known is None else joined([labels, known])
        data = fitting([*before, *added])
        await transaction.execute(_WRITE, self._id, data.decode(), level.level, level.classification)

    async def _prepare(self, transaction: Transaction) -> None:
        if self._inbox.dialect == "postgres":
            exists = await transaction.fetchrow("SELECT to_regclass('sealbus_memory') IS NOT NULL")
            if exists is None or not exists[0]:
                await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
                await transaction.execute(_TABLE)
            await transaction.fetch(_LOCK, self._id)
        else:
            await transaction.execute(_TABLE)

    async def _found(self, transaction: Transaction) -> tuple[list[MemoryItem], EffectiveLabels | None]:
        row = await transaction.fetchrow(_READ, self._id)
        if row is None:
            return [], None
        return (
            msgspec.json.decode(row[0], type=list[MemoryItem]),
            EffectiveLabels(level=str(row[1]), classification=str(row[2])),
        )


def fitting(items: Sequence[MemoryItem], max_bytes: int = MAX_MEMORY_BYTES) -> bytes:
    """Return the newest of *items* that fit into *max_bytes* of JSON, oldest first. Pure."""
    rows = [msgspec.json.encode(each) for each in items]
    size, kept = 2, len(rows)
    while kept and size + len(rows[kept - 1]) + 1 <= max_bytes:
        kept -= 1
        size += len(rows[kept]) + 1
    return b"[" + b",".join(rows[kept:]) + b"]"
