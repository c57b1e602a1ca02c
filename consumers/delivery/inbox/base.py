"""The inbox's Protocol: a store that knows, by idempotency key, who runs a message and what its result was.

Owns the Protocol and its values; `tests/consumers/delivery/inbox` is the contract suite of every store (`sqlite`,
`postgres`). The decision about a claim is in `consumers.delivery.inbox.claim_rules`, when to claim in
`consumers.delivery.handling.executor`. A claim without a result never counts as done.

    absent --claim--> claimed --finish--> done (the result: the sealed bytes of everything the handler sent)
                        |  ^                or dead (its dead letter, and the report to its requester)
               release  v  | claim, with a higher token
                       free <--claim of a redrive-- dead
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from bus.protocol.sealing import Message
from bus.transports.base import NewRecord

__all__ = [
    "Ask",
    "Claim",
    "Claimed",
    "Conflict",
    "KeepsCrashing",
    "AlreadyDead",
    "AlreadyDone",
    "SqlDialect",
    "End",
    "ClaimedElsewhere",
    "Inbox",
    "InboxKey",
    "OwnTransaction",
    "SomeAsk",
    "SomeEnd",
    "Suspect",
    "Transaction",
    "Write",
    "Written",
    "principal_of",
]


SqlDialect: TypeAlias = Literal["sqlite", "postgres"]


_UNPROVEN: Final = "unproven/"


def principal_of(message: Message, *, has_keys: bool) -> str:
    """Return the sender of *message*: the verified one, or without keys the one that the message names.

    Where other messages are signed, an unsigned message may name any sender, so it gets keys of its own that cannot
    collide with those of signed messages.
    """
    sender = message.metadata.sender.id or ""
    return f"{_UNPROVEN}{sender}" if has_keys and message.verification.signature is None else sender


class InboxKey(msgspec.Struct, frozen=True):
    """The key of an inbox row. It includes the sender: equal idempotency keys of two senders are different rows.

    The sender is the id that the message names. Without trusted keys, any process with write access to the topic can
    use any id.
    """

    namespace: str
    sender: str
    message_type: str
    group: str
    idempotency_key: str


class Claimed(msgspec.Struct, frozen=True):
    """Run the handler.

    *token* is higher than any before it for this key; *alone*: run nothing else in this process meanwhile.
    """

    token: int
    starts: int = 1
    """How often it was started since a run last ended in order, this start included."""
    alone: bool = False
    """It is a suspect, claimed by a process that runs nothing else.

    If that process dies, the death counts against the message.
    """


class Suspect(msgspec.Struct, frozen=True):
    """Two workers died while they ran this message among others.

    Claim it again with *alone* when nothing else runs in this process.
    """


class AlreadyDone(msgspec.Struct, frozen=True):
    """It was done before: send the same *outputs* again, run nothing."""

    outputs: tuple[NewRecord, ...]
    message_id: str = ""
    """The id of the message that was done; other messages under its key get the same answer."""


class AlreadyDead(msgspec.Struct, frozen=True):
    """The message has died before: send the same *outputs* again, its dead letter first; do not run it."""

    outputs: tuple[NewRecord, ...]
    message_id: str = ""


class ClaimedElsewhere(msgspec.Struct, frozen=True):
    """A live worker has the claim; ask again after *wait_s* seconds."""

    wait_s: float


class Conflict(msgspec.Struct, frozen=True):
    """The key was used for other content."""

    content_hash: str
    """The hash of the content that came first."""


class KeepsCrashing(msgspec.Struct, frozen=True):
    """*deaths* workers died while they ran it alone: it is dead-lettered."""

    deaths: int


Claim: TypeAlias = Claimed | Suspect | AlreadyDone | AlreadyDead | ClaimedElsewhere | Conflict | KeepsCrashing


class Ask(msgspec.Struct, eq=False, gc=False):
    """A claim request of a caller that does not wait; see `Inbox.claim`."""

    key: InboxKey
    content_hash: str
    keep_until_ms: int
    reopen: int = 0
    alone: bool = False
    identity: Any = None
    """The store's own name of the key, set once it was asked; a result for the same key may use it."""
    answer: Claim | Exception | None = None
    """Set by the store."""
    message_id: str = ""


class End(msgspec.Struct, eq=False, gc=False):
    """A result of a caller that does not wait; see `Inbox.finish`, and `Ask`."""

    key: InboxKey
    token: int
    identity: Any = None
    outputs: bytes = b""
    """The encoded outputs."""
    answer: bool | Exception | None = None


SomeAsk = TypeVar("SomeAsk", bound=Ask)
SomeEnd = TypeVar("SomeEnd", bound=End)


