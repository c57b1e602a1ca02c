"""The inbox's seam: a store that remembers, by idempotency key, who is at work on a message and what came of it.

Owns the Protocol and its values, which every store (`sqlite`, `postgres`) fulfils alike: `tests/consumers/inbox` is its
suite. The decision about a claim is `rules`', when to claim is `consumers.handling.executor`'s. A mark without a result
never counts as done (design section 5).

    absent --claim--> claimed --finish--> done (the result: the sealed bytes of everything the handler sent)
                        |  ^
               release  v  | claim, with a higher token
                       free
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from bus.transports.base import NewRecord

__all__ = [
    "Ask",
    "Claim",
    "Claimed",
    "Conflict",
    "KeepsCrashing",
    "AlreadyDone",
    "End",
    "ClaimedElsewhere",
    "Inbox",
    "Key",
    "SomeAsk",
    "SomeEnd",
    "Suspect",
    "Transaction",
]


class Key(msgspec.Struct, frozen=True):
    """What a row stands for. The sender is part of it: the keys of one are not those of another.

    It is the id that the message gives: whoever may write to the topic can write any, as long as no keys prove who has
    sealed it.
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
    """How often it was started since it last ended in order, this start included."""
    alone: bool = False
    """It is under suspicion, and claimed by a process that runs nothing else.

    Should that die, the message is to blame.
    """


class Suspect(msgspec.Struct, frozen=True):
    """Two workers died while they ran this among others.

    Ask again when nothing else runs in this process, and say so (*alone*).
    """


class AlreadyDone(msgspec.Struct, frozen=True):
    """It was done before, and this is all that it sent: send the same bytes again, run nothing."""

    outputs: tuple[NewRecord, ...]
    message_id: str = ""
    """Of the message that was done; others under its key are answered for it."""


class ClaimedElsewhere(msgspec.Struct, frozen=True):
    """A worker that is alive has it; ask again after *wait_s* seconds."""

    wait_s: float


class Conflict(msgspec.Struct, frozen=True):
    """The key was used for other content."""

    content_hash: str
    """Of the content that came first."""


class KeepsCrashing(msgspec.Struct, frozen=True):
    """So many workers died while they ran it alone."""

    deaths: int


Claim: TypeAlias = Claimed | Suspect | AlreadyDone | ClaimedElsewhere | Conflict | KeepsCrashing


class Ask(msgspec.Struct, eq=False, gc=False):
    """A claim that is asked for, by one who does not wait; see `Inbox.claim`."""

    key: Key
    content_hash: str
    keep_until_ms: int
    reopen: int = 0
    alone: bool = False
    identity: Any = None
    """What the store knows the key by, once it has been asked; a result for the same key may be given it."""
    answer: Claim | Exception | None = None
    """Filled in by the store."""
    message_id: str = ""


class End(msgspec.Struct, eq=False, gc=False):
    """A result, by one who does not wait; see `Inbox.finish`, and `Ask`."""

    key: Key
    token: int
    identity: Any = None
    outputs: bytes = b""
    """Encoded."""
    answer: bool | Exception | None = None


SomeAsk = TypeVar("SomeAsk", bound=Ask)
SomeEnd = TypeVar("SomeEnd", bound=End)


class Transaction(Protocol):
    """The inbox's own transaction, open.

    What is written in it becomes durable together with the inbox's row, or not at all.

    Placeholders are `$1`, `$2`... on every store. On SQLite all other handlers' claims wait until it ends: write late,
    be quick.
    """

    async def execute(self, statement: str, *arguments: Any) -> None:
        """Run one statement. Raises InboxError, or the database's own error about the statement."""

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement."""

    async def fetchrow(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Its first row, or None."""

    async def rollback(self) -> None:
        """Undo everything; harmless after it ended."""


class Inbox(Protocol):
    """A store. Every method raises InboxError, which is retriable, where the store cannot be reached or is full."""

    shared: bool
    """Whether workers on other machines see the same rows."""

    async def open(self) -> None:
        """Connect, make or migrate the tables, and take up the lease of this *owner*.

        *owner* is a worker that lives; the lease is renewed in the background.
        """

    async def claim(
        self,
        key: Key,
        content_hash: str,
        *,
        keep_until_ms: int,
        reopen: int = 0,
        alone: bool = False,
        message_id: str = "",
    ) -> Claim:
        """Decide about a message; a Claimed stands when this returns, whatever happens to this process.

        The row may be forgotten after *keep_until_ms*.

        *reopen*: how often an operator has redriven the message: deaths counted before the last time do not count any
        more. Every claim is ended by `finish` with an answer, or by `release`, whatever that raises: until then this
        process counts as running it.
        """

    async def find_done(self, key: Key, content_hash: str) -> AlreadyDone | None:
        """What was done under *key* with that content; None where nothing was. Claims nothing."""

    async def finish(
        self, key: Key, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None = None
    ) -> bool:
        """Make the result durable, together with *transaction* where one was begun.

        False: another worker has claimed it since, nothing was written, and *transaction* is rolled back.
        """

    def claim_soon(self, asks: Sequence[SomeAsk], told: Callable[[Sequence[SomeAsk]], object]) -> None:
        """`claim` for many, by one who does not wait.

        *told* is called on the loop, later, with those that have their answer.

        Each is told once, those that take longer after the others.
        """

    def finish_soon(self, ends: Sequence[SomeEnd], told: Callable[[Sequence[SomeEnd]], object]) -> None:
        """`finish` without outputs and without a transaction for many; see `claim_soon`.

        What was told of stands, whatever happens to this process; `sync` makes it outlive a crash of the machine.
        """

    async def sync(self) -> None:
        """Make durable all that was told of. To be awaited before an offset is committed that counts on it."""

    async def release(self, key: Key, token: int) -> None:
        """The run ended in order but is not done (a failure, an orderly stop): the start does not count.

        Nothing happens to a newer claim.
        """

    async def begin(self) -> Transaction:
        """Open a transaction for one handler."""

    async def purge(self) -> int:
        """Forget rows whose time has passed; how many."""

    async def close(self) -> None:
        """Give up the lease: what this owner still held is free at once, and not counted as a death."""