class Transaction(Protocol):
    """The inbox's own transaction, open.

    Writes in it become durable together with the inbox's row, or not at all.

    Placeholders are `$1`, `$2`... on every store. On SQLite the claims of all other handlers wait until it ends: write
    late and briefly.
    """

    async def execute(self, statement: str, *arguments: Any) -> None:
        """Run one statement. Raises InboxError, or the database's own error about the statement."""

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Run one statement and return its first row, or None."""

    async def rollback(self) -> None:
        """Undo everything; harmless after the transaction has ended."""


class Write(msgspec.Struct, frozen=True, gc=False):
    """A statement of a transaction that is written at once; see `Inbox.finish_with`."""

    statement: str
    arguments: tuple[Any, ...]
    must_return: bool = False
    """Where it returns no row, nothing is written at all."""


Written: TypeAlias = Literal["written", "stale", "moved"]
"""What `Inbox.finish_with` has done; "stale": another worker has claimed it since; "moved": a write returned no row."""


class OwnTransaction(Transaction, Protocol):
    """A transaction that its owner may end; handlers may not."""

    async def commit(self) -> None:
        """Make everything durable; afterwards it is over, also where that failed."""


class Inbox(Protocol):
    """A store. Every method raises InboxError, which is retriable, where the store is unreachable or full."""

    shared: bool
    """Whether workers on other machines see the same rows."""
    dialect: SqlDialect
    """The SQL dialect of the statements."""

    async def open(self) -> None:
        """Connect, create or migrate the tables, and start the lease of this worker, which owns claims.

        The lease is renewed in the background.
        """

    async def claim(
        self,
        key: InboxKey,
        content_hash: str,
        *,
        keep_until_ms: int,
        reopen: int = 0,
        alone: bool = False,
        message_id: str = "",
    ) -> Claim:
        """Decide about a message; a Claimed is stored when this returns, and survives this process.

        The row may be deleted after *keep_until_ms*.

        *reopen*: how often an operator has redriven the message; deaths before the last redrive no longer count, and a
        message that had died by then runs again. Every
        claim is ended by an answer of `finish`, or by `release`, even one that raises: until then this process counts
        as running it.
        """

    async def find_done(self, key: InboxKey, content_hash: str) -> AlreadyDone | AlreadyDead | None:
        """Return how the message under *key* with that content ended; None where it has not. Claims nothing."""

    async def finish(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None = None
    ) -> bool:
        """Make the result durable, together with *transaction* where one was begun.

        False: another worker has claimed it since, nothing was written, and *transaction* is rolled back.
        """

    async def finish_with(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], writes: Sequence[Write]
    ) -> Written:
        """Make the result durable together with *writes*, or nothing at all.

        Unlike a transaction it keeps no other caller waiting. The claim stands where a row has moved. Raises
        InboxError, or the database's own error about a write.
        """

    def claim_soon(self, asks: Sequence[SomeAsk], on_answers: Callable[[Sequence[SomeAsk]], object]) -> None:
        """`claim` for many, by a caller that does not wait.

        *on_answers* is called later on the loop, with those that have their answer. Each is passed once, slower ones
        after the others.
        """

    def finish_soon(self, ends: Sequence[SomeEnd], on_answers: Callable[[Sequence[SomeEnd]], object]) -> None:
        """`finish` without outputs and without a transaction for many; see `claim_soon`.

        A reported result survives this process; `sync` makes it survive a crash of the machine.
        """

    async def sync(self) -> None:
        """Make all reported results durable. Await it before committing an offset that relies on them."""

    async def release(self, key: InboxKey, token: int) -> None:
        """Free a claim whose run ended in order without a result (a failure, a stop): the start does not count.

        A newer claim is not changed.
        """

    async def void(self, key: InboxKey, token: int) -> None:
        """Delete the row of a claim whose run ended without a trace. A newer claim is not changed."""

    async def release_with(self, key: InboxKey, token: int, transaction: Transaction) -> bool:
        """Free a claim, and commit *transaction* with that; False: it is another's by now, and nothing is written."""

    async def remembered(self, key: InboxKey) -> Mapping[str, bytes]:
        """Return what runs of the message under *key* have remembered, by name."""

    async def remember(self, key: InboxKey, token: int, name: str, data: bytes) -> bool:
        """Store *data* under *name* for later runs of the message; return False if another owner has taken the claim.

        Earlier data under the name are replaced. They are deleted with the row at the latest.
        """

    async def remember_with(
        self, key: InboxKey, token: int, name: str, data: bytes, writes: Sequence[Write]
    ) -> Written:
        """Store *data* as `remember` does, together with *writes*, or nothing at all; see `finish_with`."""

    async def forget(self, key: InboxKey) -> None:
        """Delete all that runs of the message under *key* have remembered."""

    async def write(self, writes: Sequence[Write]) -> Written:
        """Make *writes* durable together, or nothing at all ("moved"); see `finish_with`.

        Those of many callers share a commit where the store has one writer.
        """

    async def begin(self) -> OwnTransaction:
        """Open a transaction for one handler, or for the bus's own rows."""

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run *statement*, which changes nothing, outside every transaction, and return its rows."""

    async def who_blocks(self) -> str:
        """Return the session or process for which statements of this store wait; empty where none is seen."""

    async def purge(self) -> int:
        """Delete the rows that have expired; return how many."""

    async def close(self) -> None:
        """End the lease: this owner's claims are free at once, and do not count as deaths."""
